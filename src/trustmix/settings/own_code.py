"""Code that recipes name: which settings of a file name code, and whether the file is the user's own.

A recipe can name functions and classes, which are imported and called: who runs a recipe runs its code. A file below
the current directory counts as the user's own, like a Makefile. A recipe or a run directory from elsewhere must be
allowed to run code.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from trustmix.errors import TrustmixError
from trustmix.settings import toml_settings as toml
from trustmix.settings.recipe import Recipe


def code_references(settings: Mapping[str, object]) -> dict[str, str]:
    """List the settings of a recipe that name code.

    Parameters
    ----------
    settings : mapping of str to object
        The settings by key, as in a TOML file.

    Returns
    -------
    dict of str to str
        The references, "package.module:name", by setting.

    Examples
    --------
    >>> code_references({"rule": "my_rules:Mine", "data": {"name": "digits"}, "model": {"source": "my_models:wide"}})
    {'rule': 'my_rules:Mine', 'model.source': 'my_models:wide'}
    """
    found = {"rule": settings.get("rule"), "density.kind": _entry(settings.get("density"), "kind")}
    found["data.source"] = _entry(settings.get("data"), "source")
    found["student.source"] = _entry(settings.get("student"), "source")
    models = settings.get("model")
    for number, model in enumerate(models if isinstance(models, list | tuple) else [models]):
        found[f"model.{number}.source" if number else "model.source"] = _entry(model, "source")
    return {key: value for key, value in found.items() if isinstance(value, str) and ":" in value}


def _entry(section: object, key: str) -> object:
    return section.get(key) if isinstance(section, Mapping) else None


def is_own_file(file: Path) -> bool:
    """Whether a file lies below the current directory; in the home or the root directory, whether it lies right there.

    A file of another user is never one's own, wherever it lies: in a folder such as /tmp every user has files. Those of
    the superuser count as one's own.

    Parameters
    ----------
    file : Path
        The file. Links are followed.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_own_file(Path("recipe.toml")), is_own_file(Path("/somewhere/else/recipe.toml"))
    (True, False)
    """
    here, place = Path.cwd().resolve(), file.resolve()
    if hasattr(os, "geteuid") and place.exists() and place.stat().st_uid not in (os.geteuid(), 0):
        return False
    if here in (Path(here.anchor), Path.home().resolve()):
        return place.parent == here
    return place.is_relative_to(here)


def foreign_code(file: Path, recipe: Recipe | None = None) -> dict[str, str]:
    """List the code that a recipe from elsewhere names.

    Parameters
    ----------
    file : Path
        A recipe as TOML.
    recipe : Recipe, optional
        The recipe with the user's changes. Code that they replace does not count.

    Returns
    -------
    dict of str to str
        The references by setting; empty if the file is the user's own.

    Raises
    ------
    TrustmixError
        If the file cannot be read.
    """
    if is_own_file(file):
        return {}
    found = code_references(toml.read(file))
    if recipe is None:
        return found
    used = code_references(recipe.model_dump(mode="json", exclude_none=True))
    return {key: reference for key, reference in found.items() if used.get(key) == reference}


def validate_code(file: Path, recipe: Recipe | None = None) -> None:
    """Refuse a recipe from elsewhere that names code.

    Parameters
    ----------
    file, recipe
        As in `foreign_code`.

    Raises
    ------
    TrustmixError
        With the setting and how to allow it.
    """
    for key, reference in foreign_code(file, recipe).items():
        raise TrustmixError(
            f'{file} names code, {key} = "{reference}", and does not lie below the current directory; if you trust it, '
            "add --allow-code (in Python allow_code=True)."
        )


def load_run_recipe(folder: Path, *, allow_code: bool = False) -> Recipe:
    """Load the recipe of a run directory, to run a part of it.

    Parameters
    ----------
    folder : Path
        The run directory.
    allow_code : bool
        Whether the recipe may name code even if the directory lies elsewhere.

    Returns
    -------
    Recipe
        Nothing of it has been imported yet.

    Raises
    ------
    TrustmixError
        If the recipe is not valid, or names code that is not allowed.
    """
    file = folder / "recipe.toml"
    if not allow_code:
        validate_code(file)
    return Recipe.load(file)

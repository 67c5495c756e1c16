"""Recipes by name: the TOML files of the package `trustmix.recipes`, and files of the user."""

from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from trustmix.errors import TrustmixError
from trustmix.registry import did_you_mean
from trustmix.settings import toml_settings as toml


def builtin_recipes() -> dict[str, str]:
    """List the built-in recipes.

    Returns
    -------
    dict of str to str
        The first comment line of every recipe, by name.

    Examples
    --------
    >>> {"demo", "fashion", "cifar10", "cifar100", "yahoo"} <= set(builtin_recipes())
    True
    """
    folder = resources.files("trustmix") / "recipes"
    texts = {Path(file.name).stem: file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".toml")}
    return {name: text.splitlines()[0].lstrip("# ") for name, text in sorted(texts.items())}


def recipe_text(name: str) -> str:
    """Return a built-in recipe as it is written, with its comments.

    Parameters
    ----------
    name : str
        The name of the recipe.

    Returns
    -------
    str
        TOML.

    Raises
    ------
    TrustmixError
        If there is no built-in recipe of that name.

    Examples
    --------
    >>> recipe_text("demo").startswith("#")
    True
    """
    if name not in builtin_recipes():
        hint = did_you_mean(name, builtin_recipes())
        raise TrustmixError(f'No recipe "{name}" is built in.{hint} Built in are: {", ".join(builtin_recipes())}.')
    return (resources.files("trustmix") / "recipes" / f"{name}.toml").read_text("utf-8")


def read_fields(recipe: str | Path) -> tuple[dict[str, Any], str]:
    """Read the fields of a built-in recipe or of a TOML file; they are not validated.

    Parameters
    ----------
    recipe : str or Path
        The name of a built-in recipe, or a file.

    Returns
    -------
    tuple of dict and str
        The fields by key, and the name of the recipe for error messages.

    Raises
    ------
    TrustmixError
        If there is neither, or the file is no TOML.

    Examples
    --------
    >>> fields, source = read_fields("demo")
    >>> fields["data"]["name"], source
    ('digits', 'recipe "demo"')
    """
    name = str(recipe)
    if name in builtin_recipes():
        return toml.parse(recipe_text(name), f'recipe "{name}"'), f'recipe "{name}"'
    with suppress(OSError, RuntimeError):  # not a valid file name, or below the home of an unknown user
        file = Path(recipe).expanduser()
        if file.is_file():
            return toml.read(file), str(file)
    hint = did_you_mean(name, builtin_recipes())
    raise TrustmixError(
        f'There is no recipe "{name}": neither a file nor built in.{hint} Built in are: {", ".join(builtin_recipes())}.'
    )

"""The runs of a sweep: every combination of the swept values with every seed, and their names."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from trustmix.errors import TrustmixError
from trustmix.settings.recipe import Recipe
from trustmix.settings.toml_settings import parse_value, toml_value
from trustmix.sweeps.tables import format_value

MAX_SEEDS = 10_000
"""Seeds at most that a number of seeds stands for."""
MAX_NAME_LENGTH = 120
"""Characters at most of a directory name, before its hash."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Parameters
    ----------
    settings : mapping of str to object
        The value of every swept setting, as TOML knows it.
    seed : int
        The seed.
    recipe : Recipe
        The recipe with these settings and this seed.
    """

    settings: Mapping[str, object]
    seed: int
    recipe: Recipe

    @property
    def name(self) -> str:
        """The directory of the run inside that of the sweep."""
        return f"{slug(self.settings)}/seed-{self.seed}"

    def __str__(self) -> str:
        cell = " ".join(f"{key}={format_value(value)}" for key, value in self.settings.items())
        return f"{cell} seed {self.seed}"


def expand_grid(
    recipe: str | Path | Mapping[str, object] | Recipe,
    over: Mapping[str, Sequence[object]],
    seeds: int | Sequence[int],
    overrides: Sequence[str] = (),
) -> list[SweepRun]:
    """List the runs of a sweep.

    Parameters
    ----------
    recipe : str, Path, mapping or Recipe
        The name of a built-in recipe, a TOML file, settings by key, or a recipe.
    over : mapping of str to sequence
        The settings to sweep, each as section.key, and their values.
    seeds : int or sequence of int
        The seeds; a number n stands for 0 to n - 1.
    overrides : sequence of str
        Changes of the recipe for all runs, each as "key=value".

    Returns
    -------
    list of SweepRun
        All runs; the seeds of one combination follow each other.

    Raises
    ------
    TrustmixError
        If a recipe of the sweep is not valid, or a value or a seed is given twice.

    Examples
    --------
    >>> [str(run) for run in expand_grid("demo", {"rule": ["avg", "suwa"]}, seeds=2)]
    ['rule=avg seed 0', 'rule=avg seed 1', 'rule=suwa seed 0', 'rule=suwa seed 1']
    """
    seeds = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    _validate_grid(over, seeds, overrides)
    runs = []
    for values, seed in product(product(*over.values()), seeds):
        settings = dict(zip(over, values, strict=True))
        changes = [_override(key, value) for key, value in settings.items()]
        runs.append(SweepRun(settings, seed, Recipe.load(recipe, [*overrides, *changes, f"seed={seed}"])))
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        twice = next(run for index, run in enumerate(runs) if run.name in names[:index])
        raise TrustmixError(f"The sweep has {twice} twice, written in two ways; give every value once.")
    return runs


def _override(key: str, value: object) -> str:
    """A change of a recipe, as --set takes it."""
    try:
        return f"{key}={toml_value(value)}"
    except TypeError as error:
        kinds = "text, numbers, booleans, lists and tables"
        raise TrustmixError(f"{key} cannot be {value!r}; a recipe holds {kinds} only.") from error


def _validate_grid(over: Mapping[str, Sequence[object]], seeds: Sequence[int], overrides: Sequence[str]) -> None:
    """Refuse a sweep that would be empty, have a run twice, or set one setting in two ways."""
    if not over or not seeds:
        raise TrustmixError("A sweep needs a setting to sweep over and at least one seed.")
    for key, values in {**over, "seed": seeds}.items():
        if not values:
            raise TrustmixError(f"The sweep over {key} has no values; give some, such as rule=avg,uwa,suwa.")
        twice = [value for index, value in enumerate(values) if value in values[:index]]
        if twice:
            raise TrustmixError(f"The sweep over {key} has {format_value(twice[0])} twice; give every value once.")
    within = [(key, other) for key in over for other in over if other.startswith(f"{key}.")]
    if within:
        raise TrustmixError(f"The sweep over {within[0][0]} sets {within[0][1]} too; leave out one of the two.")
    if "seed" in over:
        raise TrustmixError("Seeds are swept by --seeds, such as --seeds 3 or --seeds 3,4,5, not by --over seed.")
    both = [override for override in overrides if override.partition("=")[0].strip() in {*over, "seed"}]
    if both:
        raise TrustmixError(f'"{both[0]}" sets what the sweep varies; leave out one of the two.')


def parse_over(texts: Sequence[str]) -> dict[str, list[object]]:
    """Parse the values of --over.

    Parameters
    ----------
    texts : sequence of str
        Each "key=value,value"; commas inside brackets, braces and quotes belong to a value.

    Returns
    -------
    dict of str to list
        The values of every setting, as TOML knows them; any other text is a string.

    Raises
    ------
    TrustmixError
        If a text has another form, or a setting is given twice.

    Examples
    --------
    >>> parse_over(["rule=avg,{ tau = 0.4 }", "model.hidden=[64],[64, 32]"])
    {'rule': ['avg', {'tau': 0.4}], 'model.hidden': [[64], [64, 32]]}
    """
    over: dict[str, list[object]] = {}
    for text in texts:
        key, equals, rest = text.partition("=")
        parts = _split(rest)
        if not (equals and key.strip()) or not all(part.strip() for part in parts):
            raise TrustmixError(f'--over takes key=value,value, such as rule=avg,uwa,suwa, not "{text}".')
        if key.strip() in over:
            raise TrustmixError(f"--over {key.strip()} is given twice; give all its values in one.")
        over[key.strip()] = [parse_value(part) for part in parts]
    return over


def _split(text: str) -> list[str]:
    """The parts between commas that are in no brackets, braces or quotes."""
    parts, depth, quote = [""], 0, ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        else:
            depth += (c in "[{") - (c in "]}")
        if c == "," and depth <= 0 and not quote:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def parse_seeds(text: str) -> list[int]:
    """Parse the value of --seeds.

    Parameters
    ----------
    text : str
        A number of seeds, or a list of seeds with commas.

    Returns
    -------
    list of int
        The seeds.

    Raises
    ------
    TrustmixError
        If the text has another form, or the number is larger than `MAX_SEEDS`.

    Examples
    --------
    >>> parse_seeds("3"), parse_seeds("3,4,5"), parse_seeds("7,")
    ([0, 1, 2], [3, 4, 5], [7])
    """
    parts = [part.strip() for part in text.removesuffix(",").split(",")]
    if not all(re.fullmatch(r"[0-9]{1,18}", part) for part in parts) or text.strip() == "0":
        raise TrustmixError(f'--seeds takes a number of seeds, such as 3, or a list, such as 3,4,5, not "{text}".')
    seeds = [int(part) for part in parts]
    if "," not in text and seeds[0] > MAX_SEEDS:
        raise TrustmixError(f"--seeds {text} asks for that many seeds; {MAX_SEEDS} is the most, or a list of some.")
    return seeds if "," in text else list(range(seeds[0]))


def slug(settings: Mapping[str, object]) -> str:
    """Return a readable directory name for a combination of settings.

    Parameters
    ----------
    settings : mapping of str to object
        The value of every swept setting.

    Returns
    -------
    str
        The settings as text; a name that had to be changed or cut for a directory ends in a hash of the full text.

    Examples
    --------
    >>> slug({"rule": {"tau": 0.4}, "clients": 5}), slug({"model.hidden": [64, 32]})
    ('clients=5,rule=tau=0.4', 'model.hidden=64-32-4c3758')
    """
    texts = {key: format_value(settings[key]) for key in sorted(settings)}
    text = ",".join(f"{key}={value}" for key, value in texts.items())
    safe_texts = {key: re.sub(r"[^A-Za-z0-9.=+_-]+", "-", value).strip("-") for key, value in texts.items()}
    safe = ",".join(f"{key}={value}" for key, value in safe_texts.items())[:MAX_NAME_LENGTH]
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"

"""Functions that all trackers share: the scalar metrics of a round, the name of a run, flat settings."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trustmix.federation.history import Round


def scalar_metrics(line: Round) -> dict[str, float]:
    """Return the scalar metrics of a round.

    Parameters
    ----------
    line
        The round.

    Returns
    -------
    dict of str to float
        All finite numbers by name, the seconds of each stage, and the numbers of participants and of failed clients.

    Examples
    --------
    >>> scalar_metrics(Round(2, "suwa", accuracy_mean=0.5, seconds={"train": 1.5}))["accuracy_mean"]
    0.5
    """
    fields = asdict(line)
    found = {name: value for name, value in fields.items() if isinstance(value, int | float) and name != "round"}
    found |= {name: len(fields[name]) for name in ("participants", "failed")}
    found |= {f"seconds/{stage}": value for stage, value in line.seconds.items()}
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def run_name(folder: Path) -> str:
    """Return the name of a run.

    Parameters
    ----------
    folder
        The run directory.

    Returns
    -------
    str
        The path of the run directory, relative to the current folder if it is inside of it.

    Examples
    --------
    >>> run_name(Path("runs/avg3"))
    'runs/avg3'
    """
    whole = folder.expanduser().resolve()
    here = Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else whole.relative_to(whole.anchor))


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names.

    Parameters
    ----------
    settings
        The settings, where sections are mappings.
    prefix
        The text before every name.

    Returns
    -------
    dict
        The settings without nesting.

    Examples
    --------
    >>> flatten({"seed": 0, "data": {"name": "digits"}})
    {'seed': 0, 'data.name': 'digits'}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found

"""What the trackers of experiments share: the numbers of a round by name, and what a run is called."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trustmix.federation.history import Round


def scalar_metrics(line: Round) -> dict[str, float]:
    """The numbers of a round by name; seconds by stage, clients counted.

    >>> scalar_metrics(Round(2, "suwa", accuracy_mean=0.5, seconds={"train": 1.5}))["accuracy_mean"]
    0.5
    """
    fields = asdict(line)
    found = {name: value for name, value in fields.items() if isinstance(value, int | float) and name != "round"}
    found |= {name: len(fields[name]) for name in ("participants", "failed")}
    found |= {f"seconds/{stage}": value for stage, value in line.seconds.items()}
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def run_name(folder: Path) -> str:
    """A run directory's name among others: its path, from the current folder where it lies below.

    >>> run_name(Path("runs/avg3"))
    'runs/avg3'
    """
    whole = folder.expanduser().resolve()
    here = Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else whole.relative_to(whole.anchor))


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names.

    >>> flatten({"seed": 0, "data": {"name": "digits"}})
    {'seed': 0, 'data.name': 'digits'}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found

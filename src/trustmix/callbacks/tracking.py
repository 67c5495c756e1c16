"""What trackers share: rounds that are logged later if need be, scalar metrics, the name of a run, flat settings."""

import logging
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from trustmix.federation.callbacks import Callback
from trustmix.federation.history import Round

log = logging.getLogger(__name__)


class Tracker(Callback):
    """Logs rounds to a service that may fail: a round that it did not take is logged with the next one."""

    name: ClassVar[str]
    """The service in messages."""

    def __init__(self) -> None:
        self._waiting: list[Round] = []

    @abstractmethod
    def log_round(self, line: Round) -> None:
        """Log one round; any exception means that the service did not take it."""

    def on_round_end(self, line: Round) -> None:
        """Log one round, and the rounds that could not be logged before.

        Parameters
        ----------
        line
            The round.
        """
        self._waiting.append(line)
        try:
            while self._waiting:
                self.log_round(self._waiting[0])
                self._waiting.pop(0)
        except Exception as error:  # noqa: BLE001 - a tracker must not stop the run
            first = self._waiting[0].round
            log.warning("%s did not take round %d (%s); it is tried again.", self.name, first, error_reason(error))


def error_reason(error: Exception) -> str:
    """Return the first line of an error's text, or its type where it has none.

    >>> error_reason(ValueError("no key")), error_reason(TimeoutError())
    ('no key', 'TimeoutError')
    """
    return str(error).splitlines()[0] if str(error) else type(error).__name__


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

"""The cost of a run with many clients, from short runs of the same federation with few participants.

The CPU time of a run of R rounds with P participants each is start + R * (server + P * client). Three trial runs give
the three numbers. A client that takes part again is counted as a new one, which is dearer where train.first_epochs is
larger than train.epochs.
"""

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from trustmix.experiment.run import run
from trustmix.federation import Callback, ProgressEvent
from trustmix.settings.recipe import Recipe

FEW, SOME = 32, 128
"""Participants of a trial run."""
NUMBERS_KEPT = 4
"""Of each prediction of a participant, the float64 numbers that a server holds at most while it aggregates a round."""


@dataclass(frozen=True)
class RunCost:
    """What a run takes.

    Parameters
    ----------
    cpu_seconds : float
        Of all processes together.
    memory : float
        Bytes of all processes together, pages that they share counted once.
    """

    cpu_seconds: float
    memory: float


def participants(recipe: Recipe) -> int:
    """Count the clients that take part in a round.

    Parameters
    ----------
    recipe : Recipe
        The recipe.

    Returns
    -------
    int
        At least 1.

    Examples
    --------
    >>> participants(Recipe.load("crossdevice"))
    1000
    """
    return max(1, round(recipe.participation.fraction * recipe.clients))


def estimate_run(recipe: Recipe) -> RunCost:
    """Estimate the cost of a run from three trial runs in a temporary directory.

    Parameters
    ----------
    recipe : Recipe
        A recipe with more clients than `SOME`.

    Returns
    -------
    RunCost
        Of all rounds, the start of the process included.

    Raises
    ------
    TrustmixError
        If a trial run fails.
    """
    begin = _cpu_seconds()  # of this process, which has imported what a run imports
    small, large, longer = _trial(recipe, FEW, 1), _trial(recipe, SOME, 1), _trial(recipe, FEW, 2)
    client = max(0.0, (large.cpu_seconds - small.cpu_seconds) / (SOME - FEW))
    one_round = max(FEW * client, longer.cpu_seconds - small.cpu_seconds)
    start = max(0.0, small.cpu_seconds - one_round)
    server, asked = one_round - FEW * client, participants(recipe)
    held = NUMBERS_KEPT * 8 * recipe.public.samples * max(0, asked - SOME)
    return RunCost(begin + start + recipe.rounds * (server + asked * client), large.memory + held)


def _trial(recipe: Recipe, asked: int, rounds: int) -> RunCost:
    """The cost of a short run with so many participants, the start of the process not included."""
    fraction = min(1.0, asked / recipe.clients)
    changes = [f"rounds={rounds}", f"participation.fraction={fraction}", "participation.closing=sample"]
    peak = _Peak()
    begin = _cpu_seconds()
    with tempfile.TemporaryDirectory(prefix="trustmix-plan-") as folder:
        run(Recipe.load(recipe, changes), out=Path(folder) / "run", callbacks=[peak])
    return RunCost(_cpu_seconds() - begin, peak.memory)


def _cpu_seconds() -> float:
    """CPU time of this process and of all its processes that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class _Peak(Callback):
    """The largest memory of this process and its workers, seen while clients answer."""

    def __init__(self) -> None:
        self.memory = 0.0

    def on_progress(self, event: ProgressEvent) -> None:
        """Look after the last answer of an exchange."""
        if event.done == event.asked:
            self.memory = max(self.memory, memory_of_processes())


def memory_of_processes() -> float:
    """The memory of this process and of its workers; pages that they share count once where the system tells them.

    Returns
    -------
    float
        Bytes.

    Examples
    --------
    >>> memory_of_processes() > 10e6
    True
    """
    own = psutil.Process()
    total = 0.0
    for process in [own, *own.children(recursive=True)]:
        try:
            found = process.memory_full_info() if sys.platform == "linux" else process.memory_info()
            total += getattr(found, "pss", found.rss)
        except psutil.Error:
            continue  # it has ended, or belongs to another user
    return total

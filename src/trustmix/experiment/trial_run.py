"""The cost of a run with many clients, from short runs of the same federation with few participants.

The CPU time of a run of R rounds with P participants each is start + R * (server + P * client). Three trial runs give
the three numbers. A client that takes part again is counted as a new one, which is dearer where train.first_epochs is
larger than train.epochs.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import psutil

from trustmix.errors import TrustmixError
from trustmix.experiment.run import run
from trustmix.settings.recipe import Recipe

FEW, SOME = 32, 128
"""Participants of a trial run."""
LOOK_EVERY = 0.1
"""Seconds between two looks at the memory of a trial run."""
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
        Bytes of all processes together, with pages that they share counted in each of them.
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
    small, large, longer = _trial(recipe, FEW, 1), _trial(recipe, SOME, 1), _trial(recipe, FEW, 2)
    client = max(0.0, (large.cpu_seconds - small.cpu_seconds) / (SOME - FEW))
    one_round = max(FEW * client, longer.cpu_seconds - small.cpu_seconds)
    start = max(0.0, small.cpu_seconds - one_round)
    server, asked = one_round - FEW * client, participants(recipe)
    held = NUMBERS_KEPT * 8 * recipe.public.samples * max(0, asked - SOME)
    return RunCost(start + recipe.rounds * (server + asked * client), large.memory + held)


def _trial(recipe: Recipe, asked: int, rounds: int) -> RunCost:
    """The cost of a short run with so many participants, in a process of its own."""
    fraction = min(1.0, asked / recipe.clients)
    changes = [f"rounds={rounds}", f"participation.fraction={fraction}", "participation.closing=sample"]
    settings = json.dumps(Recipe.load(recipe, changes).settings())
    begin, memory = _ended_cpu_seconds(), 0.0
    with tempfile.TemporaryDirectory(prefix="trustmix-plan-") as folder, tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-P", "-c", f"import {__name__} as trial; trial.main()", settings, f"{folder}/run"]
        trial = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)  # noqa: S603 - this interpreter
        try:
            while trial.poll() is None:
                memory = max(memory, memory_of_processes(trial.pid))
                time.sleep(LOOK_EVERY)
        finally:
            trial.kill()
            trial.wait()
        if trial.returncode:
            errors.seek(0)
            reason = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise TrustmixError(f"A trial run with {asked} participants failed: {reason}")
    return RunCost(_ended_cpu_seconds() - begin, memory)


def main() -> None:
    """The process of a trial run; its arguments are the settings as JSON and the run directory."""
    settings, folder = sys.argv[1:]
    try:
        run(json.loads(settings), out=folder)
    except TrustmixError as error:
        sys.exit(str(error))


def _ended_cpu_seconds() -> float:
    """CPU time of all processes of this one that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def memory_of_processes(root: int) -> float:
    """The resident memory of a process and of its workers; pages that they share count in each of them.

    Parameters
    ----------
    root : int
        The id of the process.

    Returns
    -------
    float
        Bytes; 0 if the process has ended.

    Examples
    --------
    >>> memory_of_processes(os.getpid()) > 10e6
    True
    """
    try:
        own = psutil.Process(root)
        return float(sum(process.memory_info().rss for process in [own, *own.children(recursive=True)]))
    except psutil.Error:  # one of them has just ended
        return 0.0

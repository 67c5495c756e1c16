"""The order of a sweep's runs, their processes and the time they may take.

One seed of every combination comes before the second seed of any, and runs that begin with the same first private stage
follow each other: the first of them plays it, the others wait for it and begin from it.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from trustmix.engines.local import cores
from trustmix.errors import StorageError
from trustmix.experiment.first_stage import first_stage_key
from trustmix.experiment.run_directory import RunDirectory
from trustmix.sweeps.grid import SweepRun
from trustmix.sweeps.tables import best_of

POLL_INTERVAL = 0.05
"""Seconds between two checks of the processes."""


@dataclass(frozen=True)
class RunOutcome:
    """The end of a run.

    Parameters
    ----------
    run : SweepRun
        The run.
    seconds : float
        The time that its process took.
    accuracy : float, optional
        The accuracy of the best round, a fraction; None if the run failed.
    reason : str, optional
        The reason of a failure; None if the run is finished.
    """

    run: SweepRun
    seconds: float
    accuracy: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class SweepProgress:
    """The progress of a sweep when a run starts or ends.

    Parameters
    ----------
    done : int
        The number of runs that have ended, those of earlier calls included.
    total : int
        The number of all runs.
    running : sequence of SweepRun
        The runs that have a process now.
    ended : RunOutcome, optional
        The run that has just ended, if one has.
    """

    done: int
    total: int
    running: Sequence[SweepRun]
    ended: RunOutcome | None = None


SweepCallback: TypeAlias = Callable[[SweepProgress], None]
"""A function that `sweep` calls at the beginning and whenever a run starts or ends."""


def order_runs(runs: Sequence[SweepRun]) -> list[SweepRun]:
    """Sort runs by what they tell: all combinations of a seed first, those with the same first stage together.

    Parameters
    ----------
    runs : sequence of SweepRun
        The runs of a sweep.

    Returns
    -------
    list of SweepRun
        The same runs.

    Examples
    --------
    >>> from trustmix.sweeps.grid import expand_grid
    >>> runs = expand_grid("demo", {"rule": ["avg", "uwa"], "split.classes_per_client": [2, 3]}, seeds=2)
    >>> [str(run).replace("split.classes_per_client", "k") for run in order_runs(runs)][:5]
    ['rule=avg k=2 seed 0', 'rule=uwa k=2 seed 0', 'rule=avg k=3 seed 0', 'rule=uwa k=3 seed 0', 'rule=avg k=2 seed 1']
    """
    seeds = list(dict.fromkeys(run.seed for run in runs))
    groups = list(dict.fromkeys(map(_group, runs)))
    return sorted(runs, key=lambda run: (seeds.index(run.seed), groups.index(_group(run))))


def _group(run: SweepRun) -> str:
    """What the run has in common with others that begin with the same first stage."""
    return first_stage_key(run.recipe) or run.name


def run_all(
    folder: Path, runs: Sequence[SweepRun], jobs: int, watch: SweepCallback, seconds: float | None = None
) -> Generator[RunOutcome, None, None]:
    """Run what is not finished, several runs in parallel.

    Parameters
    ----------
    folder : Path
        The directory of the sweep.
    runs : sequence of SweepRun
        All runs of the sweep.
    jobs : int
        The number of runs in parallel.
    watch : callable
        Called with a `SweepProgress` at the beginning and whenever a run starts or ends.
    seconds : float, optional
        The time for all runs; when it is over, runs that have a process are stopped, and can be resumed.

    Yields
    ------
    RunOutcome
        The end of each run that has ended.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    waiting = [run for run in order_runs(runs) if not RunDirectory(folder / run.name).finished]
    done, running = len(runs) - len(waiting), list[_Process]()
    watch(SweepProgress(done, len(runs), []))
    try:
        while (waiting or running) and (deadline is None or time.monotonic() < deadline):
            while len(running) < jobs and (found := _next_run(waiting, running)) is not None:
                waiting.remove(found)
                running.append(_Process(folder, found, max(1, cores() // jobs)))
                watch(SweepProgress(done, len(runs), [process.run for process in running]))
            finished = [process for process in running if process.ended]
            for process in finished:
                running.remove(process)
                done, ended = done + 1, process.result()
                watch(SweepProgress(done, len(runs), [process.run for process in running], ended))
                yield ended
                _remove_first_stage(folder, process.run, runs)
            if not finished:
                time.sleep(POLL_INTERVAL)
    finally:
        for process in running:
            process.kill()


def _next_run(waiting: Sequence[SweepRun], running: Sequence["_Process"]) -> SweepRun | None:
    """The next run to start: one whose first stage is not being played by another run at this time."""
    playing = {_group(process.run) for process in running if not process.past_first_stage}
    return next((run for run in waiting if _group(run) not in playing), None)


def first_stages_folder(sweep: Path, run: SweepRun) -> Path:
    """Return the folder of the first private stage that a run has in common with other runs of the sweep.

    Parameters
    ----------
    sweep : Path
        The directory of the sweep.
    run : SweepRun
        A run of the sweep.

    Returns
    -------
    Path
        The folder, which need not exist.
    """
    return sweep / "first-stages" / _group(run).replace("/", "_")


def _remove_first_stage(sweep: Path, run: SweepRun, runs: Sequence[SweepRun]) -> None:
    """Remove the shared stage of a run when all runs that begin with it are finished."""
    alike = [other for other in runs if _group(other) == _group(run)]
    if all(RunDirectory(sweep / other.name).finished for other in alike):
        shutil.rmtree(first_stages_folder(sweep, run), ignore_errors=True)


class _Process:
    """The process of a run; a log beside the run directory keeps its stderr until it has succeeded."""

    def __init__(self, sweep: Path, run: SweepRun, share: int) -> None:
        self.run, self._folder = run, sweep / run.name
        self._log = self._folder.with_name(self._folder.name + ".log")
        self._begin = time.monotonic()
        command = [
            sys.executable,
            "-P",  # a file of the current directory is no library, whatever its name
            "-m",
            "trustmix.sweeps.worker",
            str(sweep),
            run.name,
            str(share),
            str(os.getpid()),
            str(first_stages_folder(sweep, run)),
        ]
        environment = {"OMP_NUM_THREADS": str(share), **os.environ}
        try:
            self._log.parent.mkdir(exist_ok=True)
            with open(self._log, "wb") as log:
                self._process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log)  # noqa: S603
        except OSError as error:
            raise StorageError(f"Could not start {run}: {error.strerror}.") from error

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def past_first_stage(self) -> bool:
        """Whether the run has committed its first round, so that its first private stage is stored."""
        return (self._folder / "checkpoint" / "server.json").exists()

    def result(self) -> RunOutcome:
        """The outcome of a process that has ended."""
        seconds, code = time.monotonic() - self._begin, self._process.returncode
        if code != 0:
            return RunOutcome(self.run, seconds, reason=_reason(code, self._log.read_text("utf-8", "replace")))
        self._log.unlink()
        return RunOutcome(self.run, seconds, accuracy=best_of(RunDirectory(self._folder).summary()))

    def kill(self) -> None:
        """Kill the process; its run can be resumed."""
        self._process.kill()
        self._process.wait()


def _reason(code: int, log: str) -> str:
    r"""The reason of a failure: the signal that killed the process, or the last line of its log.

    >>> _reason(-15, ""), _reason(1, "Traceback ...\nValueError: boom\n\n")
    ('it was killed (SIGTERM)', 'ValueError: boom')
    """
    if code < 0:
        name = signal.Signals(-code).name
        hint = ", as the system does when memory runs out; fewer --jobs need less" if name == "SIGKILL" else ""
        return f"it was killed ({name}){hint}"
    lines = log.strip().splitlines()
    return lines[-1].strip() if lines else f"it ended with exit code {code}"

"""Many runs of one recipe: every combination of the swept values with every seed, and a table of the results.

Each run has an ordinary run directory, DIR/<cell>/seed-<n>, and a process of its own (`worker`): one that dies does
not affect the others. With J runs in parallel, each gets cores // J threads (by OMP_NUM_THREADS) and, if its recipe
does not set engine.workers, as many workers.
"""

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from trustmix import storage
from trustmix.engines.local import cores
from trustmix.errors import StorageError, TrustmixError
from trustmix.experiment.resources import max_parallel_jobs
from trustmix.experiment.run_directory import RunDirectory, ensure_empty, ensure_same_recipe
from trustmix.settings.recipe import Recipe
from trustmix.settings.toml_settings import parse_value, toml_value
from trustmix.sweeps.table_formats import cells_to_csv, runs_to_csv, to_latex, to_markdown
from trustmix.sweeps.tables import ResultTable, RunResult, best_of, format_value, pivot

SWEEP_FORMAT = 1
"""The version of sweep.json."""
POLL_INTERVAL = 0.05
"""Seconds between two checks of the processes."""
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


@dataclass(frozen=True)
class Sweep:
    """The result of a sweep.

    Parameters
    ----------
    folder : Path
        The directory of the sweep.
    over : mapping of str to sequence
        The swept settings and their values.
    results : sequence of RunResult
        The results of the finished runs.
    failed : mapping of str to str
        The reasons of the other runs, by the name of the run.
    """

    folder: Path
    over: Mapping[str, Sequence[object]]
    results: Sequence[RunResult]
    failed: Mapping[str, str]

    @property
    def table(self) -> ResultTable:
        """The results in the layout of the paper's tables."""
        return pivot(self.over, self.results)


def sweep(
    recipe: str | Path | Mapping[str, object] | Recipe,
    over: Mapping[str, Sequence[object]],
    seeds: int | Sequence[int],
    out: str | Path,
    overrides: Sequence[str] = (),
    jobs: int | None = None,
    watch: SweepCallback | None = None,
) -> Sweep:
    """Run a recipe with every combination of the swept values and every seed.

    A sweep in the directory `out` goes on: finished runs are kept, interrupted runs are resumed, failed runs are tried
    again, and values and seeds may be added. At the end the directory holds table.md, table.tex, table.csv (one line
    per combination) and runs.csv (one line per run).

    Parameters
    ----------
    recipe : str, Path, mapping or Recipe
        The name of a built-in recipe, a TOML file, settings by key, or a recipe.
    over : mapping of str to sequence
        The settings to sweep, each as section.key, and their values. The last one makes the columns of the table.
    seeds : int or sequence of int
        The seeds; a number n stands for 0 to n - 1.
    out : str or Path
        The directory of the sweep.
    overrides : sequence of str
        Changes of the recipe for all runs, each as "key=value".
    jobs : int, optional
        The number of runs in parallel; by default as many as cores and memory allow.
    watch : callable, optional
        Called with a `SweepProgress` at the beginning and whenever a run starts or ends.

    Returns
    -------
    Sweep
        The results of the finished runs, and the reasons of the failed ones.

    Raises
    ------
    TrustmixError
        If a recipe of the sweep is not valid, a value or a seed is given twice, or the directory holds something else.

    Examples
    --------
    >>> import tempfile
    >>> small = {"data": {"name": "digits"}, "clients": 5, "rounds": 1, "split": {"samples_per_client": 40}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = sweep(small, {"rule": ["suwa"]}, seeds=1, out=folder)
    >>> found.table.rows, found.table.values[0][0].n
    ([['sUWA']], 1)
    """
    folder, over = Path(out), {key: list(values) for key, values in over.items()}
    runs = expand_grid(recipe, over, seeds, overrides)
    if jobs is not None and jobs < 1:
        raise TrustmixError(f"A sweep needs at least one run at a time; jobs is {jobs}.")
    if any(not _finished(folder, run) for run in runs):
        fitting = max_parallel_jobs(run.recipe for run in runs)  # builds every model once, whatever `jobs` is
        jobs = jobs or fitting
    if not (folder / "sweep.json").exists():
        ensure_empty(folder)  # before a lock file is put into a directory of other files
    with storage.lock_directory(folder):
        _write_record(folder, over, runs)
        with closing(_run_all(folder, runs, min(jobs or 1, len(runs)), watch or (lambda _: None))) as outcomes:
            failed = {str(ended.run): ended.reason for ended in outcomes if ended.reason is not None}
        found = Sweep(folder, over, [_result(folder, run) for run in runs if _finished(folder, run)], failed)
        _write_tables(found)
    return found


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


def _write_record(folder: Path, over: Mapping[str, Sequence[object]], runs: Sequence[SweepRun]) -> None:
    """Write sweep.json; a sweep that is there already must be a part of this one."""
    file = folder / "sweep.json"
    if not file.exists():
        ensure_empty(folder)
    else:
        now = {run.name: run.recipe for run in runs}
        for name, begun in read_sweep_recipes(folder).items():
            if name not in now:
                raise TrustmixError(
                    f"{folder} holds a sweep with {name}, which this one leaves out; keep it in, or use another --out."
                )
            ensure_same_recipe(folder / name, Recipe.load(begun), now[name])
    recipes = {run.name: run.recipe.settings() for run in runs}
    seeds = list(dict.fromkeys(run.seed for run in runs))
    storage.write_json(file, {"format": SWEEP_FORMAT, "over": over, "seeds": seeds, "runs": recipes})


def read_sweep_recipes(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the recipes in the record of a sweep.

    Parameters
    ----------
    folder : Path
        The directory of the sweep, which holds a sweep.json.

    Returns
    -------
    dict
        The settings of every run by the name of its directory inside the sweep's.

    Raises
    ------
    TrustmixError
        If the file is no record of a sweep or is of a newer format.
    """
    file = folder / "sweep.json"
    recipes = storage.validate_record(storage.read_json(file), SWEEP_FORMAT, str(file)).get("runs")
    if not isinstance(recipes, dict):
        raise TrustmixError(f"{file} is no record of a sweep.")
    return recipes


def _finished(folder: Path, run: SweepRun) -> bool:
    return RunDirectory(folder / run.name).finished


def _result(folder: Path, run: SweepRun) -> RunResult:
    return RunResult(run.settings, run.seed, RunDirectory(folder / run.name).summary())


def _write_tables(found: Sweep) -> None:
    texts = {
        "table.md": to_markdown(found.table),
        "table.tex": to_latex(found.table),
        "table.csv": cells_to_csv(found.over, found.results),
        "runs.csv": runs_to_csv(found.over, found.results),
    }
    for name, text in texts.items():
        storage.write_bytes(found.folder / name, text.encode())


def _run_all(
    folder: Path, runs: Sequence[SweepRun], jobs: int, watch: SweepCallback
) -> Generator[RunOutcome, None, None]:
    """Run what is not finished, several runs in parallel, and yield the outcome of each."""
    waiting = [run for run in runs if not _finished(folder, run)]
    done, running = len(runs) - len(waiting), list[_Process]()
    watch(SweepProgress(done, len(runs), []))
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_Process(folder, waiting.pop(0), max(1, cores() // jobs)))
                watch(SweepProgress(done, len(runs), [process.run for process in running]))
            finished = [process for process in running if process.ended]
            for process in finished:
                running.remove(process)
                done, ended = done + 1, process.result()
                watch(SweepProgress(done, len(runs), [process.run for process in running], ended))
                yield ended
            if not finished:
                time.sleep(POLL_INTERVAL)
    finally:
        for process in running:
            process.kill()


class _Process:
    """The process of a run; a log beside the run directory keeps its stderr until it has succeeded."""

    def __init__(self, sweep: Path, run: SweepRun, share: int) -> None:
        self.run, self._folder = run, sweep / run.name
        self._log = self._folder.with_name(self._folder.name + ".log")
        self._begin = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "trustmix.sweeps.worker",
            str(sweep),
            run.name,
            str(share),
            str(os.getpid()),
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

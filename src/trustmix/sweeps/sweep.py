"""Many runs of one recipe: every combination of the swept values with every seed, and a table of the results.

Each run has an ordinary run directory, DIR/<cell>/seed-<n>, and a process of its own (`worker`): one that dies does
not affect the others. With J runs in parallel, each gets cores // J threads (by OMP_NUM_THREADS) and, if its recipe
does not set engine.workers, as many workers.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trustmix import records, storage
from trustmix.errors import TrustmixError
from trustmix.experiment.resources import max_parallel_jobs
from trustmix.experiment.run_directory import RunDirectory, ensure_empty, ensure_same_recipe
from trustmix.settings.recipe import Recipe
from trustmix.sweeps.grid import SweepRun, expand_grid
from trustmix.sweeps.schedule import SweepCallback, run_all
from trustmix.sweeps.table_formats import cells_to_csv, runs_to_csv, to_latex, to_markdown
from trustmix.sweeps.tables import ResultTable, RunResult, pivot

SWEEP_FORMAT = 1
"""The version of sweep.json."""


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
        The reasons of the runs that failed, by the name of the run.
    left : sequence of str
        The names of the runs that the time did not suffice for.
    """

    folder: Path
    over: Mapping[str, Sequence[object]]
    results: Sequence[RunResult]
    failed: Mapping[str, str]
    left: Sequence[str] = ()

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
    hours: float | None = None,
) -> Sweep:
    """Run a recipe with every combination of the swept values and every seed.

    A sweep in the directory `out` goes on: finished runs are kept, interrupted runs are resumed, failed runs are tried
    again, and values and seeds may be added. One seed of every combination is run before the second seed of any. Runs
    that differ only in what acts after the first private stage, such as the rule, play that stage once. At the end the
    directory holds table.md, table.tex, table.csv (one line per combination) and runs.csv (one line per run).

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
    hours : float, optional
        The time for this call; when it is over, no run is started and those under way are stopped. The next call
        goes on with them.

    Returns
    -------
    Sweep
        The results of the finished runs, the reasons of the failed ones, and the runs that are left.

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
    if hours is not None and not hours > 0:
        raise TrustmixError(f"The hours of a sweep must be more than 0; they are {hours:g}.")
    if any(not _finished(folder, run) for run in runs):
        fitting = max_parallel_jobs(run.recipe for run in runs)  # builds every model once, whatever `jobs` is
        jobs = jobs or fitting
    if not (folder / "sweep.json").exists():
        ensure_empty(folder)  # before a lock file is put into a directory of other files
    with storage.lock_directory(folder):
        _write_record(folder, over, runs)
        seconds = None if hours is None else 3600 * hours
        with closing(run_all(folder, runs, min(jobs or 1, len(runs)), watch or (lambda _: None), seconds)) as outcomes:
            failed = {str(ended.run): ended.reason for ended in outcomes if ended.reason is not None}
        finished = [run for run in runs if _finished(folder, run)]
        left = [str(run) for run in runs if run not in finished and str(run) not in failed]
        found = Sweep(folder, over, [_result(folder, run) for run in finished], failed, left)
        _write_tables(found)
    return found


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
    recipes = records.validate_record(storage.read_json(file), SWEEP_FORMAT, str(file)).get("runs")
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

"""Run and sweep directories as a study: their runs, grouped by task, method and seed.

Settings that are the same in all runs are in no name. Runs that differ in nothing but their seed are one cell.
"""

from collections.abc import Sequence
from pathlib import Path

from trustmix.errors import TrustmixError
from trustmix.experiment.run_directory import RunDirectory
from trustmix.federation import History
from trustmix.report.study import Cell, MethodLabel, Run, Study, Task, unique
from trustmix.settings.recipe import Recipe
from trustmix.sweeps.sweep import read_sweep_recipes
from trustmix.sweeps.tables import format_value, setting_label

TASK_SETTINGS = ("data", "split", "public", "clients")
"""Settings of the task begin with these words. All others belong to the method, except the ignored ones."""
IGNORED_SETTINGS = ("rule", "seed", "split.seed", "rounds", "engine", "theory")
"""Settings that make neither another task nor another method, and the rule, which names the method by itself."""


def load_study(folders: Sequence[Path]) -> Study:
    """Load the runs of run directories and of sweep directories.

    Parameters
    ----------
    folders : sequence of Path
        Run directories, sweep directories, or both.

    Returns
    -------
    Study
        Their runs, grouped by task, method and seed.

    Raises
    ------
    TrustmixError
        If a run directory has no finished round, or no run of a sweep has one.
    """
    runs: list[Run] = []
    missing: dict[str, str] = {}
    for folder in folders:
        if (folder / "sweep.json").is_file():
            finished, unfinished = _load_sweep(folder)
            runs += finished
            missing |= unfinished
        else:
            runs.append(_load_run(folder))
    if not runs:
        raise TrustmixError(f"{folders[0]} holds no finished round; give a run directory with a rounds.jsonl.")
    return Study(_group_runs(runs), missing)


def _load_run(folder: Path) -> Run:
    if not (folder / "rounds.jsonl").exists():
        raise TrustmixError(f"{folder} holds no finished round; give a run directory with a rounds.jsonl.")
    recipe = Recipe.load_stored(folder / "recipe.toml")
    history = History(RunDirectory(folder).rounds(), recipe.metric)
    if not history.rounds:
        raise TrustmixError(f"{folder} holds no finished round; give a run directory with a rounds.jsonl.")
    return Run(folder, recipe, history)


def _load_sweep(folder: Path) -> tuple[list[Run], dict[str, str]]:
    """Load the runs of a sweep that have finished a round, and the reasons why others have not."""
    runs, missing = [], {}
    for name in read_sweep_recipes(folder):
        if (folder / name / "rounds.jsonl").is_file() and RunDirectory(folder / name).rounds():
            runs.append(_load_run(folder / name))
            continue
        log = (folder / name).with_name(Path(name).name + ".log")
        lines = log.read_text("utf-8", "replace").strip().splitlines() if log.is_file() else []
        missing[name] = lines[-1].strip() if lines else "it has not finished a round"
    return runs, missing


def _group_runs(runs: Sequence[Run]) -> list[Cell]:
    """Group runs by task and method; where two of the same seed would meet, folders name the methods."""
    keys = _differing_settings(runs)
    tasks = [Task({key: run.settings.get(key) for key in keys if _is_task_setting(key)}) for run in runs]
    names = [_method_name(run, runs) for run in runs]
    cell_keys = [(str(list(task.settings.items())), name) for task, name in zip(tasks, names, strict=True)]
    seeds = [(run.recipe.seed, run.recipe.split.seed) for run in runs]
    places = list(zip(cell_keys, seeds, strict=True))
    repeated = {cell_key for cell_key, seed in places if places.count((cell_key, seed)) > 1}
    folders = _folder_names([run.folder for run in runs])
    cells: dict[tuple[str, MethodLabel], Cell] = {}
    for run, task, cell_key, folder in zip(runs, tasks, cell_keys, folders, strict=True):
        name = folder if cell_key in repeated else cell_key[1]
        method = MethodLabel(str(run.settings.get("rule", "tau")), name, run.colour)
        earlier = cells.get((cell_key[0], method))
        cells[cell_key[0], method] = Cell(task, method, [*(earlier.runs if earlier else ()), run])
    return list(cells.values())


def _differing_settings(runs: Sequence[Run]) -> list[str]:
    """Names of the settings that are not ignored and differ between runs."""
    keys = unique(key for run in runs for key in run.settings)
    compared = [key for key in keys if not any(key == out or key.startswith(out + ".") for out in IGNORED_SETTINGS)]
    return [key for key in compared if any(run.settings.get(key) != runs[0].settings.get(key) for run in runs)]


def _is_task_setting(key: str) -> bool:
    return key.partition(".")[0] in TASK_SETTINGS


def _method_name(run: Run, runs: Sequence[Run]) -> str:
    """The rule's name and the settings in which runs of the same rule differ."""
    rule = run.recipe.model_dump(mode="json")["rule"]
    name = run.label if isinstance(rule, str) else setting_label("rule", rule)
    keys = _differing_settings([other for other in runs if other.recipe.rule == run.recipe.rule])
    own = [key for key in keys if key in run.settings and not _is_task_setting(key)]
    return ", ".join([name, *(f"{key.rpartition('.')[2]} {format_value(run.settings[key])}" for key in own)])


def _folder_names(folders: Sequence[Path]) -> list[str]:
    """The last parts of paths where they all differ, otherwise the whole paths."""
    last = [folder.resolve().name for folder in folders]
    return last if len(set(last)) == len(last) else [str(folder) for folder in folders]

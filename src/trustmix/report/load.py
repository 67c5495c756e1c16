"""Runs to be shown together: found in run and sweep directories, and sorted into tasks, methods and seeds.

A task is what clients were given (data, split, public set), a method what was done about it (rule, codecs, training);
settings that are alike in all runs are in no name. Runs that differ in nothing but their seed are one cell.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trustmix.errors import TrustmixError
from trustmix.experiment.recipe import Recipe
from trustmix.experiment.run_directory import RunDirectory
from trustmix.experiment.sweep import read_sweep_recipes
from trustmix.experiment.tables import MeanStd, format_value, setting_label
from trustmix.federation import METHODS, History, Round, method_label

CLASSES, PRIVATE, PUBLIC = "split.classes_per_client", "split.samples_per_client", "public.samples"
"""The settings that the paper's figures go over."""

COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
"""A colour that a page may show; a summary is not trusted to hold nothing else."""

TASK = ("data", "split", "public", "clients")
"""Settings of the task begin with these; those of the method are all others but the ones left out."""
LEFT_OUT = ("rule", "seed", "split.seed", "rounds", "engine", "theory")
"""Settings that make neither another task nor another method, and the rule, which has a name of its own."""


@dataclass(frozen=True)
class Run:
    """One run directory."""

    folder: Path
    recipe: Recipe
    history: History

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The recipe's settings by dotted name."""
        return _flat(self.recipe.model_dump(mode="json", exclude_none=True))

    @cached_property
    def _summary(self) -> Mapping[str, Any]:
        record = RunDirectory(self.folder)
        return record.summary() if record.finished else {}

    @property
    def label(self) -> str:
        """What people call the run's method: from its summary, which also knows rules of the user's own."""
        return str(self._summary.get("label") or method_label(self.history.rounds[-1].method))

    @property
    def colour(self) -> int | str | None:
        """The method's place in the palette, or its own colour if that is one."""
        rule = self.history.rounds[-1].method
        known = METHODS.get(rule).colour if rule in METHODS else None
        found = self._summary.get("colour", known)
        return found if isinstance(found, int) or (isinstance(found, str) and COLOUR.fullmatch(found)) else None

    @property
    def last(self) -> Round:
        """Its last round."""
        return self.history.rounds[-1]


@dataclass(frozen=True)
class Method:
    """What is compared: a rule, and what else of the method differs between runs."""

    rule: str
    name: str
    colour: int | str | None = field(default=None, compare=False)
    """Its place in the palette, or a colour of its own; a free place if None."""

    @property
    def is_local(self) -> bool:
        """Whether clients train alone."""
        return not self.exchanges and not self.is_reference

    @property
    def is_reference(self) -> bool:
        """Whether one client has all data with labels."""
        return self.rule in METHODS and METHODS.get(self.rule).pooled_data

    @property
    def exchanges(self) -> bool:
        """Whether anything is exchanged; a rule that this installation does not know does."""
        return self.rule not in METHODS or METHODS.get(self.rule).exchanges != "nothing"


@dataclass(frozen=True)
class Task:
    """What clients were given, by the settings that differ between runs."""

    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The task for people to read.

        >>> Task({"split.classes_per_client": 2, "public.samples": 500}).name
        'k = 2, 500 public samples'
        """
        return ", ".join(_said(key, value) for key, value in self.settings.items())

    def without(self, *keys: str) -> "Task":
        """The task but for some settings."""
        return Task({key: value for key, value in self.settings.items() if key not in keys})


@dataclass(frozen=True)
class Cell:
    """The runs of one method on one task, one a seed."""

    task: Task
    method: Method
    runs: Sequence[Run]

    @property
    def best(self) -> MeanStd:
        """The best round's accuracy, over seeds."""
        return MeanStd.of(run.history.best_accuracy for run in self.runs)

    def last(self, name: str) -> MeanStd:
        """A figure of the last round, over seeds."""
        return MeanStd.of(getattr(run.last, name) for run in self.runs)


@dataclass(frozen=True)
class Study:
    """Everything a report is about."""

    cells: Sequence[Cell]
    missing: Mapping[str, str] = field(default_factory=dict)
    """Runs of a sweep without a finished round, and why."""

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for cell in self.cells for run in cell.runs]

    @property
    def tasks(self) -> list[Task]:
        """The tasks, in order."""
        return _once(cell.task for cell in self.cells)

    @property
    def methods(self) -> list[Method]:
        """The methods: alone first and the reference last, the others as they were given."""
        return sorted(
            _once(cell.method for cell in self.cells), key=lambda method: method.is_reference - method.is_local
        )

    def of(self, task: Task) -> list[Cell]:
        """The cells of a task, in the order of the methods."""
        order = self.methods
        return sorted((c for c in self.cells if c.task == task), key=lambda cell: order.index(cell.method))

    def values(self, key: str) -> list[Any]:
        """The values of a setting of the task that differs between runs; none where it does not."""
        found = _once(cell.task.settings[key] for cell in self.cells if key in cell.task.settings)
        return sorted(found) if all(isinstance(value, int | float) for value in found) else found


def load_study(folders: Sequence[Path]) -> Study:
    """The runs of run directories and of sweep directories."""
    runs: list[Run] = []
    missing: dict[str, str] = {}
    for folder in folders:
        if (folder / "sweep.json").is_file():
            found, lost = _sweep(folder)
            runs += found
            missing |= lost
        else:
            runs.append(_run(folder))
    if not runs:
        raise TrustmixError(f"{folders[0]} holds no finished round; give a run directory with a rounds.jsonl.")
    return Study(_cells(runs), missing)


def _run(folder: Path) -> Run:
    history = History(RunDirectory(folder).rounds())
    if not history.rounds:
        raise TrustmixError(f"{folder} holds no finished round; give a run directory with a rounds.jsonl.")
    return Run(folder, Recipe.load_stored(folder / "recipe.toml"), history)


def _sweep(folder: Path) -> tuple[list[Run], dict[str, str]]:
    """The runs of a sweep that have finished a round, and why others have not."""
    runs, missing = [], {}
    for name in read_sweep_recipes(folder):
        if (folder / name / "rounds.jsonl").is_file() and RunDirectory(folder / name).rounds():
            runs.append(_run(folder / name))
            continue
        log = (folder / name).with_name(Path(name).name + ".log")
        said = log.read_text("utf-8", "replace").strip().splitlines() if log.is_file() else []
        missing[name] = said[-1].strip() if said else "it has not finished a round"
    return runs, missing


def _cells(runs: Sequence[Run]) -> list[Cell]:
    """The runs by task, method and seed; runs that are alike in all of them go by the names of their folders."""
    differ = _differing(runs)
    tasks = [Task({key: run.settings.get(key) for key in differ if _is_task(key)}) for run in runs]
    names = [_method_name(run, [key for key in _differing(_alike(run, runs)) if not _is_task(key)]) for run in runs]
    places = [
        (tuple(map(str, task.settings.items())), name, run.recipe.seed, run.recipe.split.seed)
        for task, name, run in zip(tasks, names, runs, strict=True)
    ]
    folders = _told_apart([run.folder for run in runs])
    repeated = {place[:2] for place in places if places.count(place) > 1}
    cells: dict[Any, Cell] = {}
    for task, name, place, folder, run in zip(tasks, names, places, folders, runs, strict=True):
        rule = str(run.settings["rule"]) if "rule" in run.settings else "tau"
        method = Method(rule, folder if place[:2] in repeated else name, run.colour)
        key = (place[0], method)
        before = cells[key].runs if key in cells else ()
        cells[key] = Cell(task, method, [*before, run])
    return list(cells.values())


def _differing(runs: Sequence[Run]) -> list[str]:
    """Names of the settings that count and differ between runs."""
    keys = _once(key for run in runs for key in run.settings)
    counting = [key for key in keys if not any(key == out or key.startswith(out + ".") for out in LEFT_OUT)]
    return [key for key in counting if any(run.settings.get(key) != runs[0].settings.get(key) for run in runs)]


def _alike(run: Run, runs: Sequence[Run]) -> list[Run]:
    """The runs of the same rule: what only goes with the rule needs no other name than the rule's."""
    return [other for other in runs if other.recipe.rule == run.recipe.rule]


def _is_task(key: str) -> bool:
    return key.partition(".")[0] in TASK


def _method_name(run: Run, keys: Sequence[str]) -> str:
    rule = run.recipe.model_dump(mode="json")["rule"]
    name = run.label if isinstance(rule, str) else setting_label("rule", rule)
    others = [f"{key.rpartition('.')[2]} {format_value(run.settings[key])}" for key in keys if key in run.settings]
    return ", ".join([name, *others])


def _said(key: str, value: Any) -> str:
    """One setting of a task for people to read."""
    words = {
        CLASSES: "k = {}",
        PRIVATE: "{} private samples",
        PUBLIC: "{} public samples",
        "clients": "{} clients",
        "data.name": "{}",
        "split.kind": "{}",
        "split.alpha": "α = {}",
    }
    if value is None:
        return f"no {key}"
    return words.get(key, key.rpartition(".")[2] + " = {}").format(format_value(value))


def _told_apart(folders: Sequence[Path]) -> list[str]:
    """Folders by their last names, where those are all different, else by all of theirs."""
    last = [folder.resolve().name for folder in folders]
    return last if len(set(last)) == len(last) else [str(folder) for folder in folders]


def _flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _once(values: Any) -> list[Any]:
    """The values, each once, in order; they need not be hashable."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found

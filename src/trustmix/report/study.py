"""The runs of one report, grouped: a study consists of cells, a cell is one method on one task with all its seeds.

A task is what clients are given (data, split, public set). A method is how they learn (rule, codecs, training).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from trustmix.experiment.run_directory import RunDirectory
from trustmix.federation import METHODS, History, Round, method_label
from trustmix.report.paired import PairedDifference
from trustmix.settings.recipe import Recipe
from trustmix.sweeps.tables import MeanStd, format_value

T = TypeVar("T")

CLASSES, PRIVATE, PUBLIC = "split.classes_per_client", "split.samples_per_client", "public.samples"
"""The settings on the axes of the paper's figures."""
COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
"""The form of a colour that a summary may bring into a page."""
SETTING_FORMATS = {
    CLASSES: "k = {}",
    PRIVATE: "{} private samples",
    PUBLIC: "{} public samples",
    "clients": "{} clients",
    "data.name": "{}",
    "split.kind": "{}",
    "split.alpha": "α = {}",
}
"""Settings of a task for people to read; other settings are written as name = value."""


@dataclass(frozen=True)
class Run:
    """One run directory with at least one finished round."""

    folder: Path
    recipe: Recipe
    history: History

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The recipe's settings by dotted name."""
        return _flatten(self.recipe.model_dump(mode="json", exclude_none=True))

    @cached_property
    def _summary(self) -> Mapping[str, Any]:
        record = RunDirectory(self.folder)
        return record.summary() if record.finished else {}

    @property
    def has_own_data(self) -> bool:
        """Whether the run was served to nodes with data of their own, which no split of the recipe describes."""
        served = self.recipe.engine.name == "flower"
        return served and (self.recipe.data.name == "shared" or any(line.own_test for line in self.history.rounds))

    @property
    def label(self) -> str:
        """The method's label: that of the run's summary, which includes rules of the user's own."""
        return str(self._summary.get("label") or method_label(self.last_round.method))

    @property
    def colour(self) -> int | str | None:
        """The method's index in the palette, or its own colour if the summary has a valid one."""
        rule = self.last_round.method
        registered = METHODS.get(rule).colour if rule in METHODS else None
        found = self._summary.get("colour", registered)
        return found if isinstance(found, int) or (isinstance(found, str) and COLOUR.fullmatch(found)) else None

    @property
    def last_round(self) -> Round:
        """The last finished round."""
        return self.history.rounds[-1]


@dataclass(frozen=True)
class MethodLabel:
    """The label of a series: a rule, and a name that includes the other settings in which methods differ."""

    rule: str
    name: str
    colour: int | str | None = field(default=None, compare=False)
    """An index in the palette, or a colour of the method's own; None for any free colour."""

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
        """Whether clients exchange anything; rules that are not registered here do."""
        return self.rule not in METHODS or METHODS.get(self.rule).exchanges != "nothing"


@dataclass(frozen=True)
class Task:
    """What clients are given, by the settings that differ between runs."""

    settings: Mapping[str, Any]
    """Values by dotted name, as TOML knows them; None where a run does not have the setting."""

    @property
    def name(self) -> str:
        """The task for people to read.

        >>> Task({"split.classes_per_client": 2, "public.samples": 500}).name
        'k = 2, 500 public samples'
        """
        return ", ".join(_format_setting(key, value) for key, value in self.settings.items())

    def without(self, *keys: str) -> "Task":
        """Copy the task without some settings.

        Parameters
        ----------
        keys : str
            Dotted names of the settings to leave out.

        Returns
        -------
        Task
            The task with the other settings.
        """
        return Task({key: value for key, value in self.settings.items() if key not in keys})


@dataclass(frozen=True)
class Cell:
    """The runs of one method on one task, one run per seed."""

    task: Task
    method: MethodLabel
    runs: Sequence[Run]

    @property
    def best_accuracy(self) -> MeanStd:
        """The accuracy of the best round, over seeds; with `metric` in the recipe, that metric."""
        return MeanStd.of(run.history.best for run in self.runs)

    @property
    def metric(self) -> str:
        """What people call the metric that runs are compared by."""
        return self.runs[0].history.label

    def difference(self, other: "Cell") -> PairedDifference | None:
        """Compare the accuracy of the best round with that of another method, seed by seed.

        Parameters
        ----------
        other : Cell
            Another method on the same task.

        Returns
        -------
        PairedDifference or None
            This method minus the other; None where they have no seed in common.
        """
        ours, theirs = (
            {run.recipe.seed: best for run in cell.runs if (best := run.history.best) is not None}
            for cell in (self, other)
        )
        seeds = [seed for seed in ours if seed in theirs]
        return PairedDifference.of([ours[s] for s in seeds], [theirs[s] for s in seeds]) if seeds else None

    def final(self, name: str) -> MeanStd:
        """Compute a statistic of the last round.

        Parameters
        ----------
        name : str
            A field of `Round`.

        Returns
        -------
        MeanStd
            The field's mean and standard deviation over seeds.
        """
        return MeanStd.of(getattr(run.last_round, name) for run in self.runs)


@dataclass(frozen=True)
class Study:
    """All runs of one report."""

    cells: Sequence[Cell]
    missing: Mapping[str, str] = field(default_factory=dict)
    """Runs of a sweep without a finished round, and the reason of each."""

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for cell in self.cells for run in cell.runs]

    @property
    def tasks(self) -> list[Task]:
        """The tasks, in the order of the cells."""
        return unique(cell.task for cell in self.cells)

    @property
    def methods(self) -> list[MethodLabel]:
        """The methods: local training first, the centralized reference last, the others in the order of the cells."""
        methods = unique(cell.method for cell in self.cells)
        return sorted(methods, key=lambda method: method.is_reference - method.is_local)

    def cells_of(self, task: Task) -> list[Cell]:
        """Select the cells of a task.

        Parameters
        ----------
        task : Task
            One of `tasks`.

        Returns
        -------
        list of Cell
            The task's cells, in the order of `methods`.
        """
        order = self.methods
        return sorted((c for c in self.cells if c.task == task), key=lambda cell: order.index(cell.method))

    def task_values(self, key: str) -> list[Any]:
        """Collect the values of a setting of the task.

        Parameters
        ----------
        key : str
            The setting's dotted name.

        Returns
        -------
        list
            Each value once, numbers in ascending order; empty where the setting is the same in all runs.
        """
        found = unique(cell.task.settings[key] for cell in self.cells if key in cell.task.settings)
        return sorted(found) if all(isinstance(value, int | float) for value in found) else found


def _format_setting(key: str, value: Any) -> str:
    """One setting of a task for people to read."""
    if value is None:
        return f"no {key}"
    if key in SETTING_FORMATS:
        return SETTING_FORMATS[key].format(format_value(value))
    return f"{key.rpartition('.')[2]} = {format_value(value)}"


def _flatten(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, Mapping):
            found |= _flatten(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def unique(values: Iterable[T]) -> list[T]:
    """Remove repeated values.

    Parameters
    ----------
    values : iterable
        Values that need not be hashable.

    Returns
    -------
    list
        Each value once, in order of first appearance.

    Examples
    --------
    >>> unique([[2], [1], [2]])
    [[2], [1]]
    """
    found: list[T] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found

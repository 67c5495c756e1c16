"""Tables of a page: the best accuracy of every method on every task, and what each method reaches and costs on one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trustmix.report.charts import format_significant
from trustmix.report.study import PRIVATE, PUBLIC, Cell, MethodLabel, Study
from trustmix.sweeps.tables import MeanStd

MAX_TASKS = 12
"""The largest number of tasks in the overview."""
UNKNOWN = "–"


@dataclass(frozen=True)
class TableField:
    """One field of a table."""

    text: str
    deviation: str = ""
    best: bool = False


@dataclass(frozen=True)
class MethodTable:
    """A table with a row per method: the content of the template method_table.html."""

    corner: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, int, Sequence[TableField]]]
    """Of each method its name, its index in the palette and its fields."""
    task: int | None = None
    """The index of the table's task; None where it is about all tasks."""


def overview_table(study: Study, colours: Mapping[MethodLabel, int]) -> MethodTable | None:
    """Tabulate the best accuracy of every method on every task.

    Parameters
    ----------
    study : Study
        The runs.
    colours : mapping of MethodLabel to int
        Each method's index in the palette.

    Returns
    -------
    MethodTable or None
        None where the table would be too wide, or where a heat map shows the same.
    """
    if len(study.tasks) > MAX_TASKS or (study.task_values(PUBLIC) and study.task_values(PRIVATE)):
        return None
    by_task = [{cell.method: cell.best_accuracy for cell in study.cells_of(task)} for task in study.tasks]
    largest = [_largest_accuracy(study.cells_of(task)) for task in study.tasks]
    rows = []
    for method in study.methods:
        values = [found.get(method, MeanStd.of([])) for found in by_task]
        fields = [_percent(value, best=value.mean == top) for value, top in zip(values, largest, strict=True)]
        rows.append((method.name, colours[method], fields))
    return MethodTable("best accuracy, %", [task.name for task in study.tasks], rows)


def task_table(study: Study, index: int, colours: Mapping[MethodLabel, int]) -> MethodTable:
    """Tabulate what the methods reach on one task, and what that costs.

    Parameters
    ----------
    study : Study
        The runs.
    index : int
        The task's index in `study.tasks`.
    colours : mapping of MethodLabel to int
        Each method's index in the palette.

    Returns
    -------
    MethodTable
        A table with the columns in which something is known.
    """
    task = study.tasks[index]
    cells = study.cells_of(task)
    columns = {name: fields for name, fields in _columns(cells).items() if any(_is_known(field) for field in fields)}
    rows = [
        (cell.method.name, colours[cell.method], [fields[row] for fields in columns.values()])
        for row, cell in enumerate(cells)
    ]
    return MethodTable(task.name or "method", list(columns), rows, index)


def _columns(cells: Sequence[Cell]) -> dict[str, list[TableField]]:
    """All columns of a task's table by their headings."""
    top = _largest_accuracy(cells) if len(cells) > 1 else None
    codecs = [f"{cell.runs[0].recipe.wire.up} / {cell.runs[0].recipe.wire.down}" for cell in cells]
    usual = set(codecs) == {"float32 / float32"}
    return {
        f"best {cells[0].metric}, %": [
            _percent(cell.best_accuracy, best=cell.best_accuracy.mean == top) for cell in cells
        ],
        "over AVG": [_over_average(cell, cells) for cell in cells],
        "in round": [TableField(_best_rounds(cell)) for cell in cells],
        "final, %": [_percent(cell.final(f"{cell.runs[0].history.metric}_mean")) for cell in cells],
        "balanced, %": [_percent(cell.final("balanced_accuracy_mean")) for cell in cells],
        "macro F1, %": [_percent(cell.final("macro_f1_mean")) for cell in cells],
        "AUROC, %": [_percent(cell.final("auroc_mean")) for cell in cells],
        "own classes, %": [_percent(cell.final("local_accuracy_mean")) for cell in cells],
        "teacher, %": [_percent(cell.final("teacher_accuracy")) for cell in cells],
        "agreement, %": [_percent(cell.final("agreement_mean")) for cell in cells],
        "ECE, %": [_percent(cell.final("ece_mean")) for cell in cells],
        "MB up": [TableField(_megabytes(cell, "bytes_up")) for cell in cells],
        "MB down": [TableField(_megabytes(cell, "bytes_down")) for cell in cells],
        "codec up / down": [TableField(UNKNOWN if usual else codec) for codec in codecs],
    }


def _over_average(cell: Cell, cells: Sequence[Cell]) -> TableField:
    """The difference to plain averaging in points, paired by seed, with its 95 % interval."""
    average = next((other for other in cells if other.method.rule == "avg"), None)
    difference = None if average is None or average is cell else cell.difference(average)
    if difference is None:
        return TableField(UNKNOWN)
    interval = difference.interval
    ends = "" if interval is None else f"[{100 * interval[0]:+.1f}, {100 * interval[1]:+.1f}]"
    return TableField(f"{100 * difference.mean:+.1f}", ends)


def _is_known(field: TableField) -> bool:
    return field.text not in (UNKNOWN, "0")


def _largest_accuracy(cells: Sequence[Cell]) -> float | None:
    """The largest accuracy; the centralized reference does not compete."""
    known = [
        cell.best_accuracy.mean
        for cell in cells
        if not cell.method.is_reference and cell.best_accuracy.mean is not None
    ]
    return max(known, default=None)


def _percent(value: MeanStd, *, best: bool = False) -> TableField:
    if value.mean is None:
        return TableField(UNKNOWN)
    deviation = "" if value.std is None else f"± {100 * value.std:.1f}"
    return TableField(f"{100 * value.mean:.1f}", deviation, best)


def _best_rounds(cell: Cell) -> str:
    """The round of the best accuracy, or the range of these rounds over seeds."""
    numbers = sorted({run.history.best_round for run in cell.runs if run.history.best_round is not None})
    if not numbers:
        return UNKNOWN
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"


def _megabytes(cell: Cell, name: str) -> str:
    mean = MeanStd.of(sum(getattr(line, name) for line in run.history.rounds) for run in cell.runs).mean or 0
    return format_significant(mean / 1e6)

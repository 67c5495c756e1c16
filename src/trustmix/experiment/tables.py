"""Results of many runs as tables in the layout of a paper: Markdown, LaTeX, CSV, and for the terminal.

The last swept setting makes the columns, the others the rows; a cell is the mean of the best accuracy over seeds, with
its standard deviation (n - 1), in per cent. The best of every column is bold.
"""

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from trustmix.experiment.toml_settings import toml_value
from trustmix.federation import method_label

if TYPE_CHECKING:
    from rich.table import Table

SUMMARY = (
    "best_accuracy",
    "best_round",
    "final_accuracy",
    "final_local_accuracy",
    "bytes_up",
    "bytes_down",
    "seconds",
    "failures",
)
"""What runs.csv tells of a run, by the names of summary.json."""


@dataclass(frozen=True)
class Result:
    """What came out of one run."""

    settings: Mapping[str, Any]
    """Its value of every swept setting."""
    seed: int
    summary: Mapping[str, Any]
    """Its summary.json."""


@dataclass(frozen=True)
class MeanStd:
    """Mean and standard deviation over seeds; without a value there is no mean, without a second no deviation.

    >>> MeanStd.of([0.5, 0.75])
    MeanStd(mean=0.625, std=0.1767766952966369, n=2)
    """

    mean: float | None
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "MeanStd":
        """The figure of the values that are known."""
        known = [value for value in values if value is not None]
        mean = statistics.fmean(known) if known else None
        return cls(mean, statistics.stdev(known) if len(known) > 1 else None, len(known))

    def percent(self, plus_minus: str = "±") -> str:
        """The figure as a table shows it.

        >>> MeanStd(0.6, 0.1414, 2).percent()
        '60.0 ± 14.1'
        """
        if self.mean is None:
            return "-"
        spread = "" if self.std is None else f" {plus_minus} {100 * self.std:.1f}"
        return f"{100 * self.mean:.1f}{spread}"


@dataclass(frozen=True)
class ResultTable:
    """A table before it has a format; all of it is text but the figures."""

    heads: Sequence[str]
    """The settings of the rows."""
    key: str | None
    """The setting of the columns; with one swept setting there is none, and one column."""
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: Sequence[Sequence[MeanStd]]
    """By row and column."""

    @property
    def best(self) -> list[float | None]:
        """The largest mean of every column; none where there is only one row and nothing to compare."""
        if len(self.rows) < 2:
            return [None] * len(self.columns)
        columns = zip(*self.figures, strict=True)
        return [max((f.mean for f in column if f.mean is not None), default=None) for column in columns]

    def is_best(self, row: int, column: int) -> bool:
        """Whether the figure is its column's best."""
        mean = self.figures[row][column].mean
        return mean is not None and mean == self.best[column]

    @property
    def caption(self) -> str:
        """What the figures are."""
        counts = sorted({figure.n for row in self.figures for figure in row if figure.n})
        what = "Accuracy of the best round in per cent"
        if not counts or counts[-1] == 1:
            return f"{what}."
        seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        return f"{what}, mean ± standard deviation over {seeds} seeds."


def pivot(over: Mapping[str, Sequence[Any]], results: Sequence[Result]) -> ResultTable:
    """The table of these results: a row for every combination of all swept settings but the last."""
    keys = list(over)
    outer, inner = (keys[:-1], keys[-1:]) if len(keys) > 1 else (keys, [])
    short = _short(keys)
    rows, columns = (list(product(*(over[key] for key in part))) for part in (outer, inner))
    figures = [
        [
            MeanStd.of(r.summary["best_accuracy"] for r in _of(dict(zip(keys, (*row, *column), strict=True)), results))
            for column in columns
        ]
        for row in rows
    ]
    return ResultTable(
        heads=[short[key] for key in outer],
        key=short[inner[0]] if inner else None,
        columns=[label(inner[0], value) for (value,) in columns] if inner else ["accuracy"],
        rows=[[label(key, value) for key, value in zip(outer, row, strict=True)] for row in rows],
        figures=figures,
    )


def _of(settings: Mapping[str, Any], results: Sequence[Result]) -> list[Result]:
    return [result for result in results if result.settings == settings]


def _short(keys: Sequence[str]) -> dict[str, str]:
    """Keys without their section, where that leaves no two alike."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)}


def label(key: str, value: Any) -> str:
    """A swept value for people to read, rules by the paper's names.

    >>> label("rule", "suwa"), label("rule", {"tau": 0.4}), label("model.hidden", [64, 32])
    ('sUWA', 'tau=0.4', '[64, 32]')
    """
    if key == "rule" and isinstance(value, str):
        return method_label(value)
    return format_value(value)


def format_value(value: Any) -> str:
    """A swept value as it would be typed, a table without its braces.

    >>> format_value("suwa"), format_value(True), format_value({"tau": 0.4})
    ('suwa', 'true', 'tau=0.4')
    """
    if isinstance(value, Mapping):
        return ",".join(f"{key}={format_value(entry)}" for key, entry in value.items())
    return value if isinstance(value, str) else toml_value(value)


def markdown(table: ResultTable) -> str:
    """The table in Markdown, its caption below."""
    heads = [*table.heads, *_column_names(table)]
    rule = ["---"] * len(table.heads) + ["---:"] * len(table.columns)
    lines = [heads, rule]
    for i, row in enumerate(table.rows):
        texts = [figure.percent() for figure in table.figures[i]]
        lines.append([*row, *(f"**{text}**" if table.is_best(i, j) else text for j, text in enumerate(texts))])
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped) + f"\n{table.caption}\n"


def _column_names(table: ResultTable) -> list[str]:
    """Headings that stand by themselves; the names of rules need no key."""
    return [name if table.key in (None, "rule") else f"{table.key}={name}" for name in table.columns]


def latex(table: ResultTable) -> str:
    """The table as a LaTeX tabular for the package booktabs."""
    first, count = len(table.heads) + 1, len(table.columns)
    lines = [f"% {table.caption.replace('±', '+-')} Needs booktabs."]
    lines += [rf"\begin{{tabular}}{{{'l' * len(table.heads)}{'r' * count}}}", r"\toprule"]
    if table.key is not None:
        over = rf"\multicolumn{{{count}}}{{c}}{{{_escaped(table.key)}}}"
        lines += ["& " * len(table.heads) + over + r" \\", rf"\cmidrule(lr){{{first}-{first + count - 1}}}"]
    lines += [_latex_line([_escaped(name) for name in [*table.heads, *table.columns]]), r"\midrule"]
    for i, row in enumerate(table.rows):
        texts = [figure.percent(r"$\pm$") for figure in table.figures[i]]
        cells = [rf"\textbf{{{text}}}" if table.is_best(i, j) else text for j, text in enumerate(texts)]
        lines.append(_latex_line([*map(_escaped, row), *cells]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escaped(text: str) -> str:
    r"""The text with what LaTeX would take for commands made harmless.

    >>> print(_escaped("classes_per_client"))
    classes\_per\_client
    """
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)


def terminal(table: ResultTable) -> "Table":
    """The table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(caption=table.caption)
    for name in table.heads:
        shown.add_column(Text(name))
    for name in _column_names(table):
        shown.add_column(Text(name), justify="right")
    for i, row in enumerate(table.rows):
        figures = [
            Text(figure.percent(), style="bold" if table.is_best(i, j) else "")
            for j, figure in enumerate(table.figures[i])
        ]
        shown.add_row(*map(Text, row), *figures)
    return shown


def cells_csv(over: Mapping[str, Sequence[Any]], results: Sequence[Result]) -> str:
    """A line a cell: its settings, mean, standard deviation and number of seeds; accuracies are fractions."""
    lines: list[list[Any]] = [[*over, "accuracy_mean", "accuracy_std", "n", "final_local_accuracy_mean"]]
    for values in product(*over.values()):
        found = _of(dict(zip(over, values, strict=True)), results)
        accuracy = MeanStd.of(result.summary["best_accuracy"] for result in found)
        own = MeanStd.of(result.summary["final_local_accuracy"] for result in found)
        lines.append([*map(format_value, values), accuracy.mean, accuracy.std, accuracy.n, own.mean])
    return _csv(lines)


def runs_csv(over: Mapping[str, Sequence[Any]], results: Sequence[Result]) -> str:
    """A line a run: its settings, its seed and the figures of its summary."""
    lines: list[list[Any]] = [[*over, "seed", *SUMMARY]]
    for result in results:
        values = [format_value(result.settings[key]) for key in over]
        lines.append([*values, result.seed, *(result.summary.get(name) for name in SUMMARY)])
    return _csv(lines)


def _csv(lines: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()

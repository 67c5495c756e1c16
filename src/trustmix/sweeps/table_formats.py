"""Tables of results as Markdown, as LaTeX, as CSV and for a terminal."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from trustmix.sweeps.tables import MeanStd, ResultTable, RunResult, format_value, select_results

if TYPE_CHECKING:
    from rich.table import Table

SUMMARY_FIELDS = (
    "best_accuracy",
    "best_round",
    "final_accuracy",
    "final_local_accuracy",
    "bytes_up",
    "bytes_down",
    "seconds",
    "failures",
    "metric",
    "best",
)
"""The columns of runs.csv after settings and seed, by their names in summary.json."""


def to_markdown(table: ResultTable) -> str:
    """Write a table in Markdown.

    Parameters
    ----------
    table : ResultTable
        The table.

    Returns
    -------
    str
        A Markdown table in which the best of every column is bold, and its caption below.

    Examples
    --------
    >>> print(to_markdown(ResultTable(["rule"], None, ["accuracy"], [["AVG"]], [[MeanStd(0.5, None, 1)]])))
    | rule | accuracy |
    | --- | ---: |
    | AVG | 50.0 |
    <BLANKLINE>
    Accuracy of the best round in per cent.
    <BLANKLINE>
    """
    heads = [*table.row_keys, *_column_names(table)]
    alignment = ["---"] * len(table.row_keys) + ["---:"] * len(table.columns)
    lines = [heads, alignment]
    for i, row in enumerate(table.rows):
        texts = [value.percent() for value in table.values[i]]
        lines.append([*row, *(f"**{text}**" if table.is_best(i, j) else text for j, text in enumerate(texts))])
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped) + f"\n{table.caption}\n"


def _column_names(table: ResultTable) -> list[str]:
    """Headings that are understood without the column key; the names of rules need no key."""
    return [name if table.column_key in (None, "rule") else f"{table.column_key}={name}" for name in table.columns]


def to_latex(table: ResultTable) -> str:
    r"""Write a table in LaTeX.

    Parameters
    ----------
    table : ResultTable
        The table.

    Returns
    -------
    str
        A tabular for the package booktabs, with the caption in a comment above it.

    Examples
    --------
    >>> table = ResultTable(["rule"], None, ["accuracy"], [["AVG"]], [[MeanStd(0.5, None, 1)]])
    >>> to_latex(table).splitlines()[3:6]
    ['rule & accuracy \\\\', '\\midrule', 'AVG & 50.0 \\\\']
    """
    first, count = len(table.row_keys) + 1, len(table.columns)
    lines = [f"% {table.caption.replace('±', '+-')} Needs booktabs."]
    lines += [rf"\begin{{tabular}}{{{'l' * len(table.row_keys)}{'r' * count}}}", r"\toprule"]
    if table.column_key is not None:
        over = rf"\multicolumn{{{count}}}{{c}}{{{_escape_latex(table.column_key)}}}"
        lines += ["& " * len(table.row_keys) + over + r" \\", rf"\cmidrule(lr){{{first}-{first + count - 1}}}"]
    lines += [_latex_line([_escape_latex(name) for name in [*table.row_keys, *table.columns]]), r"\midrule"]
    for i, row in enumerate(table.rows):
        texts = [value.percent(r"$\pm$") for value in table.values[i]]
        cells = [rf"\textbf{{{text}}}" if table.is_best(i, j) else text for j, text in enumerate(texts)]
        lines.append(_latex_line([*map(_escape_latex, row), *cells]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escape_latex(text: str) -> str:
    r"""Escape the characters that have a meaning in LaTeX.

    >>> print(_escape_latex("classes_per_client"))
    classes\_per\_client
    """
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)


def to_rich_table(table: ResultTable) -> "Table":
    """Convert a table for a terminal.

    Parameters
    ----------
    table : ResultTable
        The table.

    Returns
    -------
    rich.table.Table
        A table that a rich console prints.
    """
    from rich.table import Table
    from rich.text import Text

    found = Table(caption=table.caption)
    for name in table.row_keys:
        found.add_column(Text(name))
    for name in _column_names(table):
        found.add_column(Text(name), justify="right")
    for i, row in enumerate(table.rows):
        values = [
            Text(value.percent(), style="bold" if table.is_best(i, j) else "")
            for j, value in enumerate(table.values[i])
        ]
        found.add_row(*map(Text, row), *values)
    return found


def cells_to_csv(over: Mapping[str, Sequence[object]], results: Sequence[RunResult]) -> str:
    """Write the statistics over seeds of every combination of settings as CSV.

    Parameters
    ----------
    over : mapping of str to sequence
        The swept settings and their values.
    results : sequence of RunResult
        The finished runs.

    Returns
    -------
    str
        One line per combination: its settings, mean, standard deviation and number of seeds; accuracies are fractions.

    Examples
    --------
    >>> result = RunResult({"rule": "avg"}, 0, {"best_accuracy": 0.5, "final_local_accuracy": 0.75})
    >>> cells_to_csv({"rule": ["avg"]}, [result]).splitlines()[1]
    'avg,0.5,,1,0.75'
    """
    lines: list[list[object]] = [[*over, "accuracy_mean", "accuracy_std", "n", "final_local_accuracy_mean"]]
    for values in product(*over.values()):
        found = select_results(dict(zip(over, values, strict=True)), results)
        accuracy = MeanStd.of(result.best for result in found)
        own = MeanStd.of(result.summary["final_local_accuracy"] for result in found)
        lines.append([*map(format_value, values), accuracy.mean, accuracy.std, accuracy.n, own.mean])
    return _to_csv(lines)


def runs_to_csv(over: Mapping[str, Sequence[object]], results: Sequence[RunResult]) -> str:
    """Write the summary of every run as CSV.

    Parameters
    ----------
    over : mapping of str to sequence
        The swept settings and their values.
    results : sequence of RunResult
        The finished runs.

    Returns
    -------
    str
        One line per run: its settings, its seed and the `SUMMARY_FIELDS` of its summary.

    Examples
    --------
    >>> runs_to_csv({"rule": ["avg"]}, [RunResult({"rule": "avg"}, 7, {"best_accuracy": 0.5})]).splitlines()[1]
    'avg,7,0.5,,,,,,,,,'
    """
    lines: list[list[object]] = [[*over, "seed", *SUMMARY_FIELDS]]
    for result in results:
        values = [format_value(result.settings[key]) for key in over]
        lines.append([*values, result.seed, *(result.summary.get(name) for name in SUMMARY_FIELDS)])
    return _to_csv(lines)


def _to_csv(lines: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()

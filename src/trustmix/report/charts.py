"""Charts and heat maps before they are drawn: their numbers, their labels, and the same as CSV.

`svg` draws charts for a page, and `figures` draws both by matplotlib for a paper; the numbers are the same.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from trustmix.report.study import MethodLabel
from trustmix.sweeps.tables import MeanStd

Unit: TypeAlias = Literal["percent", "points", "number", "megabytes"]
"""How a number is written: a fraction in per cent, a difference of fractions in points, a number, bytes in MB."""


@dataclass(frozen=True)
class Point:
    """A point of a chart."""

    x: float
    y: float
    std: float | None = None
    """The standard deviation of y over seeds; None with a single seed."""
    name: str | None = None
    """The name of a point that stands for one client."""


@dataclass(frozen=True)
class Series:
    """The points of one method."""

    method: MethodLabel
    points: Sequence[Point]


@dataclass(frozen=True)
class Chart:
    """Curves, or a scatter plot around the diagonal."""

    key: str
    """The name of the chart's file."""
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    y_unit: Unit = "percent"
    x_unit: Unit = "number"
    scatter: bool = False
    """Whether points are not connected; both axes have the same range then, and the diagonal is drawn."""
    levels: Sequence[tuple[MethodLabel, MeanStd]] = ()
    """Horizontal lines, such as the accuracy of the centralized reference."""
    note: str = ""
    """A sentence below the title."""

    def to_csv(self) -> str:
        """Write the chart's numbers as CSV.

        Returns
        -------
        str
            One line per point and one per level; accuracies are fractions.
        """
        lines: list[list[object]] = [["method", "name", self.x_label, self.y_label, "std"]]
        for one in self.series:
            lines += [[one.method.name, point.name, point.x, point.y, point.std] for point in one.points]
        lines += [[method.name, "level", None, level.mean, level.std] for method, level in self.levels]
        return _to_csv(lines)


@dataclass(frozen=True)
class Heatmap:
    """Accuracies, or other fractions, by two settings."""

    key: str
    """The name of the heat map's file."""
    title: str
    x_label: str
    y_label: str
    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[MeanStd]]
    """Fractions, by row and column."""
    note: str = ""
    """A sentence below the title."""
    value_label: str = "accuracy"
    """What the values are, in CSV."""

    def to_csv(self) -> str:
        """Write the heat map's numbers as CSV.

        Returns
        -------
        str
            One line per value, as fractions.
        """
        lines: list[list[object]] = [[self.y_label, self.x_label, self.value_label, "std", "n"]]
        for row, values in zip(self.rows, self.values, strict=True):
            for column, value in zip(self.columns, values, strict=True):
                lines.append([row, column, value.mean, value.std, value.n])
        return _to_csv(lines)


Figure: TypeAlias = Chart | Heatmap
TaskFigure: TypeAlias = tuple[int | None, Figure]
"""A figure with the index of the task that it is about, or with None where it is about all tasks."""


def format_number(value: float, unit: Unit) -> str:
    """Format a number of a chart for people to read.

    Parameters
    ----------
    value : float
        A fraction, a difference of fractions, a number, or a number of bytes.
    unit : {"percent", "points", "number", "megabytes"}
        How to write it.

    Returns
    -------
    str
        The number with its unit.

    Examples
    --------
    >>> format_number(0.6136, "percent"), format_number(0.021, "points")
    ('61.4 %', '+2.1 points')
    >>> format_number(12.345, "number"), format_number(1234567, "megabytes")
    ('12.3', '1.23 MB')
    """
    if unit == "percent":
        return f"{100 * value:.1f} %"
    if unit == "points":
        return f"{100 * value:+.1f} points"
    if unit == "megabytes":
        return f"{format_significant(value / 1e6)} MB"
    return format_significant(value)


def format_tick(value: float, unit: Unit) -> str:
    """Format a number beside an axis, as short as possible.

    Parameters
    ----------
    value : float
        A fraction, a difference of fractions, a number, or a number of bytes.
    unit : {"percent", "points", "number", "megabytes"}
        How to write it.

    Returns
    -------
    str
        The tick's label.

    Examples
    --------
    >>> format_tick(0.25, "percent"), format_tick(0.05, "points"), format_tick(2e6, "megabytes")
    ('25 %', '+5', '2 MB')
    """
    if unit == "percent":
        return f"{format_significant(100 * value)} %"
    if unit == "points":
        return f"{100 * value:+.3g}" if value else "0"
    return f"{format_significant(value / 1e6)} MB" if unit == "megabytes" else format_significant(value)


def format_significant(value: float) -> str:
    """Format a number with three significant digits, without an exponent.

    Parameters
    ----------
    value : float
        Any number.

    Returns
    -------
    str
        The number; from 100 on without digits after the point.

    Examples
    --------
    >>> format_significant(0.01234), format_significant(8.0), format_significant(1234.5)
    ('0.0123', '8', '1,234')
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = f"{float(f'{value:.3g}'):f}"
    return digits.rstrip("0").rstrip(".")


def _to_csv(lines: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()

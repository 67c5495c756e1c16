"""Pictures before they are drawn: what a chart or a heat map shows, and the same as CSV.

The page draws them as SVG (`drawing`), `--figures` by matplotlib (`printed`): the same numbers in both.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from trustmix.experiment.tables import MeanStd
from trustmix.report.load import Method

Unit: TypeAlias = Literal["percent", "points", "number", "megabytes"]


@dataclass(frozen=True)
class Point:
    """A place in a chart; `std` is the standard deviation over seeds where there are several."""

    x: float
    y: float
    std: float | None = None
    name: str | None = None
    """Whose point it is, where it stands for itself."""


@dataclass(frozen=True)
class Series:
    """One method's points."""

    method: Method
    points: Sequence[Point]


@dataclass(frozen=True)
class Chart:
    """Curves over a number, or, where points are not joined, a cloud around the diagonal."""

    key: str
    """Names its file."""
    title: str
    x: str
    y: str
    series: Sequence[Series]
    unit: Unit = "percent"
    x_unit: Unit = "number"
    joined: bool = True
    levels: Sequence[tuple[Method, MeanStd]] = ()
    """Lines across, such as the reference's accuracy."""
    note: str = ""

    def csv(self) -> str:
        """A line a point; of fractions, fractions."""
        lines: list[list[object]] = [["method", "name", self.x, self.y, "std"]]
        for one in self.series:
            lines += [[one.method.name, point.name, point.x, point.y, point.std] for point in one.points]
        lines += [[method.name, "level", None, level.mean, level.std] for method, level in self.levels]
        return _csv(lines)


@dataclass(frozen=True)
class Heatmap:
    """Figures by two settings."""

    key: str
    title: str
    x: str
    y: str
    columns: Sequence[str]
    rows: Sequence[str]
    figures: Sequence[Sequence[MeanStd]]
    """By row and column."""
    note: str = ""

    def csv(self) -> str:
        """A line a field, as fractions."""
        lines: list[list[object]] = [[self.y, self.x, "accuracy", "std", "n"]]
        for row, figures in zip(self.rows, self.figures, strict=True):
            for column, figure in zip(self.columns, figures, strict=True):
                lines.append([row, column, figure.mean, figure.std, figure.n])
        return _csv(lines)


Picture: TypeAlias = Chart | Heatmap


@dataclass(frozen=True)
class Section:
    """Pictures that answer one question; of those with a task, the page shows one task at a time."""

    key: str
    title: str
    text: str
    pictures: Sequence[tuple[int | None, Picture]]
    """With the index of the task that each belongs to, or None where it is about all."""

    @property
    def about_all(self) -> bool:
        """Whether it says nothing of a single task."""
        return all(task is None for task, _ in self.pictures)


def format_points(value: float, unit: Unit) -> str:
    """A number as people read it.

    >>> kinds = {"percent": 0.6136, "points": 0.021, "number": 12.345, "megabytes": 1234567}
    >>> tuple(format_points(value, kind) for kind, value in kinds.items())
    ('61.4 %', '+2.1 points', '12.3', '1.23 MB')
    """
    if unit == "percent":
        return f"{100 * value:.1f} %"
    if unit == "points":
        return f"{100 * value:+.1f} points"
    if unit == "megabytes":
        return f"{significant(value / 1e6)} MB"
    return significant(value)


def significant(value: float) -> str:
    """Three significant digits, without an exponent.

    >>> significant(0.01234), significant(8.0), significant(1234.5)
    ('0.0123', '8', '1,234')
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = f"{float(f'{value:.3g}'):f}"
    return digits.rstrip("0").rstrip(".")


def _csv(lines: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()

"""What the templates of a page show of charts and heat maps: drawings, legends, numbers and depths of colour."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, TypeAlias, TypedDict

from markupsafe import Markup

from trustmix.report.charts import Chart, Figure, Heatmap, Point, TaskFigure, format_number
from trustmix.report.study import MethodLabel
from trustmix.report.svg import ChartLayout, draw_chart, layout_chart
from trustmix.sweeps.tables import MeanStd


class SeriesData(TypedDict):
    """One series as the page's script reads it."""

    name: str
    colour: int
    points: list[list[int | str]]
    """Of each point its place in the drawing (x, y), its numbers as text (x, y), and its name if it has one."""


class ChartData(TypedDict):
    """A chart's numbers as the page's script reads them, for the pointer and for the table of numbers."""

    x: str
    scatter: bool
    series: list[SeriesData]


@dataclass(frozen=True)
class ChartView:
    """A chart in a page."""

    template: ClassVar[str] = "chart.html"
    figure: Chart
    svg: Markup
    legend: Sequence[tuple[str, int]]
    """Names and colours of methods; empty where curves have their names at their ends."""
    data: ChartData


@dataclass(frozen=True)
class HeatmapCell:
    """One cell of a heat map."""

    value: MeanStd
    depth: float
    """From 0 (palest) to 1 (deepest)."""


@dataclass(frozen=True)
class HeatmapView:
    """A heat map in a page, its last row on top."""

    template: ClassVar[str] = "heatmap.html"
    figure: Heatmap
    rows: Sequence[tuple[str, Sequence[HeatmapCell]]]


FigureView: TypeAlias = ChartView | HeatmapView


@dataclass(frozen=True)
class FigureBlock:
    """Figures of one task, or, where `task` is None, figures about all tasks."""

    task: int | None
    figures: Sequence[FigureView]


@dataclass(frozen=True)
class FigureGroup:
    """A text and blocks of figures below it: the content of the template figures.html."""

    text: str
    blocks: Sequence[FigureBlock]


def group_figures(text: str, figures: Sequence[TaskFigure], colours: Mapping[MethodLabel, int]) -> FigureGroup:
    """Prepare figures for the template figures.html.

    Parameters
    ----------
    text : str
        The text above the figures.
    figures : sequence of (int or None, Chart or Heatmap)
        Each figure with the index of its task; figures of one task are next to each other.
    colours : mapping of MethodLabel to int
        Each method's index in the palette.

    Returns
    -------
    FigureGroup
        One block per task.
    """
    blocks = [
        FigureBlock(task, [view_figure(figure, colours) for _, figure in group])
        for task, group in groupby(figures, key=lambda entry: entry[0])
    ]
    return FigureGroup(text, blocks)


def view_figure(figure: Figure, colours: Mapping[MethodLabel, int]) -> FigureView:
    """Prepare one figure for its template.

    Parameters
    ----------
    figure : Chart or Heatmap
        A figure with at least one number.
    colours : mapping of MethodLabel to int
        Each method's index in the palette.

    Returns
    -------
    ChartView or HeatmapView
        What the template with the name `template` shows.
    """
    if isinstance(figure, Heatmap):
        return HeatmapView(figure, _shaded_rows(figure))
    layout = layout_chart(figure)
    methods = [series.method for series in figure.series] + [method for method, _ in figure.levels]
    legend = [] if layout.named else [(method.name, colours[method]) for method in methods]
    return ChartView(figure, draw_chart(figure, layout, colours), legend, _chart_data(figure, layout, colours))


def _chart_data(chart: Chart, layout: ChartLayout, colours: Mapping[MethodLabel, int]) -> ChartData:
    series: list[SeriesData] = [
        {
            "name": one.method.name,
            "colour": colours[one.method],
            "points": [_point_data(chart, layout, point) for point in one.points],
        }
        for one in chart.series
    ]
    return {"x": chart.x_label, "scatter": chart.scatter, "series": series}


def _point_data(chart: Chart, layout: ChartLayout, point: Point) -> list[int | str]:
    value = format_number(point.y, chart.y_unit)
    if point.std and chart.y_unit == "percent":
        value = value.replace(" %", f" ± {100 * point.std:.1f} %")
    places = [round(layout.x(point.x)), round(layout.y(point.y))]
    return [*places, format_number(point.x, chart.x_unit), value, *([point.name] if point.name else [])]


def _shaded_rows(heatmap: Heatmap) -> list[tuple[str, list[HeatmapCell]]]:
    means = [value.mean for row in heatmap.values for value in row if value.mean is not None]
    low, high = min(means), max(means)

    def depth(value: MeanStd) -> float:
        return ((value.mean or 0) - low) / (high - low) if high > low else 0.5

    rows = [
        (name, [HeatmapCell(value, depth(value)) for value in values])
        for name, values in zip(heatmap.rows, heatmap.values, strict=True)
    ]
    return rows[::-1]

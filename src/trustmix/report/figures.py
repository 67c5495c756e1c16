"""Figures for a paper, drawn by matplotlib (extra `figures`): PDF, SVG and PNG in one column's width, and CSV."""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trustmix import storage
from trustmix.imports import require_extra
from trustmix.report.axes import Axis, make_axes, x_ticks
from trustmix.report.charts import Chart, Figure, Heatmap, Series, TaskFigure, format_tick
from trustmix.report.palette import PALETTE, assign_colours
from trustmix.report.sections import build_sections
from trustmix.report.study import MethodLabel, Study
from trustmix.report.trust_map import build_trust_maps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE = {
    "font.size": 8,
    "font.family": "serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.titlesize": 8,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "trustmix",
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.02,
}
"""The style of a paper: small serif type that stays text, thin lines, no frame."""
FIGURE_SIZE = (3.3, 2.3)
"""Width and height in inches: one column of two."""
FILE_FORMATS: Mapping[str, dict[str, Any]] = {
    "pdf": {"metadata": {"CreationDate": None}},
    "svg": {"metadata": {"Date": None}},
    "png": {"dpi": 300},
}
"""File formats and their options; without dates the same figure gives the same bytes."""
MAX_ANNOTATED_VALUES = 150
"""Up to this number of values, a heat map has its numbers written into it."""


def write_figures(study: Study, folder: Path) -> list[str]:
    """Draw all figures of a study into a folder.

    Parameters
    ----------
    study : Study
        The runs.
    folder : Path
        The folder; it is created where it does not exist.

    Returns
    -------
    list of str
        The names of the figures; each has a file per format and a CSV file of that name.

    Raises
    ------
    TrustmixError
        If matplotlib is not installed.
    """
    colours = assign_colours(study.methods)
    figures: list[TaskFigure] = [entry for section in build_sections(study) for entry in section.figures]
    figures += build_trust_maps(study)
    names: list[str] = []
    for task, figure in figures:
        name = _file_name(study, task, figure, names)
        names.append(name)
        for extension, data in plot_figure(figure, colours).items():
            storage.write_bytes(folder / f"{name}.{extension}", data)
        storage.write_bytes(folder / f"{name}.csv", figure.to_csv().encode())
    return names


def plot_figure(figure: Figure, colours: Mapping[MethodLabel, int]) -> dict[str, bytes]:
    """Draw one figure in every file format.

    Parameters
    ----------
    figure : Chart or Heatmap
        The figure.
    colours : mapping of MethodLabel to int
        Each method's index in the palette.

    Returns
    -------
    dict of str to bytes
        The contents of the files, by their extension.

    Raises
    ------
    TrustmixError
        If matplotlib is not installed.
    """
    files = {}
    matplotlib = require_extra("matplotlib", "Drawing figures", "figures")
    with matplotlib.rc_context(STYLE):
        # pyplot would keep every figure open and ask for windows
        drawing = require_extra("matplotlib.figure", "Drawing figures", "figures").Figure(figsize=FIGURE_SIZE)
        if isinstance(figure, Chart):
            _plot_chart(figure, drawing.add_subplot(), colours)
        else:
            _plot_heatmap(figure, drawing.add_subplot())
        for extension, options in FILE_FORMATS.items():
            data = io.BytesIO()
            drawing.savefig(data, format=extension, **options)
            files[extension] = data.getvalue()
    return files


def _file_name(study: Study, task: int | None, figure: Figure, taken: Sequence[str]) -> str:
    """The figure's key, with the task where there are several and the title of a heat map; no name twice."""
    details = study.tasks[task].name if task is not None and len(study.tasks) > 1 else ""
    details += f" {figure.title.partition(',')[0]}" if isinstance(figure, Heatmap) else ""
    rest = re.sub(r"[^A-Za-z0-9.]+", "-", details.replace("=", "")).strip("-")
    name = "-".join(part for part in (figure.key, rest) if part)
    again = sum(other == name or re.fullmatch(re.escape(name) + r"-\d+", other) is not None for other in taken)
    return f"{name}-{again + 1}" if again else name


def _plot_chart(chart: Chart, axes: "Axes", colours: Mapping[MethodLabel, int]) -> None:
    x, y = make_axes(chart, (0, 1), (0, 1))
    for series in chart.series:
        if chart.scatter:
            _plot_cloud(series, axes, colours[series.method])
        else:
            _plot_curve(series, axes, colours[series.method])
    for method, level in chart.levels:
        if level.mean is not None:
            axes.axhline(level.mean, linestyle="--", color=_shade(method, colours[method]), label=method.name)
    if chart.scatter:
        axes.plot([x.low, x.high], [x.low, x.high], linewidth=0.6, linestyle=":", color="0.4")
    _set_axes(chart, axes, x, y)
    axes.legend()


def _shade(method: MethodLabel, colour: int) -> str:
    return method.colour if isinstance(method.colour, str) else PALETTE[colour][0]


def _plot_cloud(series: Series, axes: "Axes", colour: int) -> None:
    xs, ys = [p.x for p in series.points], [p.y for p in series.points]
    axes.scatter(xs, ys, s=9, color=_shade(series.method, colour), alpha=0.7, linewidths=0, label=series.method.name)


def _plot_curve(series: Series, axes: "Axes", colour: int) -> None:
    shade = _shade(series.method, colour)
    xs, ys = [p.x for p in series.points], [p.y for p in series.points]
    style = {0: ":", 1: "--"}.get(colour, "-")
    marker = "o" if len(xs) <= 12 else ""
    axes.plot(xs, ys, style, marker=marker, markersize=2.2, color=shade, clip_on=False, label=series.method.name)
    if any(p.std for p in series.points):
        low, high = ([p.y + sign * (p.std or 0) for p in series.points] for sign in (-1, 1))
        axes.fill_between(xs, low, high, color=shade, alpha=0.15, linewidth=0)


def _set_axes(chart: Chart, axes: "Axes", x: Axis, y: Axis) -> None:
    if x.log:
        axes.set_xscale("log")
    ticks = x_ticks(chart, x)
    axes.set_xticks(ticks, [format_tick(tick, chart.x_unit) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(y.ticks, [format_tick(tick, chart.y_unit) for tick in y.ticks])
    axes.set_ylim(y.low, y.high)
    axes.grid(axis="y", linewidth=0.4, color="0.88")
    axes.set_axisbelow(True)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)


def _plot_heatmap(heatmap: Heatmap, axes: "Axes") -> None:
    numbers = [[float("nan") if value.mean is None else 100 * value.mean for value in row] for row in heatmap.values]
    axes.imshow(numbers, cmap="Greens", aspect="auto", origin="lower")
    turned = max(map(len, heatmap.columns)) > 4
    axes.set_xticks(range(len(heatmap.columns)), heatmap.columns, rotation=90 if turned else 0)
    axes.set_yticks(range(len(heatmap.rows)), heatmap.rows)
    axes.tick_params(labelsize=8 if len(heatmap.rows) <= 12 else 5, length=0)
    axes.set(xlabel=heatmap.x_label, ylabel=heatmap.y_label, title=heatmap.title)
    if len(heatmap.rows) * len(heatmap.columns) <= MAX_ANNOTATED_VALUES:
        _annotate(numbers, axes)


def _annotate(numbers: Sequence[Sequence[float]], axes: "Axes") -> None:
    """Write the numbers of a heat map into it, white on dark colours."""
    known = [(column, row, value) for row, values in enumerate(numbers) for column, value in enumerate(values)]
    known = [(column, row, value) for column, row, value in known if value == value]
    middle = (min(value for *_, value in known) + max(value for *_, value in known)) / 2
    for column, row, value in known:
        shade = "white" if value > middle else "black"
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=shade, fontsize=7)

"""The same figures for a paper: PDF, SVG and PNG in one column's width, each with its data as CSV (extra `figures`)."""

import importlib
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trustmix import storage
from trustmix.errors import TrustmixError
from trustmix.report.axes import make_axes, ticks_of
from trustmix.report.charts import Chart, Heatmap, Picture
from trustmix.report.load import Method, Study
from trustmix.report.palette import PALETTE, assign_colours
from trustmix.report.sections import sections
from trustmix.report.svg import tick_text
from trustmix.report.trust_map import trust_maps

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
"""A paper's: small serif type that stays text, thin lines, no frame."""
SIZE = (3.3, 2.3)
"""Inches: one column of two."""
KINDS: Mapping[str, dict[str, Any]] = {
    "pdf": {"metadata": {"CreationDate": None}},
    "svg": {"metadata": {"Date": None}},
    "png": {"dpi": 300},
}
"""File formats; without dates the same figures are the same bytes."""
NUMBERED = 150
"""Up to so many fields of a heat map have their numbers in them."""


def write_figures(study: Study, folder: Path) -> list[str]:
    """Draw all figures of a study into a folder and tell their names."""
    colour = assign_colours(study.methods)
    pictures: list[tuple[int | None, Picture]] = [entry for section in sections(study) for entry in section.pictures]
    pictures += trust_maps(study)
    names: list[str] = []
    for task, picture in pictures:
        name = _name(study, task, picture, names)
        names.append(name)
        for kind, data in draw_chart(picture, colour).items():
            storage.write_bytes(folder / f"{name}.{kind}", data)
        storage.write_bytes(folder / f"{name}.csv", picture.csv().encode())
    return names


def draw_chart(picture: Picture, colour: Mapping[Method, int]) -> dict[str, bytes]:
    """One figure in every file format."""
    files = {}
    with _matplotlib().rc_context(STYLE):
        figure, axes = _sheet()
        if isinstance(picture, Chart):
            _chart(picture, axes, colour)
        else:
            _heat(picture, axes)
        for kind, options in KINDS.items():
            data = io.BytesIO()
            figure.savefig(data, format=kind, **options)
            files[kind] = data.getvalue()
    return files


def _matplotlib() -> Any:
    try:
        return importlib.import_module("matplotlib")
    except ImportError as error:
        raise TrustmixError('Figures need matplotlib: pip install "trustmix[figures]".') from error


def _sheet() -> tuple[Any, Any]:
    """An empty figure, without the windows that pyplot would bring."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=SIZE)
    return figure, figure.add_subplot()


def _name(study: Study, task: int | None, picture: Picture, taken: list[str]) -> str:
    """A file's name: what it shows, and of which task where there are several."""
    told = study.tasks[task].name if task is not None and len(study.tasks) > 1 else ""
    told += f" {picture.title.partition(',')[0]}" if isinstance(picture, Heatmap) else ""
    rest = re.sub(r"[^A-Za-z0-9.]+", "-", told.replace("=", "")).strip("-")
    name = "-".join(part for part in (picture.key, rest) if part)
    again = sum(other == name or re.fullmatch(re.escape(name) + r"-\d+", other) is not None for other in taken)
    return f"{name}-{again + 1}" if again else name


def _shade(method: Method, colour: Mapping[Method, int]) -> str:
    return method.colour if isinstance(method.colour, str) else PALETTE[colour[method]][0]


def _chart(chart: Chart, axes: Any, colour: Mapping[Method, int]) -> None:
    x, y = make_axes(chart, (0, 1), (0, 1))
    for series in chart.series:
        shade = _shade(series.method, colour)
        xs, ys = [p.x for p in series.points], [p.y for p in series.points]
        if not chart.joined:
            axes.scatter(xs, ys, s=9, color=shade, alpha=0.7, linewidths=0, label=series.method.name)
            continue
        style = {0: ":", 1: "--"}.get(colour[series.method], "-")
        marker = "o" if len(xs) <= 12 else ""
        axes.plot(xs, ys, style, marker=marker, markersize=2.2, color=shade, clip_on=False, label=series.method.name)
        if any(p.std for p in series.points):
            low, high = ([p.y + sign * (p.std or 0) for p in series.points] for sign in (-1, 1))
            axes.fill_between(xs, low, high, color=shade, alpha=0.15, linewidth=0)
    for method, level in chart.levels:
        axes.axhline(level.mean, linestyle="--", color=_shade(method, colour), label=method.name)
    if not chart.joined:
        axes.plot([x.low, x.high], [x.low, x.high], linewidth=0.6, linestyle=":", color="0.4")
    if x.log:
        axes.set_xscale("log")
    counted = chart.x_unit == "number" and chart.joined
    ticks = ticks_of(x, [p.x for s in chart.series for p in s.points]) if counted else x.ticks
    axes.set_xticks(ticks, [tick_text(tick, chart.x_unit) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(y.ticks, [tick_text(tick, chart.unit) for tick in y.ticks])
    axes.set_ylim(y.low, y.high)
    axes.grid(axis="y", linewidth=0.4, color="0.88")
    axes.set_axisbelow(True)
    axes.set(xlabel=chart.x, ylabel=chart.y)
    axes.legend()


def _heat(heat: Heatmap, axes: Any) -> None:
    numbers = [[float("nan") if f.mean is None else 100 * f.mean for f in row] for row in heat.figures]
    axes.imshow(numbers, cmap="Greens", aspect="auto", origin="lower")
    axes.set_xticks(range(len(heat.columns)), heat.columns, rotation=90 if max(map(len, heat.columns)) > 4 else 0)
    axes.set_yticks(range(len(heat.rows)), heat.rows)
    axes.tick_params(labelsize=8 if len(heat.rows) <= 12 else 5, length=0)
    axes.set(xlabel=heat.x, ylabel=heat.y, title=heat.title)
    known = [value for row in numbers for value in row if value == value]
    middle = (min(known) + max(known)) / 2
    if len(heat.rows) * len(heat.columns) <= NUMBERED:
        for row, values in enumerate(numbers):
            for column, value in enumerate(values):
                if value == value:
                    shade = "white" if value > middle else "black"
                    axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=shade, fontsize=7)

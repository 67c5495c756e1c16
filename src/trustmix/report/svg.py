"""Charts as inline SVG, coloured by the page's style sheet, and heat maps as tables; each with its numbers in it."""

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trustmix.experiment.tables import MeanStd
from trustmix.report.axes import Axis, make_axes, ticks_of
from trustmix.report.charts import Chart, Heatmap, Picture, Point, Series, Unit, format_points, significant
from trustmix.report.load import Method

WIDTH, HEIGHT = 460, 280
LEFT, TOP, BOTTOM = 46, 12, 40
LETTER = 6.6
"""About the width of a letter, for the room that names at the ends of curves take."""
LINE = 14
"""Their height."""
NAMED = 9
"""Up to so many curves have their names at their ends; more would not fit."""
MARKED = 12
"""Up to so many points of a curve are marked."""


def figure(picture: Picture, colours: Mapping[Method, int]) -> str:
    """The picture as an HTML figure."""
    body = _chart(picture, colours) if isinstance(picture, Chart) else _heat(picture)
    note = f'<p class="note">{html.escape(picture.note)}</p>' if picture.note else ""
    numbers = '<details class="numbers"><summary>Numbers</summary></details>' if isinstance(picture, Chart) else ""
    heading = f"<figcaption>{html.escape(picture.title)}</figcaption>"
    return f'<figure class="{picture.key}">{heading}{note}{body}{numbers}</figure>'


def as_json(value: Any) -> str:
    """JSON that may stand inside a page's script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _chart(chart: Chart, colours: Mapping[Method, int]) -> str:
    methods = [series.method for series in chart.series] + [method for method, _ in chart.levels]
    at_ends = chart.joined and len(methods) <= NAMED
    right = 14 + (max(len(method.name) for method in methods) * LETTER if at_ends else 0)
    right = min(right, 170)
    x, y = make_axes(chart, (LEFT, WIDTH - right), (HEIGHT - BOTTOM, TOP))
    parts = [_grid(chart, x, y), "" if chart.joined else _diagonal(x, y)]
    ends: list[tuple[float, Method]] = []
    for method, level in chart.levels:
        if level.mean is not None:
            parts.append(_level(x, y(level.mean), colours[method]))
            ends.append((y(level.mean), method))
    for series in chart.series:
        parts.append(_curve(series, x, y, colours[series.method]) if chart.joined else _cloud(series, x, y, colours))
        ends.append((y(series.points[-1].y), series.method))
    if at_ends:
        parts.append(_names(ends, WIDTH - right + 8, colours))
    legend = "" if at_ends else _legend(methods, colours)
    said = html.escape(f"{chart.title}: {chart.y} over {chart.x}; {_summary(chart)}", quote=True)
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{said}">{"".join(parts)}</svg>'
    return f'{legend}{svg}<script type="application/json">{as_json(_numbers(chart, x, y, colours))}</script>'


def _summary(chart: Chart) -> str:
    """The chart in words, for those who do not see it."""
    if not chart.joined:
        return f"{sum(len(series.points) for series in chart.series)} points"
    ends = [f"{s.method.name} ends at {format_points(s.points[-1].y, chart.unit)}" for s in chart.series]
    return ", ".join(ends)


def _grid(chart: Chart, x: Axis, y: Axis) -> str:
    lines = [
        f'<line class="grid" x1="{LEFT}" x2="{x.end:.1f}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick_text(tick, chart.unit)}</text>'
        for tick in y.ticks
    ]
    counted = chart.x_unit == "number" and chart.joined
    ticks = ticks_of(x, [p.x for s in chart.series for p in s.points]) if counted else x.ticks
    below = f'y="{HEIGHT - BOTTOM + 16}" text-anchor="middle"'
    lines += [f'<text x="{x(tick):.1f}" {below}>{tick_text(tick, chart.x_unit)}</text>' for tick in ticks]
    lines.append(f'<text class="axis" x="{LEFT}" y="{HEIGHT - 6}">{html.escape(chart.x)} →</text>')
    return "".join(lines)


def tick_text(value: float, unit: Unit) -> str:
    """A number beside an axis.

    >>> tick_text(0.25, "percent"), tick_text(0.05, "points"), tick_text(2e6, "megabytes")
    ('25 %', '+5', '2 MB')
    """
    if unit == "percent":
        return f"{significant(100 * value)} %"
    if unit == "points":
        return f"{100 * value:+.3g}" if value else "0"
    return f"{significant(value / 1e6)} MB" if unit == "megabytes" else significant(value)


def _diagonal(x: Axis, y: Axis) -> str:
    return f'<line class="diagonal" x1="{x.begin}" x2="{x.end:.1f}" y1="{y.begin}" y2="{y.end}"/>'


def _level(x: Axis, at: float, colour: int) -> str:
    return f'<line class="level c{colour}" x1="{LEFT}" x2="{x.end:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'


def _curve(series: Series, x: Axis, y: Axis, colour: int) -> str:
    points, parts = series.points, []
    if any(point.std for point in points):
        upper = [_place(x(p.x), y(p.y + (p.std or 0))) for p in points]
        lower = [_place(x(p.x), y(p.y - (p.std or 0))) for p in reversed(points)]
        parts.append(f'<polygon class="band" points="{" ".join([*upper, *lower])}"/>')
    parts.append(f'<polyline points="{" ".join(_place(x(p.x), y(p.y)) for p in points)}"/>')
    if len(points) <= MARKED:
        parts += [f'<circle cx="{x(p.x):.1f}" cy="{y(p.y):.1f}" r="2.6"/>' for p in points]
    return f'<g class="curve c{colour}">{"".join(parts)}</g>'


def _cloud(series: Series, x: Axis, y: Axis, colours: Mapping[Method, int]) -> str:
    dots = [f'<circle cx="{x(p.x):.1f}" cy="{y(p.y):.1f}" r="4"/>' for p in series.points]
    return f'<g class="cloud c{colours[series.method]}">{"".join(dots)}</g>'


def _place(x: float, y: float) -> str:
    return f"{x:.1f},{y:.1f}"


def _names(ends: Sequence[tuple[float, Method]], left: float, colours: Mapping[Method, int]) -> str:
    """Names beside the ends of their curves, moved apart where they would overlap."""
    placed = spread([at for at, _ in sorted(ends, key=lambda end: end[0])], TOP, HEIGHT - BOTTOM)
    texts = [
        f'<text class="name c{colours[method]}" x="{left:.1f}" y="{at + 4:.1f}">{html.escape(method.name)}</text>'
        for at, (_, method) in zip(placed, sorted(ends, key=lambda end: end[0]), strict=True)
    ]
    return "".join(texts)


def spread(places: Sequence[float], top: float, bottom: float) -> list[float]:
    """Sorted places with a line's height between each two, moved as little as a pass down and one up allow.

    >>> spread([10, 12, 100], 0, 200)
    [10, 24, 100]
    >>> spread([196, 198], 0, 200)
    [186, 200]
    """
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + LINE, top) if found else max(place, top))
    limit = max(bottom, top + LINE * (len(found) - 1))
    for index in reversed(range(len(found))):
        found[index] = min(found[index], limit)
        limit = found[index] - LINE
    return found


def _legend(methods: Sequence[Method], colours: Mapping[Method, int]) -> str:
    entries = [f'<span class="key c{colours[method]}">{html.escape(method.name)}</span>' for method in methods]
    return f'<p class="legend">{"".join(entries)}</p>'


def _numbers(chart: Chart, x: Axis, y: Axis, colours: Mapping[Method, int]) -> dict[str, Any]:
    """What the page says of a point under the pointer, and in the table of numbers."""

    def told(point: Point) -> list[Any]:
        spread_ = "" if not point.std else f" ± {100 * point.std:.1f}" if chart.unit == "percent" else ""
        value = format_points(point.y, chart.unit)
        value = value.replace(" %", f"{spread_} %") if spread_ else value
        entry: list[Any] = [round(x(point.x)), round(y(point.y)), format_points(point.x, chart.x_unit), value]
        return [*entry, point.name] if point.name else entry

    return {
        "x": chart.x,
        "joined": chart.joined,
        "series": [
            {"name": s.method.name, "colour": colours[s.method], "points": [told(p) for p in s.points]}
            for s in chart.series
        ],
    }


def _heat(heat: Heatmap) -> str:
    means = [f.mean for row in heat.figures for f in row if f.mean is not None]
    low, high = min(means), max(means)
    heads = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in heat.columns)
    rows = [
        f'<tr><th scope="row">{html.escape(row)}</th>{"".join(_field(f, low, high) for f in figures)}</tr>'
        for row, figures in zip(heat.rows, heat.figures, strict=True)
    ]
    corner = f'<th><span class="axis">{html.escape(heat.y)} ↓<br>{html.escape(heat.x)} →</span></th>'
    return (
        f'<table class="heat"><thead><tr>{corner}{heads}</tr></thead><tbody>{"".join(reversed(rows))}</tbody></table>'
    )


def _field(figure: MeanStd, low: float, high: float) -> str:
    """One field; its depth, from 0 to 1, makes its colour."""
    if figure.mean is None:
        return '<td class="empty">–</td>'
    depth = (figure.mean - low) / (high - low) if high > low else 0.5
    deep = ' class="deep"' if depth > 0.5 else ""
    spread_ = f"<small>± {100 * figure.std:.1f}</small>" if figure.std is not None else ""
    return f'<td{deep} style="--v:{depth:.2f}"><b>{100 * figure.mean:.1f}</b>{spread_}</td>'

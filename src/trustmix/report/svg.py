"""Charts as inline SVG, coloured by the page's style sheet."""

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from trustmix.report.axes import Axis, make_axes, x_ticks
from trustmix.report.charts import Chart, Series, format_number, format_tick
from trustmix.report.study import MethodLabel

WIDTH, HEIGHT = 460, 280
LEFT, TOP, BOTTOM = 46, 26, 40
LETTER_WIDTH = 6.6
"""About the width of a letter, for the room that names at the ends of curves take."""
LINE_HEIGHT = 14
"""The least distance between two names at the ends of curves."""
MAX_NAMED_CURVES = 9
"""Up to this number, curves have their names at their ends; more names would not fit."""
MAX_MARKED_POINTS = 12
"""Up to this number, the points of a curve are marked."""


@dataclass(frozen=True)
class ChartLayout:
    """Where things lie in the drawing of a chart, in units of its view box."""

    x: Axis
    y: Axis
    named: bool
    """Whether curves have their names at their ends; otherwise the chart needs a legend."""


def layout_chart(chart: Chart) -> ChartLayout:
    """Lay out a chart.

    Parameters
    ----------
    chart : Chart
        A chart with at least one point.

    Returns
    -------
    ChartLayout
        Its axes, with room for the names of curves on the right.
    """
    names = [series.method.name for series in chart.series] + [method.name for method, _ in chart.levels]
    named = not chart.scatter and len(names) <= MAX_NAMED_CURVES
    right = min(14 + (max(map(len, names)) * LETTER_WIDTH if named else 0), 170)
    x, y = make_axes(chart, (LEFT, WIDTH - right), (HEIGHT - BOTTOM, TOP))
    return ChartLayout(x, y, named)


def draw_chart(chart: Chart, layout: ChartLayout, colours: Mapping[MethodLabel, int]) -> Markup:
    """Draw a chart.

    Parameters
    ----------
    chart : Chart
        The chart.
    layout : ChartLayout
        Its layout.
    colours : mapping of MethodLabel to int
        Each method's index in the palette.

    Returns
    -------
    Markup
        One svg element. Its texts are escaped by the XML serializer, therefore it is safe as a whole.
    """
    label = f"{chart.title}: {chart.y_label} over {chart.x_label}; {_summary(chart)}"
    svg = ET.Element("svg", {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img", "aria-label": label})
    x, y = layout.x, layout.y
    _draw_grid(svg, chart, x, y)
    if chart.scatter:
        _add(svg, "line", "diagonal", x1=x.begin, x2=x.end, y1=y.begin, y2=y.end)
    ends: list[tuple[float, MethodLabel]] = []
    for method, level in chart.levels:
        if level.mean is not None:
            height = y(level.mean)
            _add(svg, "line", f"level c{colours[method]}", x1=LEFT, x2=x.end, y1=height, y2=height)
            ends.append((height, method))
    for series in chart.series:
        draw = _draw_cloud if chart.scatter else _draw_curve
        draw(svg, series, x, y, colours[series.method])
        ends.append((y(series.points[-1].y), series.method))
    if layout.named:
        _draw_names(svg, ends, x.end + 8, colours)
    return Markup(ET.tostring(svg, encoding="unicode"))  # noqa: S704 - the serializer has escaped all texts


def _add(parent: ET.Element, tag: str, style: str | None = None, **attributes: str | float) -> ET.Element:
    """Add an element of a class of the style sheet; numbers are written with one digit after the point."""
    element = ET.SubElement(parent, tag, {"class": style} if style else {})
    for name, value in attributes.items():
        element.set(name, f"{value:.1f}" if isinstance(value, float) else str(value))
    return element


def _add_text(svg: ET.Element, text: str, x: float, y: float, *, style: str | None = None, anchor: str = "") -> None:
    element = _add(svg, "text", style, x=x, y=y)
    if anchor:
        element.set("text-anchor", anchor)
    element.text = text


def _summary(chart: Chart) -> str:
    """The chart in words, for readers who do not see it."""
    if chart.scatter:
        return f"{sum(len(series.points) for series in chart.series)} points"
    ends = [f"{s.method.name} ends at {format_number(s.points[-1].y, chart.y_unit)}" for s in chart.series]
    return ", ".join(ends)


def _draw_grid(svg: ET.Element, chart: Chart, x: Axis, y: Axis) -> None:
    for tick in y.ticks:
        _add(svg, "line", "grid", x1=LEFT, x2=x.end, y1=y(tick), y2=y(tick))
        _add_text(svg, format_tick(tick, chart.y_unit), LEFT - 6, y(tick) + 4, anchor="end")
    for tick in x_ticks(chart, x):
        _add_text(svg, format_tick(tick, chart.x_unit), x(tick), HEIGHT - BOTTOM + 16, anchor="middle")
    _add_text(svg, f"{chart.x_label} →", LEFT, HEIGHT - 6, style="axis")
    _add_text(svg, f"↑ {chart.y_label}", 2, 12, style="axis")


def _draw_curve(svg: ET.Element, series: Series, x: Axis, y: Axis, colour: int) -> None:
    points = series.points
    group = _add(svg, "g", f"curve c{colour}")
    if any(point.std for point in points):
        upper = [(x(p.x), y(p.y + (p.std or 0))) for p in points]
        lower = [(x(p.x), y(p.y - (p.std or 0))) for p in reversed(points)]
        _add(group, "polygon", "band", points=_path([*upper, *lower]))
    _add(group, "polyline", points=_path([(x(p.x), y(p.y)) for p in points]))
    if len(points) <= MAX_MARKED_POINTS:
        for p in points:
            _add(group, "circle", cx=x(p.x), cy=y(p.y), r=2.6)


def _draw_cloud(svg: ET.Element, series: Series, x: Axis, y: Axis, colour: int) -> None:
    group = _add(svg, "g", f"cloud c{colour}")
    for p in series.points:
        _add(group, "circle", cx=x(p.x), cy=y(p.y), r=4)


def _path(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _draw_names(
    svg: ET.Element, ends: Sequence[tuple[float, MethodLabel]], left: float, colours: Mapping[MethodLabel, int]
) -> None:
    """Draw names beside the ends of their curves, moved apart where they would overlap."""
    ordered = sorted(ends, key=lambda end: end[0])
    heights = separate_labels([height for height, _ in ordered], TOP, HEIGHT - BOTTOM)
    for height, (_, method) in zip(heights, ordered, strict=True):
        _add_text(svg, method.name, left, height + 4, style=f"name c{colours[method]}")


def separate_labels(heights: Sequence[float], top: float, bottom: float) -> list[float]:
    """Move labels apart where they would overlap, as little as one pass down and one pass up allow.

    Parameters
    ----------
    heights : sequence of float
        The wanted places, in ascending order.
    top, bottom : float
        The range that the labels should stay in.

    Returns
    -------
    list of float
        Places with at least `LINE_HEIGHT` between each two, in the same order.

    Examples
    --------
    >>> separate_labels([10, 12, 100], 0, 200)
    [10, 24, 100]
    >>> separate_labels([196, 198], 0, 200)
    [186, 200]
    """
    found: list[float] = []
    for height in heights:
        found.append(max(height, found[-1] + LINE_HEIGHT, top) if found else max(height, top))
    limit = max(bottom, top + LINE_HEIGHT * (len(found) - 1))
    for index in reversed(range(len(found))):
        found[index] = min(found[index], limit)
        limit = found[index] - LINE_HEIGHT
    return found

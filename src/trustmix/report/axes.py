"""Axes: from numbers to places in a drawing, ranges that hold all numbers, and ticks at round numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trustmix.report.charts import Chart

LOG_RATIO = 30
"""An axis of bytes is logarithmic where the largest number is more than this many times the smallest."""
MAX_VALUE_TICKS = 7
"""Up to this number of different values, the values themselves are the ticks."""


@dataclass(frozen=True)
class Axis:
    """An axis from the number `low` to the number `high`, drawn from the place `begin` to the place `end`."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Compute the place of a number.

        Parameters
        ----------
        value : float
            A number; positive on a logarithmic axis.

        Returns
        -------
        float
            Its place in the drawing.

        Examples
        --------
        >>> Axis(0, 10, 100, 200)(5), Axis(1, 100, 0, 10, log=True)(10)
        (150.0, 5.0)
        """
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.begin + (at - low) / (high - low) * (self.end - self.begin)

    @property
    def ticks(self) -> list[float]:
        """Round numbers along the axis."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1,) if len(powers) > 4 else (1, 3) if len(powers) > 2 else (1, 2, 5)
            found = [step * 10.0**power for power in powers for step in steps]
            return [tick for tick in found if self.low <= tick <= self.high]
        step = _tick_step(self.high - self.low)
        first = math.ceil(self.low / step - 1e-9)
        return [round(i * step, 12) for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def make_axes(chart: Chart, horizontal: tuple[float, float], vertical: tuple[float, float]) -> tuple[Axis, Axis]:
    """Make the two axes of a chart.

    Parameters
    ----------
    chart : Chart
        A chart with at least one point.
    horizontal, vertical : tuple of two floats
        Where each axis begins and ends in the drawing.

    Returns
    -------
    tuple of two Axis
        The x axis and the y axis; of a scatter plot both have the same range, since it has a diagonal.
    """
    xs = [point.x for series in chart.series for point in series.points]
    ys = [point.y + sign * (point.std or 0) for s in chart.series for point in s.points for sign in (-1, 1)]
    ys += [level.mean for _, level in chart.levels if level.mean is not None]
    if chart.scatter:
        both = _round_range([*xs, *ys])
        return Axis(*both, *horizontal), Axis(*both, *vertical)
    log = chart.x_unit == "megabytes" and min(xs) > 0 and max(xs) / min(xs) > LOG_RATIO
    return Axis(*_nonempty_range(min(xs), max(xs)), *horizontal, log), Axis(*_round_range(ys), *vertical)


def x_ticks(chart: Chart, axis: Axis) -> list[float]:
    """Choose the ticks of a chart's x axis.

    Parameters
    ----------
    chart : Chart
        The chart.
    axis : Axis
        Its x axis.

    Returns
    -------
    list of float
        Of curves over plain numbers the numbers themselves where there are few. Of counts, such as rounds, the first
        one and round numbers after it; otherwise the axis's own ticks.

    Examples
    --------
    >>> from trustmix.report.charts import Point, Series
    >>> from trustmix.report.study import MethodLabel
    >>> def ticks(*values):
    ...     points = [Point(value, 0.5) for value in values]
    ...     chart = Chart("", "", "", "", [Series(MethodLabel("avg", "AVG"), points)])
    ...     return x_ticks(chart, make_axes(chart, (0, 1), (0, 1))[0])
    >>> ticks(2, 5, 9), ticks(*range(1, 9))
    ([2, 5, 9], [1, 2.0, 4.0, 6.0, 8.0])
    """
    if chart.scatter or chart.x_unit != "number":
        return axis.ticks
    values = sorted({point.x for series in chart.series for point in series.points})
    if len(values) <= MAX_VALUE_TICKS:
        return values
    counts = all(value == round(value) for value in values)
    if not counts:
        return axis.ticks
    ticks = [tick for tick in axis.ticks if tick == round(tick)]
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 0.0
    return [values[0], *(tick for tick in ticks if tick - values[0] >= max(step / 2, 1))]


def _tick_step(width: float, wanted: int = 5) -> float:
    """A step of 1, 2 or 5 times a power of ten that gives about as many ticks as wanted.

    >>> _tick_step(1.0), _tick_step(7), _tick_step(0.034)
    (0.2, 2.0, 0.01)
    """
    rough = width / wanted
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= rough * (1 - 1e-9))


def _round_range(values: Sequence[float]) -> tuple[float, float]:
    """A range that holds all values and ends at round numbers; it begins at zero where that costs little."""
    low, high = min(values), max(values)
    if 0 <= low < 0.4 * high:
        low = 0.0
    low, high = _nonempty_range(low, high)
    step = _tick_step(high - low)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def _nonempty_range(low: float, high: float) -> tuple[float, float]:
    """The range itself, or a range around a single number."""
    if high - low > 1e-9 * max(abs(low), abs(high), 1e-9):
        return low, high
    room = abs(high) * 0.1 or 1.0
    return low - room, high + room

"""From numbers to places on paper: ranges that fit, ticks that people would choose."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trustmix.report.charts import Chart

SPREAD = 30
"""From this ratio of largest to smallest on, an axis is logarithmic, where it may be."""


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`, drawn from `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where a number lies.

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
            few = (1,) if len(powers) > 4 else (1, 3) if len(powers) > 2 else (1, 2, 5)
            found = [step * 10.0**power for power in powers for step in few]
            return [tick for tick in found if self.low <= tick <= self.high]
        step = _step(self.high - self.low)
        first = math.ceil(self.low / step - 1e-9)
        return [round(i * step, 12) for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _step(width: float, wanted: int = 5) -> float:
    """A step of 1, 2 or 5 times a power of ten that makes about as many ticks as wanted.

    >>> _step(1.0), _step(7), _step(0.034)
    (0.2, 2.0, 0.01)
    """
    rough = width / wanted
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= rough * (1 - 1e-9))


def make_axes(chart: Chart, horizontal: tuple[float, float], vertical: tuple[float, float]) -> tuple[Axis, Axis]:
    """The two axes of a chart; both alike where its points are not joined, since it has a diagonal then."""
    xs = [point.x for series in chart.series for point in series.points]
    edges = [point.y + sign * (point.std or 0) for s in chart.series for point in s.points for sign in (-1, 1)]
    edges += [level.mean for _, level in chart.levels if level.mean is not None]
    if not chart.joined:
        xs = edges = [*xs, *edges]
    log = chart.x_unit == "megabytes" and min(xs) > 0 and max(xs) / min(xs) > SPREAD
    x = Axis(*(_widened(xs) if not chart.joined else _apart(min(xs), max(xs))), *horizontal, log)
    return x, Axis(*_widened(edges), *vertical)


def _widened(values: Sequence[float]) -> tuple[float, float]:
    """A range that holds all values and ends on round numbers; it begins with zero where that costs little."""
    low, high = min(values), max(values)
    if 0 <= low < 0.4 * high:
        low = 0.0
    low, high = _apart(low, high)
    step = _step(high - low)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def _apart(low: float, high: float) -> tuple[float, float]:
    """The range, or, of a single number, some room around it."""
    if high - low > 1e-9 * max(abs(low), abs(high), 1e-9):
        return low, high
    room = abs(high) * 0.1 or 1.0
    return low - room, high + room


def ticks_of(scale: Axis, values: Sequence[float]) -> list[float]:
    """Ticks of an axis of plain numbers: the numbers themselves where there are few, and of counts only whole ones.

    >>> ticks_of(Axis(2, 9, 0, 1), [2, 5, 9]), ticks_of(Axis(1, 8, 0, 1), range(1, 9))
    ([2, 5, 9], [2.0, 4.0, 6.0, 8.0])
    """
    known = sorted(set(values))
    if len(known) <= 7:
        return list(known)
    counts = all(value == round(value) for value in known)
    return [tick for tick in scale.ticks if not counts or tick == round(tick)]

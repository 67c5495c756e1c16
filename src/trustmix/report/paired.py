"""Differences between two methods over seeds: paired by seed, with the interval of Student's t distribution."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

LEVEL = 0.95
"""The probability of an interval."""


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference of pairs, and an interval for it.

    Examples
    --------
    >>> found = PairedDifference.of([0.5, 0.6, 0.55], [0.4, 0.45, 0.45])
    >>> round(found.mean, 3), found.n, found.excludes_zero
    (0.117, 3, True)
    """

    mean: float
    interval: tuple[float, float] | None
    """The ends of the 95 % interval; None with a single pair."""
    n: int

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> "PairedDifference":
        """Compute the difference of pairs.

        Parameters
        ----------
        ours, theirs : sequence of float
            Values in pairs, at least one pair.

        Returns
        -------
        PairedDifference
            Ours minus theirs.
        """
        differences = [mine - other for mine, other in zip(ours, theirs, strict=True)]
        mean, n = fmean(differences), len(differences)
        if n < 2:
            return cls(mean, None, n)
        half = t_quantile(LEVEL, n - 1) * stdev(differences) / math.sqrt(n)
        return cls(mean, (mean - half, mean + half), n)

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval, and zero is outside of it."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)


def t_quantile(level: float, degrees: int) -> float:
    """Compute the half-width t with P(|T| <= t) = level of Student's t distribution.

    Parameters
    ----------
    level : float
        A probability between 0 and 1.
    degrees : int
        The degrees of freedom, 1 or more.

    Returns
    -------
    float
        The quantile, found by bisection.

    Examples
    --------
    >>> round(t_quantile(0.95, 2), 4)
    4.3027
    """
    low, high = 0.0, math.pi / 2  # of the angle whose tangent is t / sqrt(degrees)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_probability(middle, degrees) < level else (low, middle)
    return math.tan(low) * math.sqrt(degrees)


def _t_probability(angle: float, degrees: int) -> float:
    """P(|T| <= sqrt(degrees) * tan(angle)), by the finite series for whole degrees of freedom."""
    sine, square = math.sin(angle), math.cos(angle) ** 2
    first = 1 if degrees % 2 == 0 else 2
    term = 1.0 if first == 1 else math.cos(angle)
    total = term if degrees > 1 else 0.0
    for k in range(first, degrees - 2, 2):
        term *= square * k / (k + 1)
        total += term
    return sine * total if first == 1 else 2 / math.pi * (angle + sine * total)

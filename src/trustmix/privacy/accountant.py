"""Epsilon from noise, and noise from epsilon, by the Renyi accountant of Opacus.

It accounts for the Gaussian mechanism on Poisson samples (Mironov, Talwar and Zhang 2019). Its epsilon is a bound from
above: about a tenth more than the exact value, at any size of noise.
"""

import logging
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from trustmix.errors import TrustmixError

ORDERS = [1.1, 1.5, *range(2, 33), 40, 48, 64, 96, 128, 192, 256, 512, 1024]
"""The Renyi orders that are tried. Whole orders are fast; the two fractions matter where epsilon is large."""
PRECISION = 1e-3
"""The relative precision to which noise is found, on the safe side."""
MAX_NOISE_MULTIPLIER = 1e4
"""The largest noise that is tried."""


@dataclass(frozen=True)
class Release:
    """Repeated releases of a noisy sum, in which a record has a norm of at most 1.

    Parameters
    ----------
    noise_multiplier : float
        The standard deviation of the Gaussian noise on the sum.
    sample_rate : float
        The probability with which a record is in a sum.
    releases : int
        How often a sum is released.
    """

    noise_multiplier: float
    sample_rate: float
    releases: int


@lru_cache(maxsize=4096)
def compute_epsilon(
    noise_multiplier: float, releases: int, sample_rate: float, delta: float, further: float | None = None
) -> float:
    """Epsilon of repeated releases of a noisy sum, in which a record has a norm of at most 1.

    Parameters
    ----------
    noise_multiplier : float
        The standard deviation of the Gaussian noise on the sum.
    releases : int
        How often a sum is released.
    sample_rate : float
        The probability with which a record is in a sum.
    delta : float
        The delta at which epsilon is given.
    further : float, optional
        The noise of one further release of a sum of all records.

    Returns
    -------
    float
        Epsilon; 0 without a release.

    Raises
    ------
    TrustmixError
        If Opacus is not installed.

    Examples
    --------
    >>> round(compute_epsilon(noise_multiplier=2.0, releases=20, sample_rate=1.0, delta=1e-5), 1)
    12.3
    >>> compute_epsilon(noise_multiplier=2.0, releases=20, sample_rate=0.1, delta=1e-5) < 2
    True
    """
    more = [] if further is None else [Release(further, 1.0, 1)]
    return compute_total_epsilon([Release(noise_multiplier, sample_rate, releases), *more], delta)


def compute_total_epsilon(releases: Sequence[Release], delta: float) -> float:
    """Epsilon of different releases together: their Renyi divergences add up at every order.

    Parameters
    ----------
    releases : sequence of Release
        What was released of the same records.
    delta : float
        The delta at which epsilon is given.

    Returns
    -------
    float
        Epsilon; 0 without a release.

    Raises
    ------
    TrustmixError
        If Opacus is not installed.

    Examples
    --------
    >>> one, other = Release(2.0, 1.0, releases=20), Release(2.0, 0.1, releases=20)
    >>> 12.3 < compute_total_epsilon([one, other], delta=1e-5) < 12.3 + 2
    True
    """
    present = tuple(release for release in releases if release.releases > 0)
    if not present:
        return 0.0
    epsilon = _load_accountant()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks for finer orders at the ends, where the bound is good enough
        return epsilon(present, delta)


@lru_cache(maxsize=256)
def compute_noise_multiplier(
    epsilon: float, releases: int, sample_rate: float, delta: float, further: float | None = None
) -> float:
    """The smallest noise with which the releases spend no more than epsilon.

    Parameters
    ----------
    epsilon : float
        The budget.
    releases : int
        How often a sum is released.
    sample_rate : float
        The probability with which a record is in a sum.
    delta : float
        The delta of the budget.
    further : float, optional
        The noise of one further release of a sum of all records, which the budget pays for too.

    Returns
    -------
    float
        The standard deviation of the noise on a sum, in which a record has a norm of at most 1.

    Raises
    ------
    TrustmixError
        If no noise up to `MAX_NOISE_MULTIPLIER` is enough, or if Opacus is not installed.

    Examples
    --------
    >>> noise = compute_noise_multiplier(epsilon=8.0, releases=20, sample_rate=1.0, delta=1e-5)
    >>> 7.9 < compute_epsilon(noise, 20, 1.0, 1e-5) <= 8
    True
    """
    spent = partial(compute_epsilon, releases=releases, sample_rate=sample_rate, delta=delta, further=further)
    low, high = 1e-3, MAX_NOISE_MULTIPLIER
    if spent(high) > epsilon:
        raise TrustmixError(
            f"epsilon is {epsilon:g}; no noise up to {high:g} times the signal is that private, so it must be larger."
        )
    while high / low > 1 + PRECISION:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spent(middle) > epsilon else (low, middle)
    return high


def _load_accountant() -> Callable[[Sequence[Release], float], float]:
    """Import Opacus, which configures the root logger while it is imported, and undo that."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        from opacus.accountants.analysis import rdp
    except ImportError as error:
        raise TrustmixError('A privacy budget needs opacus: pip install "trustmix[privacy]".') from error
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
    analysis: Any = rdp

    def divergence(release: Release) -> Any:
        noise, rate = release.noise_multiplier, release.sample_rate
        return analysis.compute_rdp(q=rate, noise_multiplier=noise, steps=release.releases, orders=ORDERS)

    def epsilon(releases: Sequence[Release], delta: float) -> float:
        total = sum(map(divergence, releases[1:]), start=divergence(releases[0]))
        return float(analysis.get_privacy_spent(orders=ORDERS, rdp=total, delta=delta)[0])

    return epsilon

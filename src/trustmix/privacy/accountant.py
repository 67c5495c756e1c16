"""What differentially private noise costs, by an established accountant.

It is Opacus' Renyi accountant of the Gaussian mechanism on Poisson samples (Mironov, Talwar and Zhang 2019). Its
epsilon is a bound from above: about a tenth more than the exact figure, at any size of noise.
"""

import logging
import math
import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from trustmix.errors import TrustmixError

ORDERS = [1.1, 1.5, *range(2, 33), 40, 48, 64, 96, 128, 192, 256, 512, 1024]
"""The Renyi orders tried; whole ones are quick, the few broken ones matter where epsilon is large."""
PRECISION = 1e-3
"""Noise is found up to this part of itself, on the safe side."""


@lru_cache(maxsize=4096)
def compute_epsilon(noise: float, releases: int, rate: float, delta: float) -> float:
    """Epsilon at delta of so many releases of a sum in which each record is with chance `rate` and counts at most 1.

    `noise` is the standard deviation of the Gaussian noise on the sum.

    >>> round(compute_epsilon(noise=2.0, releases=20, rate=1.0, delta=1e-5), 1)
    12.3
    >>> compute_epsilon(noise=2.0, releases=20, rate=0.1, delta=1e-5) < 2
    True
    """
    if releases == 0:
        return 0.0
    spent = _accountant()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks for finer orders at the ends, where the bound is good enough
        return spent(noise, releases, rate, delta)


@lru_cache(maxsize=256)
def compute_noise_multiplier(epsilon: float, releases: int, rate: float, delta: float) -> float:
    """The smallest noise that spends no more than epsilon.

    >>> noise = compute_noise_multiplier(epsilon=8.0, releases=20, rate=1.0, delta=1e-5)
    >>> 7.9 < compute_epsilon(noise, 20, 1.0, 1e-5) <= 8
    True
    """
    spent = partial(compute_epsilon, releases=releases, rate=rate, delta=delta)
    low, high = 1e-3, 1e4
    if spent(high) > epsilon:
        raise TrustmixError(
            f"privacy.epsilon is {epsilon:g}; no noise up to {high:g} times the signal is that private."
        )
    while high / low > 1 + PRECISION:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spent(middle) > epsilon else (low, middle)
    return high


def _accountant() -> Callable[[float, int, float, float], float]:
    """Opacus, imported only where noise is asked for, and kept from printing everybody's log."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        from opacus.accountants.analysis import rdp
    except ImportError as error:
        raise TrustmixError('[privacy] needs an accountant of epsilon: pip install "trustmix[privacy]".') from error
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
    analysis: Any = rdp

    def spent(noise: float, releases: int, rate: float, delta: float) -> float:
        each = analysis.compute_rdp(q=rate, noise_multiplier=noise, steps=releases, orders=ORDERS)
        return float(analysis.get_privacy_spent(orders=ORDERS, rdp=each, delta=delta)[0])

    return spent

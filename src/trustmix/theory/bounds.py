"""Bounds, floors and iteration counts: the two theorems and two corollaries of the appendix.

    stationarity:  E||grad F(out)||^2 <= 2 gap / (T gamma (1-m)) + L gamma nu^2 / (1-m) + zeta^2 / (1-m)
    PL:            E[F(theta_T) - F*] <= (1 - gamma mu (1-m))^T gap + (zeta^2 + L gamma nu^2) / (2 mu (1-m))

gap is F(theta_0) - F*, gamma <= 1/L the step size; m and zeta^2 come from `constants.oracle`, noise is nu^2.
"""

import math

from trustmix.errors import TrustmixError
from trustmix.theory.constants import Oracle


def stationarity_floor(oracle: Oracle) -> float:
    """The floor of stationarity, epsilon_min = zeta^2 / (1 - m), which no number of steps goes below.

    Parameters
    ----------
    oracle : Oracle
        m and zeta^2.

    Returns
    -------
    float
        The floor of ||grad F||^2.

    Examples
    --------
    >>> stationarity_floor(Oracle(m=0.5, zeta2=1.0))
    2.0
    """
    return oracle.zeta2 / (1 - oracle.m)


def stationarity_bound(
    steps: int, oracle: Oracle, *, gap: float, gamma: float, smoothness: float, noise: float = 0.0
) -> float:
    """The bound on E||grad F||^2 at one of the first T points, drawn at random.

    Parameters
    ----------
    steps : int
        T, 1 or more.
    oracle : Oracle
        m and zeta^2.
    gap : float
        F(theta_0) - F*.
    gamma : float
        The step size; at most 1/L.
    smoothness : float
        L.
    noise : float
        nu^2.

    Returns
    -------
    float
        The bound.

    Raises
    ------
    TrustmixError
        If an argument is outside of what the theorem covers.

    Examples
    --------
    >>> stationarity_bound(10, Oracle(m=0.5, zeta2=1.0), gap=5.0, gamma=1.0, smoothness=1.0)
    4.0
    """
    _validate(gamma=gamma, smoothness=smoothness, gap=gap, noise=noise)
    if steps < 1:
        raise TrustmixError(f"steps is {steps}; a point is drawn from the first {steps}, so it must be 1 or more.")
    kept = 1 - oracle.m
    return 2 * gap / (steps * gamma * kept) + smoothness * gamma * noise / kept + stationarity_floor(oracle)


def stationarity_step_size(epsilon: float, oracle: Oracle, *, smoothness: float, noise: float = 0.0) -> float:
    """The step size of the first corollary, min(1/L, (epsilon - floor)(1-m) / (2 L nu^2)).

    Parameters
    ----------
    epsilon : float
        The target; above the floor.
    oracle : Oracle
        m and zeta^2.
    smoothness : float
        L.
    noise : float
        nu^2.

    Returns
    -------
    float
        gamma, so short that noise takes at most half of epsilon - floor.

    Raises
    ------
    TrustmixError
        If epsilon is not above the floor, or another argument is outside of what the theorem covers.

    Examples
    --------
    >>> stationarity_step_size(3.0, Oracle(m=0.5, zeta2=1.0), smoothness=2.0, noise=1.0)
    0.125
    """
    _validate(smoothness=smoothness, noise=noise)
    left = _distance_above(epsilon, stationarity_floor(oracle))
    longest = 1 / smoothness
    return longest if noise == 0 else min(longest, left * (1 - oracle.m) / (2 * smoothness * noise))


def stationarity_steps(epsilon: float, oracle: Oracle, *, gap: float, smoothness: float, noise: float = 0.0) -> int:
    """The number of steps after which E||grad F||^2 <= epsilon, at the step size of `stationarity_step_size`.

    It is the larger of two counts: 4 L gap / ((1-m) e), where gamma = 1/L, and 8 L nu^2 gap / ((1-m)^2 e^2), where
    noise shortens the step; e = epsilon - floor.

    Parameters
    ----------
    epsilon : float
        The target; above the floor.
    oracle : Oracle
        m and zeta^2.
    gap : float
        F(theta_0) - F*.
    smoothness : float
        L.
    noise : float
        nu^2.

    Returns
    -------
    int
        T, 1 or more.

    Raises
    ------
    TrustmixError
        If epsilon is not above the floor, or another argument is outside of what the theorem covers.

    Examples
    --------
    >>> stationarity_steps(3.0, Oracle(m=0.5, zeta2=1.0), gap=1.0, smoothness=2.0, noise=1.0)
    64
    >>> stationarity_steps(3.0, Oracle(m=0.5, zeta2=1.0), gap=1.0, smoothness=2.0)
    16
    """
    _validate(gap=gap)
    gamma = stationarity_step_size(epsilon, oracle, smoothness=smoothness, noise=noise)
    left = epsilon - stationarity_floor(oracle)
    return max(1, math.ceil(4 * gap / (gamma * (1 - oracle.m) * left)))


def pl_floor(oracle: Oracle, *, gamma: float, smoothness: float, pl: float, noise: float = 0.0) -> float:
    """The floor under the PL condition, epsilon_floor(gamma) = (zeta^2 + L gamma nu^2) / (2 mu (1 - m)).

    Parameters
    ----------
    oracle : Oracle
        m and zeta^2.
    gamma : float
        The step size; at most 1/L.
    smoothness : float
        L.
    pl : float
        mu; at most L.
    noise : float
        nu^2.

    Returns
    -------
    float
        The floor of F - F*.

    Raises
    ------
    TrustmixError
        If an argument is outside of what the theorem covers.

    Examples
    --------
    >>> pl_floor(Oracle(m=0.5, zeta2=1.0), gamma=0.5, smoothness=1.0, pl=1.0, noise=2.0)
    2.0
    """
    _validate(gamma=gamma, smoothness=smoothness, pl=pl, noise=noise)
    return (oracle.zeta2 + smoothness * gamma * noise) / (2 * pl * (1 - oracle.m))


def pl_bound(
    steps: int, oracle: Oracle, *, gap: float, gamma: float, smoothness: float, pl: float, noise: float = 0.0
) -> float:
    """The bound on E[F - F*] after T steps, under the PL condition.

    Parameters
    ----------
    steps : int
        T, 0 or more.
    oracle : Oracle
        m and zeta^2.
    gap : float
        F(theta_0) - F*.
    gamma : float
        The step size; at most 1/L.
    smoothness : float
        L.
    pl : float
        mu; at most L.
    noise : float
        nu^2.

    Returns
    -------
    float
        The bound.

    Raises
    ------
    TrustmixError
        If an argument is outside of what the theorem covers.

    Examples
    --------
    >>> pl_bound(0, Oracle(m=0.5, zeta2=1.0), gap=3.0, gamma=1.0, smoothness=1.0, pl=0.5)
    5.0
    """
    _validate(gap=gap)
    if steps < 0:
        raise TrustmixError(f"steps is {steps}; it must be 0 or more.")
    floor = pl_floor(oracle, gamma=gamma, smoothness=smoothness, pl=pl, noise=noise)
    return float((1 - gamma * pl * (1 - oracle.m)) ** steps * gap + floor)


def pl_steps(
    epsilon: float, oracle: Oracle, *, gap: float, gamma: float, smoothness: float, pl: float, noise: float = 0.0
) -> int:
    """The number of steps after which E[F - F*] <= epsilon: log(gap / (epsilon - floor)) / (gamma mu (1 - m)).

    Parameters
    ----------
    epsilon : float
        The target; above the floor.
    oracle : Oracle
        m and zeta^2.
    gap : float
        F(theta_0) - F*.
    gamma : float
        The step size; at most 1/L.
    smoothness : float
        L.
    pl : float
        mu; at most L.
    noise : float
        nu^2.

    Returns
    -------
    int
        T; 0 where the start is good enough.

    Raises
    ------
    TrustmixError
        If epsilon is not above the floor, or another argument is outside of what the theorem covers.

    Examples
    --------
    >>> pl_steps(3.0, Oracle(m=0.5, zeta2=1.0), gap=math.exp(3.0), gamma=1.0, smoothness=1.0, pl=0.5)
    12
    """
    _validate(gap=gap)
    floor = pl_floor(oracle, gamma=gamma, smoothness=smoothness, pl=pl, noise=noise)
    left = _distance_above(epsilon, floor)
    if gap <= left:
        return 0
    exact = math.log(gap / left) / (gamma * pl * (1 - oracle.m))
    return math.ceil(exact * (1 - 1e-12))  # rounding must not add a step


def _distance_above(epsilon: float, floor: float) -> float:
    """The distance of the target above the floor; a target that is not above it is refused."""
    if not epsilon > floor:
        raise TrustmixError(
            f"epsilon is {epsilon:g}, not above the floor {floor:g}: no number of steps reaches it; "
            "a better teacher lowers the floor, and so does a shorter step where noise is in it."
        )
    return epsilon - floor


def _validate(
    gamma: float | None = None,
    smoothness: float | None = None,
    pl: float | None = None,
    gap: float = 0.0,
    noise: float = 0.0,
) -> None:
    """Refuse arguments that the theorems do not cover."""
    for name, value in {"gamma": gamma, "smoothness": smoothness, "pl": pl}.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise TrustmixError(f"{name} is {value:g}; it must be a number above 0.")
    for name, value in {"gap": gap, "noise": noise}.items():
        if not (value >= 0 and math.isfinite(value)):
            raise TrustmixError(f"{name} is {value:g}; it must be a number, 0 or more.")
    if gamma is not None and smoothness is not None and gamma > (1 + 1e-12) / smoothness:
        raise TrustmixError(f"gamma is {gamma:g}; it must not be above 1/L = {1 / smoothness:g}.")
    if pl is not None and smoothness is not None and pl > smoothness * (1 + 1e-12):
        raise TrustmixError(f"pl is {pl:g}, above the smoothness {smoothness:g}; mu is never larger than L.")

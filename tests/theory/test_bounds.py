"""Bounds, floors and iteration counts: against NumPy, against each other, and refused where they say nothing."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trustmix import TrustmixError
from trustmix.theory import (
    Oracle,
    pl_bound,
    pl_floor,
    pl_steps,
    stationarity_bound,
    stationarity_floor,
    stationarity_step_size,
    stationarity_steps,
)

SIZES = st.floats(1e-2, 1e2)
ORACLES = st.builds(Oracle, st.floats(0, 0.95), st.floats(0, 10))
NOISES = st.one_of(st.just(0.0), SIZES)


@given(ORACLES, SIZES, SIZES, st.floats(0.01, 1), NOISES, st.integers(1, 1000))
def test_the_stationarity_bound_is_the_theorems(
    o: Oracle, gap: float, smooth: float, part: float, noise: float, steps: int
) -> None:
    gamma = part / smooth
    terms = np.array([2 * gap / (steps * gamma), smooth * gamma * noise, o.zeta2]) / (1 - o.m)
    found = stationarity_bound(steps, o, gap=gap, gamma=gamma, smoothness=smooth, noise=noise)
    assert found == pytest.approx(terms.sum())
    assert found > stationarity_floor(o)


@given(ORACLES, SIZES, SIZES, st.floats(0.01, 1), st.floats(0.01, 1), NOISES, st.integers(0, 60))
def test_the_pl_bound_is_above_the_recursion_it_unrolls(
    o: Oracle, gap: float, smooth: float, part: float, mu_part: float, noise: float, steps: int
) -> None:
    gamma, pl = part / smooth, mu_part * smooth
    height = gap
    for _ in range(steps):
        height = (1 - gamma * pl * (1 - o.m)) * height + gamma / 2 * o.zeta2 + smooth * gamma**2 / 2 * noise
    found = pl_bound(steps, o, gap=gap, gamma=gamma, smoothness=smooth, pl=pl, noise=noise)
    assert height <= found * (1 + 1e-9)
    floor = (o.zeta2 + smooth * gamma * noise) / (2 * pl * (1 - o.m))
    assert found == pytest.approx((1 - gamma * pl * (1 - o.m)) ** steps * gap + floor)


@given(ORACLES, SIZES, SIZES, NOISES, st.floats(1e-2, 1e2))
def test_the_stationarity_count_reaches_epsilon_and_is_the_larger_branch(
    o: Oracle, gap: float, smooth: float, noise: float, above: float
) -> None:
    epsilon = stationarity_floor(o) + above
    gamma = stationarity_step_size(epsilon, o, smoothness=smooth, noise=noise)
    steps = stationarity_steps(epsilon, o, gap=gap, smoothness=smooth, noise=noise)
    reached = stationarity_bound(steps, o, gap=gap, gamma=gamma, smoothness=smooth, noise=noise)
    assert reached <= epsilon * (1 + 1e-9)
    branches = 4 * smooth * gap / ((1 - o.m) * above), 8 * smooth * noise * gap / ((1 - o.m) ** 2 * above**2)
    assert steps == pytest.approx(max(1, math.ceil(max(branches))), rel=1e-6, abs=1)


def test_little_noise_does_not_make_the_count_vanish() -> None:
    """The formula of the noise-limited branch alone would say that one step is enough."""
    o = Oracle(0.5, 1.0)
    assert stationarity_steps(3.0, o, gap=100.0, smoothness=2.0, noise=1e-9) == 1600
    assert 8 * 2.0 * 1e-9 * 100.0 / (0.5**2 * 1.0**2) < 1


@given(ORACLES, SIZES, SIZES, st.floats(0.01, 1), st.floats(0.01, 1), NOISES, st.floats(1e-2, 1e2))
def test_the_pl_count_reaches_epsilon(
    o: Oracle, gap: float, smooth: float, part: float, mu_part: float, noise: float, above: float
) -> None:
    gamma, pl = part / smooth, mu_part * smooth
    epsilon = pl_floor(o, gamma=gamma, smoothness=smooth, pl=pl, noise=noise) + above
    steps = pl_steps(epsilon, o, gap=gap, gamma=gamma, smoothness=smooth, pl=pl, noise=noise)
    reached = pl_bound(steps, o, gap=gap, gamma=gamma, smoothness=smooth, pl=pl, noise=noise)
    assert reached <= epsilon * (1 + 1e-9)


def test_a_target_above_the_start_takes_no_step() -> None:
    assert pl_steps(9.0, Oracle(0.0, 0.0), gap=1.0, gamma=1.0, smoothness=1.0, pl=1.0) == 0


SETTING: dict[str, float] = {"gap": 1.0, "gamma": 0.5, "smoothness": 2.0}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda o: stationarity_steps(2.0, o, gap=1.0, smoothness=1.0), "epsilon is 2, not above the floor 2"),
        (lambda o: stationarity_step_size(1.0, o, smoothness=1.0), "not above the floor 2"),
        (lambda o: pl_steps(0.1, o, **SETTING, pl=1.0), "not above the floor 1"),
        (lambda o: stationarity_bound(0, o, **SETTING), "steps is 0"),
        (
            lambda o: stationarity_bound(1, o, **SETTING | {"gamma": 0.6}),
            "gamma is 0.6; it must not be above 1/L = 0.5",
        ),
        (lambda o: stationarity_bound(1, o, **SETTING | {"gamma": 0.0}), "gamma is 0"),
        (lambda o: stationarity_bound(1, o, **SETTING | {"gap": -1.0}), "gap is -1"),
        (lambda o: stationarity_bound(1, o, **SETTING, noise=math.nan), "noise is nan"),
        (lambda o: pl_bound(-1, o, **SETTING, pl=1.0), "steps is -1"),
        (lambda o: pl_bound(1, o, **SETTING, pl=3.0), "pl is 3, above the smoothness 2"),
    ],
)
def test_what_no_theorem_covers_is_refused_in_a_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        call(Oracle(0.5, 1.0))

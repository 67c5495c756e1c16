"""Paired differences over seeds, against SciPy, and what a headline claims of them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from trustmix.report.paired import PairedDifference, t_quantile

VALUES = st.lists(st.floats(0, 1), min_size=2, max_size=12)


@given(st.integers(1, 60), st.floats(0.01, 0.9999))
def test_the_quantile_is_that_of_scipy(degrees: int, level: float) -> None:
    assert t_quantile(level, degrees) == pytest.approx(stats.t.ppf((1 + level) / 2, degrees), rel=1e-6)


@pytest.mark.filterwarnings("ignore:Precision loss")  # SciPy's, of differences that are equal up to rounding
@example([0.1, 0.0], 0)
@given(VALUES, st.integers(0, 1000))
def test_the_interval_is_that_of_a_paired_t_test(ours: list[float], seed: int) -> None:
    theirs = [value * 0.9 - 0.01 * ((seed + place) % 7) for place, value in enumerate(ours)]
    found = PairedDifference.of(ours, theirs)
    wanted = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert found.interval == pytest.approx((wanted.low, wanted.high), rel=1e-6, abs=1e-9)
    assert found.n == len(ours)


def test_zero_is_outside_of_an_interval_on_either_side_and_never_with_one_seed() -> None:
    assert PairedDifference.of([0.5, 0.6], [0.4, 0.501]).excludes_zero
    assert PairedDifference.of([0.4, 0.501], [0.5, 0.6]).excludes_zero
    assert not PairedDifference.of([0.5, 0.9], [0.4, 0.4]).excludes_zero
    assert not PairedDifference.of([0.9], [0.1]).excludes_zero

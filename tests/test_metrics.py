"""How honest probabilities are, against scikit-learn and a plain loop over bins."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from trustmix.metrics import ClassificationMetrics, calibration_error, negative_log_likelihood


def drawn(seed: int, samples: int = 300, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(classes, 0.4), samples), rng.integers(0, classes, samples)


def by_bins(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """The definition, bin by bin: (0, 1/15], (1/15, 2/15], ..."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    total = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


@pytest.mark.parametrize("seed", range(5))
def test_both_follow_their_definitions(seed: int) -> None:
    probabilities, labels = drawn(seed)
    assert negative_log_likelihood(probabilities, labels) == pytest.approx(log_loss(labels, probabilities), rel=1e-6)
    assert calibration_error(probabilities, labels) == pytest.approx(by_bins(probabilities, labels))
    worth = ClassificationMetrics.of(torch.from_numpy(probabilities).float(), torch.from_numpy(labels))
    assert worth.accuracy == pytest.approx((probabilities.argmax(1) == labels).mean())
    assert worth.nll == pytest.approx(log_loss(labels, probabilities), rel=1e-4)


@given(st.integers(0, 1000), st.integers(2, 7))
def test_the_calibration_error_lies_between_nothing_and_one(seed: int, classes: int) -> None:
    assert 0 <= calibration_error(*drawn(seed, 20, classes)) <= 1


def test_a_class_that_was_dropped_counts_as_very_unlikely_not_as_impossible() -> None:
    assert negative_log_likelihood([[1.0, 0.0]], [1]) == pytest.approx(12 * math.log(10))

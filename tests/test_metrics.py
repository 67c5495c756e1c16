"""How honest probabilities are, against scikit-learn and a plain loop over bins."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, log_loss, recall_score, roc_auc_score

from trustmix.metrics import (
    TEMPERATURES,
    ClassificationMetrics,
    calibration_error,
    fit_temperature,
    negative_log_likelihood,
)


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


@given(st.integers(1, 200), st.integers(2, 12), st.floats(0.2, 5.0), st.integers(0, 2**20))
@settings(deadline=None, max_examples=30)
def test_no_other_temperature_fits_smoothed_labels_better(n: int, classes: int, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, labels = scale * rng.normal(size=(n, classes)), rng.integers(0, classes, n)
    smoothed = np.full((n, classes), 1 / (n + 2) / classes)
    smoothed[np.arange(n), labels] += 1 - 1 / (n + 2)

    def loss(temperature: float) -> float:
        z = logits / temperature
        z = z - z.max(1, keepdims=True)
        return float(-(smoothed * (z - np.log(np.exp(z).sum(1, keepdims=True)))).sum(1).mean())

    found = fit_temperature(logits, labels)
    others = np.clip([*TEMPERATURES, found * 1.01, found / 1.01, 1.0], *TEMPERATURES)
    assert all(loss(found) <= loss(other) + 1e-12 for other in others)


def test_a_few_samples_that_are_all_right_do_not_make_a_model_certain() -> None:
    temperature = fit_temperature([[4.0, 0.0, 0.0]] * 24, [0] * 24)
    sure = torch.softmax(torch.tensor([4.0, 0.0, 0.0]) / temperature, 0)[0]
    assert float(sure) == pytest.approx(1 - 2 / 3 / 26, abs=1e-4)
    assert fit_temperature(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)) == 1


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 6), st.integers(2, 40), st.integers(0, 2**32 - 1))
def test_recall_f1_and_auroc_are_those_of_scikit_learn_over_the_classes_that_occur(
    classes: int, samples: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    p = np.round(draw.dirichlet(np.ones(classes), samples), 1) + 0.01  # with many ties
    p /= p.sum(1, keepdims=True)
    y = draw.integers(0, draw.integers(1, classes + 1), samples)
    found, occurs = ClassificationMetrics.of(p, y), np.unique(y)
    recall = recall_score(y, p.argmax(1), labels=occurs, average=None, zero_division=0)
    assert found.balanced_accuracy == pytest.approx(recall.mean())
    assert [found.recall[cls] for cls in occurs] == pytest.approx(recall.tolist())
    assert all(found.recall[cls] is None for cls in range(classes) if cls not in occurs)
    expected = f1_score(y, p.argmax(1), labels=occurs, average="macro", zero_division=0)
    assert found.macro_f1 == pytest.approx(expected)
    if len(occurs) == 1:
        assert found.auroc is None
    else:
        assert found.auroc == pytest.approx(np.mean([roc_auc_score(y == cls, p[:, cls]) for cls in occurs]))

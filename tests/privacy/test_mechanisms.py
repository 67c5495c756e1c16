"""Mechanisms: noise as specified, probabilities again after it, and scores without private data."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trustmix.density import ClassGaussians
from trustmix.privacy.mechanisms import gaussian_mechanism, project_to_simplex, select_confident_samples


def test_noise_on_predictions_is_normal_and_as_large_as_two_uploads_can_differ() -> None:
    samples, classes, noise = 2000, 4, 1e-4
    even = torch.full((samples, classes), 1 / classes, dtype=torch.float64)
    moved = (gaussian_mechanism(even, noise, torch.Generator().manual_seed(0)) - even).flatten().numpy()
    # so small a noise never reaches the simplex' border: rows lose the mean of their noise and nothing else
    deviation = noise * math.sqrt(2 * samples) * math.sqrt(1 - 1 / classes)
    assert stats.kstest(moved, stats.norm(scale=deviation).cdf).pvalue > 0.01
    assert stats.kstest(moved, stats.norm(scale=1.1 * deviation).cdf).pvalue < 0.01


@given(st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=1, max_size=4))
def test_no_probabilities_are_nearer_than_the_nearest(rows: list[list[float]]) -> None:
    given_rows = torch.tensor(rows, dtype=torch.float64)
    found = project_to_simplex(given_rows)
    assert bool((found >= 0).all())
    assert found.sum(1).tolist() == pytest.approx([1] * len(rows))
    rest = given_rows - found
    corners = torch.eye(3, dtype=torch.float64)
    assert bool(((rest @ corners.T) - (rest * found).sum(1, keepdim=True) <= 1e-9).all())


def test_a_density_without_calibration_tells_the_held_classes_from_the_others() -> None:
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 4
    logits = 3 * torch.eye(4)[labels] + torch.randn(400, 4, generator=draws)
    chosen, classes = select_confident_samples(logits, held=[1, 3])
    scores = ClassGaussians.fit(logits[chosen], classes).log_prob(logits)
    own = (labels == 1) | (labels == 3)
    assert float(scores[own].median()) > float(scores[~own].quantile(0.9))

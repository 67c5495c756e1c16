"""Gaussians of features against scikit-learn and SciPy."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.covariance import LedoitWolf

from trustmix.density import FeatureGaussians, ledoit_wolf
from trustmix.density.base import VARIANCE_FLOOR


def samples(seed: int = 0, count: int = 60, width: int = 6, away: float = 0.0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % 3)
    return rng.normal(size=(count, width)) * 2 + 6 * np.eye(width)[labels] + away, labels


@pytest.mark.parametrize("width", [6, 90])
def test_gaussians_of_features_agree_with_scikit_learn_and_scipy(width: int) -> None:
    features, labels = samples(1, width=width)
    means = [features[labels == cls].mean(0) for cls in range(3)]
    inside = features - np.stack(means)[labels]
    covariance = LedoitWolf(assume_centered=True).fit(inside).covariance_
    covariance += VARIANCE_FLOOR * features.var(0).mean() * np.eye(width)
    parts = [
        multivariate_normal(mean, covariance).logpdf(features) + np.log(np.mean(labels == cls))
        for cls, mean in enumerate(means)
    ]
    np.testing.assert_allclose(
        FeatureGaussians.fit(features, labels).log_prob(features), logsumexp(parts, axis=0), rtol=1e-9
    )


def test_a_covariance_is_shrunk_as_by_scikit_learn() -> None:
    for count, width in [(5, 20), (200, 3)]:
        rows = np.random.default_rng(2).normal(size=(count, width)) * np.arange(1, width + 1)
        rows -= rows.mean(0)
        found = ledoit_wolf(torch.from_numpy(rows))
        np.testing.assert_allclose(found, LedoitWolf(assume_centered=True).fit(rows).covariance_, rtol=1e-9)


def test_a_covariance_of_too_few_alike_directions_is_shrunk_all_the_way_to_its_mean_variance() -> None:
    rows = np.array([[1.0, 0.2, 0.0], [-1.0, 0.2, 0.0], [0.0, -0.2, 1.0], [0.0, -0.2, -1.0]])
    reference = LedoitWolf(assume_centered=True).fit(rows)
    assert reference.shrinkage_ == 1
    np.testing.assert_allclose(ledoit_wolf(torch.from_numpy(rows)), reference.covariance_, atol=1e-12)
    np.testing.assert_allclose(ledoit_wolf(torch.from_numpy(rows)), np.eye(3) * (0.5 + 0.04 + 0.5) / 3, atol=1e-12)


def test_a_covariance_that_is_round_stays_as_it_is() -> None:
    square = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]], dtype=torch.float64)
    assert ledoit_wolf(square).tolist() == [[2.0, 0.0], [0.0, 2.0]]
    assert ledoit_wolf(torch.zeros(3, 2, dtype=torch.float64)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_features_that_are_all_the_same_have_the_floor_as_variance() -> None:
    points = np.array([[1.0, 1.0, 1.0], [1.1, 1.0, 1.0]])
    found = FeatureGaussians.fit(np.ones((4, 3)), [0, 0, 1, 1]).log_prob(points)
    np.testing.assert_allclose(found, multivariate_normal(np.ones(3), 1e-3 * np.eye(3)).logpdf(points), rtol=1e-9)

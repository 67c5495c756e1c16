"""Distances to class centroids, by hand and against NumPy."""

import numpy as np
import pytest

from trustmix.density import DENSITIES, NearestCentroid
from trustmix.density.base import VARIANCE_FLOOR


def test_scores_by_hand() -> None:
    """Centroids (0, 0) and (6, 0); squared distances within classes 1, 1, 9, 9 have the mean sigma^2 = 5."""
    features, labels = np.array([[1.0, 0.0], [-1.0, 0.0], [6.0, 3.0], [6.0, -3.0]]), [3, 3, 7, 7]
    density = NearestCentroid.fit(features, labels)
    assert density.variance == pytest.approx(5)
    points = np.array([[0.0, 0.0], [2.0, 0.0], [5.0, 2.0], [3.0, 4.0]])  # squared distances 0, 4, 1 + 4, 9 + 16
    np.testing.assert_allclose(density.log_prob(points), [0, -0.4, -0.5, -2.5])


def test_scores_are_the_largest_kernel_of_all_classes() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    features = rng.normal(size=(90, 5)) + 4 * np.eye(5)[labels]
    centroids = np.stack([features[labels == label].mean(0) for label in range(3)])
    sigma2 = ((features - centroids[labels]) ** 2).sum(1).mean()
    points = rng.normal(size=(20, 5)) * 3
    kernels = np.exp(-((points[:, None] - centroids) ** 2).sum(2) / (2 * sigma2))
    np.testing.assert_allclose(DENSITIES.get("duq").fit(features, labels).log_prob(points), np.log(kernels.max(1)))


def test_one_sample_a_class_has_the_smallest_width() -> None:
    features = np.array([[0.0, 0.0], [2.0, 0.0]])  # the squared distance to the common mean is 1
    assert NearestCentroid.fit(features, [0, 1]).variance == pytest.approx(VARIANCE_FLOOR)

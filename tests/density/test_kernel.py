"""Kernel density against scikit-learn."""

from typing import Any

import numpy as np
import pytest
from sklearn.neighbors import KernelDensity as Reference

from trustmix.density import KernelDensity
from trustmix.density.base import VARIANCE_FLOOR


def samples(seed: int = 0, count: int = 60, away: float = 0.0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % 3)
    return rng.normal(size=(count, 6)) * 2 + 6 * np.eye(6)[labels] + away, labels


def width_by_scott(logits: Any, labels: Any) -> float:
    classes = np.unique(labels)
    inside = np.mean([logits[labels == cls].var(0).mean() for cls in classes])
    sigma = np.sqrt(max(inside, VARIANCE_FLOOR * (logits.var(0).mean() or 1.0)))
    return float(sigma * (len(logits) / len(classes)) ** (-1 / (logits.shape[1] + 4)))


@pytest.mark.parametrize("away", [0.0, 1e4])
def test_kernels_agree_with_scikit_learn(away: float) -> None:
    logits, labels = samples(away=away)
    points = np.concatenate([logits, logits[:9] + 30])
    reference = Reference(bandwidth=width_by_scott(logits, labels)).fit(logits)
    np.testing.assert_allclose(
        KernelDensity.fit(logits, labels).log_prob(points), reference.score_samples(points), rtol=1e-6
    )


def test_kernels_in_many_tiles_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = samples()
    whole = KernelDensity.fit(logits, labels).log_prob(logits)
    monkeypatch.setattr("trustmix.density.kernel.MAX_DISTANCES", 200)
    np.testing.assert_allclose(KernelDensity.fit(logits, labels).log_prob(logits), whole, rtol=1e-12)

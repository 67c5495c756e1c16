"""Kernel density against scikit-learn."""

from typing import Any

import numpy as np
import pytest
import torch
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


@pytest.mark.parametrize("scale", [0.0, 0.2, 30.0])
def test_where_classes_have_no_variance_the_floor_of_all_samples_gives_the_width(scale: float) -> None:
    logits, labels = scale * np.repeat(np.eye(5)[:, :3], 4, 0) + 2.0, np.repeat(np.arange(5), 4)
    width = np.sqrt(1e-3 * (logits.var(0).mean() or 1.0)) * 4 ** (-1 / 7)
    density = KernelDensity.fit(logits, labels)
    assert density.width == pytest.approx(width)
    points = logits + width
    reference = Reference(bandwidth=width).fit(logits)
    np.testing.assert_allclose(density.log_prob(points), reference.score_samples(points), rtol=1e-6)
    assert KernelDensity.fit(logits, labels, floor=0.1).width == pytest.approx(10 * width)


def test_kernels_in_many_tiles_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = samples()
    whole = KernelDensity.fit(logits, labels).log_prob(logits)
    monkeypatch.setattr("trustmix.density.kernel.MAX_DISTANCES", 200)
    sizes, cdist = [], torch.cdist

    def measured(rows: torch.Tensor, centres: torch.Tensor, **options: Any) -> torch.Tensor:
        sizes.append(len(rows) * len(centres))
        return cdist(rows, centres, **options)

    monkeypatch.setattr(torch, "cdist", measured)
    np.testing.assert_allclose(KernelDensity.fit(logits, labels).log_prob(logits), whole, rtol=1e-12)
    assert sizes == [3 * 60] * 20  # as many rows of 60 distances as fit into 200
    monkeypatch.setattr("trustmix.density.kernel.MAX_DISTANCES", 2)
    np.testing.assert_allclose(KernelDensity.fit(logits, labels).log_prob(logits), whole, rtol=1e-12)
    assert max(sizes[20:]) == 60  # one row at a time where not even one fits

"""Each density against an independent implementation, and what all of them have in common."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import entr, logsumexp, softmax
from scipy.stats import multivariate_normal
from sklearn.covariance import LedoitWolf
from sklearn.neighbors import KernelDensity

from trustmix import TrustmixError
from trustmix.density.estimators import DENSITIES, FeatureGaussians, Kernels, shrunk_covariance, standardize_scores
from trustmix.density.gaussians import FLOOR

KINDS = DENSITIES.names()


def samples(seed: int = 0, count: int = 60, width: int = 6, away: float = 0.0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % 3)
    return rng.normal(size=(count, width)) * 2 + 6 * np.eye(width)[labels] + away, labels


def width_by_scott(logits: Any, labels: Any) -> float:
    classes = np.unique(labels)
    inside = np.mean([logits[labels == cls].var(0).mean() for cls in classes])
    sigma = np.sqrt(max(inside, FLOOR * (logits.var(0).mean() or 1.0)))
    return float(sigma * (len(logits) / len(classes)) ** (-1 / (logits.shape[1] + 4)))


@pytest.mark.parametrize("away", [0.0, 1e4])
def test_kernels_agree_with_scikit_learn(away: float) -> None:
    logits, labels = samples(away=away)
    points = np.concatenate([logits, logits[:9] + 30])
    reference = KernelDensity(bandwidth=width_by_scott(logits, labels)).fit(logits)
    np.testing.assert_allclose(Kernels.fit(logits, labels).log_prob(points), reference.score_samples(points), rtol=1e-6)


def test_kernels_in_many_tiles_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = samples()
    whole = Kernels.fit(logits, labels).log_prob(logits)
    monkeypatch.setattr("trustmix.density.estimators.TILE", 200)
    np.testing.assert_allclose(Kernels.fit(logits, labels).log_prob(logits), whole, rtol=1e-12)


@pytest.mark.parametrize("width", [6, 90])
def test_gaussians_of_features_agree_with_scikit_learn_and_scipy(width: int) -> None:
    features, labels = samples(1, width=width)
    means = [features[labels == cls].mean(0) for cls in range(3)]
    inside = features - np.stack(means)[labels]
    covariance = LedoitWolf(assume_centered=True).fit(inside).covariance_
    covariance += FLOOR * features.var(0).mean() * np.eye(width)
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
        found = shrunk_covariance(torch.from_numpy(rows))
        np.testing.assert_allclose(found, LedoitWolf(assume_centered=True).fit(rows).covariance_, rtol=1e-9)


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        ("energy", lambda z: logsumexp(z, axis=1)),
        ("entropy", lambda z: -entr(softmax(z, axis=1)).sum(1)),
        ("max-probability", lambda z: np.log(softmax(z, axis=1).max(1))),
    ],
)
def test_scores_of_confidence_have_closed_forms(kind: str, formula: Any) -> None:
    logits, labels = samples()
    np.testing.assert_allclose(DENSITIES.get(kind).fit(logits[:5], labels[:5]).log_prob(logits), formula(logits))


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 99))
@settings(max_examples=5, deadline=None)
def test_the_order_of_samples_does_not_matter(kind: str, seed: int) -> None:
    logits, labels = samples(seed)
    order = np.random.default_rng(seed).permutation(len(logits))
    one = DENSITIES.get(kind).fit(logits, labels).log_prob(logits)
    other = DENSITIES.get(kind).fit(logits[order], labels[order]).log_prob(logits[order])
    np.testing.assert_allclose(other, one[order], rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@given(by=st.floats(-50, 50))
@settings(max_examples=5, deadline=None)
def test_logits_that_are_all_shifted_shift_energy_and_change_nothing_else(kind: str, by: float) -> None:
    logits, labels = samples()
    one = DENSITIES.get(kind).fit(logits, labels).log_prob(logits)
    other = DENSITIES.get(kind).fit(logits + by, labels).log_prob(logits + by)
    np.testing.assert_allclose(other, one + (by if kind == "energy" else 0), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["gaussians", "kernel", "features"])
def test_what_was_calibrated_on_is_more_likely_than_what_is_far_away(kind: str) -> None:
    logits, labels = samples()
    density = DENSITIES.get(kind).fit(logits, labels)
    assert density.log_prob(logits).min() > density.log_prob(logits - 40).max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("logits", [np.zeros((4, 3)), np.eye(4)[:, :3], [[1.0, 2.0, 3.0]] * 4])
def test_degenerate_calibration_samples_give_finite_scores(kind: str, logits: Any) -> None:
    density = DENSITIES.get(kind).fit(logits, np.arange(4))  # one sample a class
    assert np.isfinite(density.log_prob(np.asarray(logits) + 1.0)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_in_goes_out(kind: str) -> None:
    logits, labels = samples()
    density = DENSITIES.get(kind).fit(torch.tensor(logits), torch.tensor(labels))
    assert density.log_prob(logits.astype(np.float16)).dtype == np.float32
    found = density.log_prob(torch.tensor(logits, dtype=torch.float32))
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.float32


@pytest.mark.parametrize("kind", ["kernel", "features"])
def test_bad_arrays_are_answered_in_a_sentence(kind: str) -> None:
    logits, labels = samples()
    with pytest.raises(TrustmixError, match=r"60 rows of (logits|features) but labels \(59,\); .* one label a row"):
        DENSITIES.get(kind).fit(logits, labels[1:])
    with pytest.raises(TrustmixError, match=r"0 rows of (logits|features)"):
        DENSITIES.get(kind).fit(logits[:0], labels[:0])
    with pytest.raises(TrustmixError, match=r"the shape \(60, 5\); this density takes \(N, 6\)"):
        DENSITIES.get(kind).fit(logits, labels).log_prob(logits[:, 1:])
    with pytest.raises(TrustmixError, match=r"the entry at \(0, 1\) is nan"):
        DENSITIES.get(kind).fit([[0.0, float("nan")]], [0])


@given(scale=st.floats(0.1, 10), shift=st.floats(-100, 100))
@settings(max_examples=10, deadline=None)
def test_own_units_are_the_same_whatever_the_scale_of_a_density(scale: float, shift: float) -> None:
    known, scores = torch.randn(2, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(
        standardize_scores(scale * known + shift, scale * scores + shift), standardize_scores(known, scores)
    )
    assert standardize_scores(torch.ones(3), torch.tensor([1.0, 0.0])).tolist() == [0.0, -1.0]

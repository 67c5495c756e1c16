"""The density against scikit-learn and SciPy, on ordinary and degenerate calibration data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.mixture import GaussianMixture

from trustmix import ClassGaussians, TrustmixError
from trustmix.density.base import VARIANCE_FLOOR
from trustmix.density.gaussians import _tiles


def by_scipy(logits: Any, labels: Any, points: Any) -> Any:
    """The same density written down independently, one component and one dimension at a time."""
    floor = VARIANCE_FLOOR * (logits.var(0).mean() or 1.0)
    parts = []
    for cls in np.unique(labels):
        own = logits[labels == cls]
        scale = np.sqrt(np.maximum(own.var(0), floor))
        parts.append(norm.logpdf(points, own.mean(0), scale).sum(1))
    return logsumexp(np.stack(parts), axis=0) - np.log(len(parts))


def by_sklearn(logits: Any, labels: Any, points: Any) -> Any:
    density = ClassGaussians.fit(logits, labels)
    mixture = GaussianMixture(len(density.means), covariance_type="diag")
    floor = VARIANCE_FLOOR * (logits.var(0).mean() or 1.0)
    own = [logits[labels == cls] for cls in np.unique(labels)]
    mixture.means_ = np.stack([x.mean(0) for x in own])
    mixture.covariances_ = np.maximum(np.stack([x.var(0) for x in own]), floor)
    mixture.precisions_cholesky_ = 1 / np.sqrt(mixture.covariances_)
    mixture.weights_ = np.full(len(own), 1 / len(own))
    return mixture.score_samples(points)


def ordinary(rng: np.random.Generator) -> tuple[Any, Any]:
    labels = rng.integers(0, 4, 300) * 2
    return rng.normal(size=(300, 10)) * 3 + 8 * np.eye(10)[labels], labels


def one_sample_a_class(rng: np.random.Generator) -> tuple[Any, Any]:
    return rng.normal(size=(3, 10)), np.array([0, 4, 7])


def constant(rng: np.random.Generator) -> tuple[Any, Any]:
    return np.full((20, 10), 2.5), np.arange(20) % 2


def hundred_classes(rng: np.random.Generator) -> tuple[Any, Any]:
    labels = np.repeat(np.arange(100), 5)
    return rng.normal(size=(500, 100)) + 6 * np.eye(100)[labels], labels


def far_from_the_origin(rng: np.random.Generator) -> tuple[Any, Any]:
    logits, labels = ordinary(rng)
    return logits + 1e4, labels


CASES = [ordinary, one_sample_a_class, constant, hundred_classes, far_from_the_origin]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("reference", [by_scipy, by_sklearn])
def test_log_likelihood_agrees_with_independent_implementations(case: Any, reference: Any) -> None:
    rng = np.random.default_rng(1)
    logits, labels = case(rng)
    points = np.concatenate([logits[:50], logits[:50] + rng.normal(size=logits[:50].shape), 50 * logits[:5]])
    scores = ClassGaussians.fit(logits, labels).log_prob(points)
    np.testing.assert_allclose(scores, reference(logits, labels, points), rtol=1e-5)


def test_a_single_calibration_sample_of_a_class_gives_a_finite_component_of_the_floor_variance() -> None:
    logits = np.array([[0.0, 4.0], [0.0, 6.0], [9.0, 1.0]])
    density = ClassGaussians.fit(logits, [0, 0, 1])
    floor = VARIANCE_FLOOR * logits.var(0).mean()
    assert density.variances[1].tolist() == pytest.approx([floor, floor])
    assert np.isfinite(density.log_prob(logits)).all()


def test_a_client_knows_its_own_classes_from_foreign_ones() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 4
    logits = rng.normal(size=(400, 4)) + 6 * np.eye(4)[labels]
    own = labels < 2
    scores = ClassGaussians.fit(logits[own], labels[own]).log_prob(logits)
    assert scores[own].min() > scores[~own].max()


def test_clients_of_equal_shape_are_fitted_and_scored_in_one_go() -> None:
    rng = np.random.default_rng(2)
    logits, public = rng.normal(size=(5, 40, 6)), rng.normal(size=(5, 30, 6))
    labels = np.stack([rng.permutation(np.arange(40) % 3) + client for client in range(5)])
    together = ClassGaussians.fit(logits, labels).log_prob(public)
    alone = [ClassGaussians.fit(z, y).log_prob(x) for z, y, x in zip(logits, labels, public, strict=True)]
    np.testing.assert_allclose(together, np.stack(alone), rtol=1e-12)


@pytest.mark.parametrize(("clients", "samples"), [(1, 7), (1, 8), (1, 30), (5, 3), (9, 1), (4, 7), (3, 20)])
def test_tiles_cover_every_client_and_row_once_and_hold_no_more_rows_than_allowed(
    clients: int, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trustmix.density.gaussians.TILE_ROWS", 7)
    seen = torch.zeros(clients, samples)
    for some, rows in _tiles(clients, samples):
        assert 0 < seen[some, rows].numel() <= 7
        seen[some, rows] += 1
    assert bool((seen == 1).all())
    assert len(list(_tiles(clients, samples))) <= -(-clients // max(1, 7 // samples)) * -(-samples // 7)


def test_scores_in_many_tiles_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    logits, public = rng.normal(size=(5, 40, 6)), rng.normal(size=(5, 30, 6))
    density = ClassGaussians.fit(logits, np.arange(200).reshape(5, 40) % 3)
    whole = density.log_prob(public)
    for rows in (1, 7, 65):
        monkeypatch.setattr("trustmix.density.gaussians.TILE_ROWS", rows)
        np.testing.assert_allclose(density.log_prob(public), whole, rtol=1e-12)


@pytest.mark.parametrize("library", [np.asarray, torch.as_tensor])
def test_ragged_clients_with_different_numbers_of_classes_agree_with_each_alone(library: Any) -> None:
    rng = np.random.default_rng(3)
    sizes, classes = [5, 40, 17], [1, 6, 3]
    logits = [library(rng.normal(size=(n, 6))) for n in sizes]
    labels = [library(np.arange(n) % k) for n, k in zip(sizes, classes, strict=True)]
    public = [library(rng.normal(size=(30, 6))) for _ in sizes]
    together = ClassGaussians.fit(logits, labels).log_prob(public)
    for row, z, y, x in zip(together, logits, labels, public, strict=True):
        np.testing.assert_allclose(row, ClassGaussians.fit(z, y).log_prob(x), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_comes_in_goes_out_and_scores_are_at_least_float32(dtype: str) -> None:
    logits = np.random.default_rng(0).normal(size=(20, 3)).astype(dtype)
    wide = "float32" if dtype == "float16" else dtype
    scores = ClassGaussians.fit(logits, np.arange(20) % 2).log_prob(logits)
    assert isinstance(scores, np.ndarray)
    assert scores.dtype == wide
    tensor = torch.from_numpy(logits)
    as_tensor = ClassGaussians.fit(tensor, torch.arange(20) % 2).log_prob(tensor)
    assert as_tensor.dtype == getattr(torch, wide)


def test_a_saved_density_scores_as_before(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    density = ClassGaussians.fit([rng.normal(size=(9, 3)), rng.normal(size=(5, 3))], [np.arange(9) % 3, np.zeros(5)])
    density.save(tmp_path / "density.safetensors")
    points = rng.normal(size=(2, 7, 3))
    loaded = ClassGaussians.load(tmp_path / "density.safetensors")
    assert (loaded.log_prob(points) == density.log_prob(points)).all()


GOOD = np.zeros((4, 2))


@pytest.mark.parametrize(
    ("logits", "labels", "sentence"),
    [
        (np.full((4, 2), np.nan), [0, 0, 1, 1], r"logits: the entry at \(0, 0\) is nan"),
        (GOOD, [0, 0, 1], "4 rows of logits but 3 labels"),
        (np.zeros((0, 2)), [], r"logits has the shape \(0, 2\)"),
        ([GOOD, np.zeros((0, 2))], [np.zeros(4), np.zeros(0)], r"logits\[1\] has the shape"),
        (np.zeros((2, 4, 2)), np.zeros((3, 4)), "logits are of 2 clients and labels of 3"),
        (np.zeros((2, 4, 2, 2)), np.zeros((2, 4)), "it takes"),
        ("words", [0], "expected an array of numbers"),
    ],
)
def test_calibration_data_that_cannot_be_fitted_are_refused_in_a_sentence(
    logits: Any, labels: Any, sentence: str
) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        ClassGaussians.fit(logits, labels)


@pytest.mark.parametrize("points", [np.zeros(2), np.zeros((3, 5)), np.zeros((2, 3, 2))])
def test_public_logits_of_another_shape_are_refused(points: Any) -> None:
    with pytest.raises(TrustmixError, match="this density takes"):
        ClassGaussians.fit(GOOD, [0, 0, 1, 1]).log_prob(points)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"means": None}, "lacks means"),
        ({"variances": torch.zeros(2, 2)}, "positive variances"),
        ({"variances": torch.ones(3, 2)}, "other shapes"),
        ({"log_weights": torch.zeros(2)}, "sum to one"),
        ({"log_weights": torch.tensor([0.5, 0.498]).log()}, "sum to one"),
        ({"log_weights": torch.tensor([0.5, 0.502]).log()}, "sum to one"),
        ({"log_weights": torch.tensor([torch.nan, 0.0])}, "sum to one"),
        ({"log_weights": torch.zeros(1)}, "other shapes"),
        ({"variances": torch.tensor([[1.0, 1.0], [1.0, -1.0]])}, "positive variances"),
        ({"means": torch.zeros(2), "variances": torch.ones(2), "log_weights": torch.tensor(0.0)}, "other shapes"),
        (
            {
                "means": torch.zeros(1, 1, 1, 2),
                "variances": torch.ones(1, 1, 1, 2),
                "log_weights": torch.zeros(1, 1, 1),
            },
            "other shapes",
        ),
        ({"means": torch.full((2, 2), torch.inf)}, "finite"),
    ],
)
def test_a_density_from_outside_that_is_none_is_refused(change: dict[str, torch.Tensor | None], sentence: str) -> None:
    state = {**ClassGaussians.fit(GOOD, [0, 0, 1, 1]).state_dict(), **change}
    with pytest.raises(TrustmixError, match=sentence):
        ClassGaussians.from_state_dict({key: value for key, value in state.items() if value is not None})


def test_a_density_from_outside_may_have_weights_that_were_rounded() -> None:
    state = ClassGaussians.fit(GOOD, [0, 0, 1, 1]).state_dict()
    log_weights = torch.tensor([0.3, 0.6995]).log()
    density = ClassGaussians.from_state_dict({**state, "log_weights": log_weights, "note": torch.zeros(1)})
    torch.testing.assert_close(density.log_weights, log_weights.double())

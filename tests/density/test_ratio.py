"""The density ratio: against scikit-learn, against a ratio that is known, and at its edges."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

from trustmix.density import ClassGaussians, DensityRatio, ratio, roc_auc
from trustmix.density.ratio import FOLDS, WIDE, cross_fitted_log_ratio, fit_balanced_logistic
from trustmix.errors import TrustmixError


def blobs(count: int, centre: float, width: int = 3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, width, generator=generator, dtype=torch.float64)
    points[:, 0] += centre
    return points


def with_ones(points: torch.Tensor) -> torch.Tensor:
    return torch.cat([points, torch.ones(len(points), 1, dtype=points.dtype)], 1)


@pytest.mark.parametrize("ridge", [0.003, 0.1])
def test_the_classifier_is_scikit_learns_with_balanced_classes(ridge: float) -> None:
    own, public = blobs(80, 1.0), blobs(300, 0.0, seed=1)
    found = fit_balanced_logistic(with_ones(own), with_ones(public), ridge)
    target = np.repeat([1, 0], [80, 300])
    weight = np.where(target == 1, 0.5 / 80, 0.5 / 300)
    reference = LogisticRegression(C=1 / ridge, tol=1e-10, max_iter=1000)
    reference.fit(torch.cat([own, public]).numpy(), target, sample_weight=weight)
    np.testing.assert_allclose(found[:-1], reference.coef_[0], atol=1e-3)
    assert float(found[-1]) == pytest.approx(float(reference.intercept_[0]), abs=1e-3)


def test_weights_are_the_exact_posterior_where_the_true_ratio_is_known() -> None:
    """Clients are N(-1, I) and N(1, I), public samples N(0, I): log r is linear, and p(right | x) = sigmoid(2 x)."""
    clients, public = [blobs(20_000, -1.0, 2, 1), blobs(20_000, 1.0, 2, 2)], blobs(20_000, 0.0, 2, 3)
    scores = torch.stack([DensityRatio.fit(own, torch.zeros(len(own))).log_prob(public) for own in clients])
    weights, exact = torch.softmax(scores, 0)[1], torch.sigmoid(2 * public[:, 0])
    assert float((weights - exact).abs().mean()) < 1e-2
    true_log_ratio = public[:, 0] - 0.5
    assert float((scores[1] - true_log_ratio).abs().mean()) < 5e-2


def reference_fit(own: Any, public: Any, ridge: float) -> LogisticRegression:
    target = np.repeat([1, 0], [len(own), len(public)])
    weight = np.where(target == 1, 0.5 / len(own), 0.5 / len(public))
    return LogisticRegression(C=1 / ridge, tol=1e-10, max_iter=5000).fit(np.concatenate([own, public]), target, weight)


def reference_log_ratio(own: Any, public: Any) -> tuple[Any, Any, float]:
    """The log-ratios and the penalty, with the numbers of the documentation, by scikit-learn and NumPy."""
    draws, wide = torch.Generator().manual_seed(0), own.shape[1] > 256
    public_fold, own_fold = (torch.randperm(len(x), generator=draws).numpy() % 5 for x in (public, own))
    if wide:
        centre = public.mean(0)
        directions = np.linalg.svd(public - centre)[2][:64].T
        own, public = (own - centre) @ directions, (public - centre) @ directions
    own, public = (np.clip((x - public.mean(0)) / public.std(0), -10, 10) for x in (own, public))
    of_public, of_own, ridge = np.zeros(len(public)), np.zeros(len(own)), 0.1 if wide else 3 / len(own)
    for fold in range(5):
        kept, left = (own[own_fold != fold], public[public_fold != fold]), (own_fold == fold, public_fold == fold)
        if fold == 0 and not wide:
            fits = [reference_fit(*kept, penalty) for penalty in (ridge, 100 / len(own))]
            losses = [
                np.mean(
                    [
                        np.logaddexp(0, -fit.decision_function(own[left[0]])).mean(),
                        np.logaddexp(0, fit.decision_function(public[left[1]])).mean(),
                    ]
                )
                for fit in fits
            ]
            ridge = 100 / len(own) if losses[0] - losses[1] > 0.05 else ridge
        fit = reference_fit(*kept, ridge)
        of_own[left[0]], of_public[left[1]] = (
            fit.decision_function(own[left[0]]),
            fit.decision_function(public[left[1]]),
        )
    shift = logsumexp(of_public) - math.log(len(public))
    return of_public - shift, of_own - shift, ridge


@pytest.mark.parametrize(
    ("own", "public", "ridge"),
    [
        (blobs(80, 1.0), blobs(300, 0.0, seed=1), 3 / 80),
        (blobs(60, 0.3, 40), blobs(200, 0.0, 40, seed=1), 100 / 60),
        (blobs(60, 1.0, 256), blobs(300, 0.0, 256, seed=3), 100 / 60),
        (blobs(60, 1.0, 257), blobs(300, 0.0, 257, seed=3), 0.1),
        (torch.cat([blobs(80, 1.0), torch.tensor([[90.0, -80.0, 9.0]])]), blobs(300, 0.0, seed=1), 3 / 81),
    ],
    ids=["narrow", "noise", "narrow as yet", "wide", "outlier"],
)
def test_the_log_ratio_is_that_of_scikit_learns_classifiers(
    own: torch.Tensor, public: torch.Tensor, ridge: float
) -> None:
    of_public, of_own, penalty = reference_log_ratio(own.numpy(), public.numpy())
    assert penalty == ridge
    found = cross_fitted_log_ratio(own, public)
    np.testing.assert_allclose(found[0], of_public, atol=5e-3)
    np.testing.assert_allclose(found[1], of_own, atol=5e-3)


def test_the_mean_of_the_ratio_over_the_public_set_is_one() -> None:
    scores, _ = cross_fitted_log_ratio(blobs(100, 2.0), blobs(500, 0.0, seed=5))
    assert float(scores.exp().mean()) == pytest.approx(1, abs=1e-9)


def test_a_client_whose_samples_are_like_the_public_ones_prefers_none() -> None:
    scores, own = cross_fitted_log_ratio(blobs(400, 0.0), blobs(1000, 0.0, seed=6))
    assert float(scores.abs().mean()) < 0.25
    assert float(own.abs().mean()) < 0.25


def test_a_public_sample_is_scored_by_a_fit_that_has_not_seen_it() -> None:
    """Noise in many dimensions can be memorised: without folds public samples would score far below own ones."""
    own, public = blobs(120, 0.0, 100), blobs(150, 0.0, 100, seed=7)
    scores, of_own = cross_fitted_log_ratio(own, public)
    assert abs(float(scores.mean() - of_own.mean())) < 0.5
    beta = fit_balanced_logistic(with_ones(own), with_ones(public), 3 / 120)
    assert float((with_ones(own) @ beta).mean() - (with_ones(public) @ beta).mean()) > 1.0


def test_reordering_the_samples_moves_scores_by_the_noise_of_the_folds_only() -> None:
    own, public = blobs(300, 1.5), blobs(600, 0.0, seed=8)
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    one, other = (DensityRatio.fit(own, torch.zeros(300)).log_prob(points) for points in (public, public[order]))
    assert float((one[order] - other).abs().mean()) < 0.1 * float(one.std())


def test_few_samples_wide_features_and_constant_ones_are_taken() -> None:
    for own, public in (
        (blobs(1, 1.0), blobs(3, 0.0)),
        (blobs(2, 1.0), blobs(FOLDS + 1, 0.0)),
        (blobs(30, 3.0, WIDE + 40), blobs(90, 0.0, WIDE + 40, seed=9)),
        (torch.ones(5, 2), torch.ones(9, 2)),
    ):
        scores = DensityRatio.fit(own, torch.zeros(len(own))).log_prob(public)
        assert scores.shape == (len(public),)
        assert bool(torch.isfinite(scores).all())


@pytest.mark.parametrize(("spread", "counts"), [(0.0, False), (1e-9, False), (5e-7, False), (2e-6, True), (1.0, True)])
def test_a_feature_that_is_constant_up_to_rounding_does_not_count(spread: float, counts: bool) -> None:
    """The bound is a millionth of the standard deviation of the widest feature, which is about 1."""
    own, public = blobs(100, 1.0), blobs(300, 0.0, seed=4)
    telling = [0.1 + spread * blobs(100, 2.0, 1, seed=5), 0.1 + spread * blobs(300, 0.0, 1, seed=6)]
    without, found = (
        cross_fitted_log_ratio(own, public),
        cross_fitted_log_ratio(*(torch.cat(pair, 1) for pair in zip((own, public), telling, strict=True))),
    )
    for one, other in zip(without, found, strict=True):
        assert torch.allclose(one, other, atol=1e-9) != counts


def test_a_ratio_to_nothing_or_of_nothing_is_refused_in_a_sentence() -> None:
    with pytest.raises(TrustmixError, match="0 rows of features; a density ratio takes one or more of each side"):
        DensityRatio.fit(blobs(0, 1.0), torch.zeros(0))
    with pytest.raises(TrustmixError, match="0 rows of features; a density ratio takes one or more of each side"):
        DensityRatio.fit(blobs(5, 1.0), torch.zeros(5)).log_prob(blobs(0, 0.0))


def test_a_model_whose_outputs_shrink_gains_no_weight_and_a_constant_one_has_equal_scores() -> None:
    """A collapsing model takes over under the paper's density, which rises by log(1/scale) for each dimension."""
    own, public = blobs(100, 1.0), blobs(300, 0.0, seed=4)
    fits = [DensityRatio.fit(scale * own, torch.zeros(100)).log_prob(scale * public) for scale in (1.0, 1e-3)]
    torch.testing.assert_close(fits[0], fits[1])
    densities = [ClassGaussians.fit(scale * own, torch.zeros(100)).log_prob(scale * public) for scale in (1.0, 1e-3)]
    assert float((densities[1] - densities[0]).mean()) == pytest.approx(3 * math.log(1e3), rel=1e-6)
    collapsed = DensityRatio.fit(torch.ones(100, 3), torch.zeros(100)).log_prob(torch.ones(300, 3))
    torch.testing.assert_close(collapsed, torch.zeros_like(collapsed))


def test_a_shifted_client_is_recognised_among_wide_features() -> None:
    own, public = blobs(200, 0.0, WIDE + 10, 1), blobs(600, 0.0, WIDE + 10, 2)
    own[:, :20] += 1.5
    public[:200, :20] += 1.5
    scores = DensityRatio.fit(own, torch.zeros(200)).log_prob(public)
    assert roc_auc(scores, torch.arange(600) < 200) > 0.9
    assert math.isfinite(float(scores.sum()))


def test_the_strong_penalty_is_taken_where_it_is_much_better_on_samples_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many features of noise and few samples are fitted by heart with the weak penalty; few features are not."""

    def auc(width: int, min_gain: float) -> float:
        own, public = blobs(100, 0.0, width, 1), blobs(600, 0.0, width, 2)
        own[:, 0] += 2
        public[:200, 0] += 2
        monkeypatch.setattr(ratio, "MIN_GAIN", min_gain)
        return roc_auc(cross_fitted_log_ratio(own, public)[0], torch.arange(600) < 200)

    assert auc(200, ratio.MIN_GAIN) > auc(200, math.inf) + 0.01
    assert auc(3, ratio.MIN_GAIN) == auc(3, math.inf)


def mixture(counts: tuple[int, int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of two classes, N(-2, I) and N(2, I), and their labels."""
    points = torch.cat([blobs(counts[0], -2.0, 3, seed), blobs(counts[1], 2.0, 3, seed + 1)])
    return points, torch.repeat_interleave(torch.tensor([0, 1]), torch.tensor(counts))


@pytest.mark.parametrize("samples", [10, 20, 50])
def test_few_private_samples_give_a_flatter_ratio_that_still_knows_its_class(samples: int) -> None:
    public, labels = mixture((300, 300), 11)
    few, many = (cross_fitted_log_ratio(blobs(count, 2.0, 3, 13), public)[0] for count in (samples, 2000))
    assert roc_auc(few, labels == 1) > 0.9
    assert float(few.std()) < float(many.std())


@pytest.mark.parametrize("share", [0.5, 0.2, 0.05])
def test_the_rarer_a_clients_class_is_in_the_public_set_the_larger_its_ratio(share: float) -> None:
    """The ratio of a client that holds one class is 1 / P(class) on its samples."""
    rare = round(2000 * share)
    public, labels = mixture((2000 - rare, rare), 21)
    scores, _ = cross_fitted_log_ratio(blobs(1000, 2.0, 3, 23), public)
    assert float(scores.exp()[labels == 1].mean()) == pytest.approx(1 / share, rel=0.15)


def test_unequal_frequencies_of_a_clients_classes_are_seen_in_its_ratio() -> None:
    public, labels = mixture((1000, 1000), 31)
    own, _ = mixture((900, 300), 33)
    scores, _ = cross_fitted_log_ratio(own, public)
    first, second = (float(scores.exp()[labels == label].mean()) for label in (0, 1))
    assert first == pytest.approx(1.5, rel=0.1)
    assert second == pytest.approx(0.5, rel=0.25)


def test_a_public_set_from_elsewhere_gives_finite_scores_that_still_have_mean_ratio_one() -> None:
    """Nothing public is like the client's samples: the scores order public samples, they do not show that none fits."""
    public = blobs(500, -40.0, 3, 41)
    scores, own = cross_fitted_log_ratio(blobs(300, 2.0, 3, 42), public)
    assert bool(torch.isfinite(scores).all())
    assert float(scores.exp().mean()) == pytest.approx(1)
    assert float(own.min()) > float(scores.max())

"""The density ratio in Lemma 1: weights p(i|x) leave no bias where clients predict the posteriors of their own data."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm

from trustmix import mix
from trustmix.aggregation import client_weights
from trustmix.arrays import AnyArray
from trustmix.density import DensityRatio
from trustmix.theory import teacher_error

X = np.linspace(-5, 5, 201)
CLASSES = np.stack([norm(mean, 1).pdf(X) for mean in (-2.0, 0.0, 2.0)])
"""p(x|c) of three classes, (C, N)."""
SHARES = np.array([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8], [0.3, 0.0, 0.7]])
"""p_i(c) of three clients that lack one class each, (M, C)."""
LOG_PUBLIC = norm(0.5, 3).logpdf(X)
LOG_RATIOS = np.log(SHARES @ CLASSES) - LOG_PUBLIC
POSTERIORS = (SHARES[:, :, None] * CLASSES / (SHARES @ CLASSES)[:, None, :]).transpose(0, 2, 1)
"""p_i(c|x) (M, N, C): what a client that has learnt its own data predicts."""


def pooled_posterior(priors: AnyArray) -> AnyArray:
    """p(c|x) (N, C) of all clients' data together, client i being drawn with that prior."""
    joint = (priors @ SHARES)[:, None] * CLASSES
    posterior: AnyArray = (joint / joint.sum(0)).T
    return posterior


def test_the_exact_ratio_makes_the_posterior_of_all_data_together() -> None:
    teacher = mix(POSTERIORS, LOG_RATIOS, tau=1.0)
    np.testing.assert_allclose(teacher.probabilities, pooled_posterior(np.full(3, 1 / 3)), atol=1e-12)
    assert teacher_error(mix(POSTERIORS, tau=0.0).probabilities, pooled_posterior(np.full(3, 1 / 3))) > 0.05


def test_with_the_numbers_of_samples_it_is_the_posterior_of_their_union() -> None:
    samples = np.array([100.0, 700.0, 200.0])
    teacher = mix(POSTERIORS, LOG_RATIOS + np.log(samples)[:, None], tau=1.0)
    np.testing.assert_allclose(teacher.probabilities, pooled_posterior(samples / samples.sum()), atol=1e-12)


@pytest.mark.parametrize("tau", [0.0, 0.25, 0.5, 2.0])
def test_every_other_temperature_is_biased(tau: float) -> None:
    assert teacher_error(mix(POSTERIORS, LOG_RATIOS, tau=tau).probabilities, pooled_posterior(np.full(3, 1 / 3))) > 1e-3


def test_a_densitys_own_units_do_not_cancel() -> None:
    """A shift of one client's scores, as of log-densities in other coordinates, is a bias of that client's share."""
    shifted = LOG_RATIOS + np.array([[2.0], [0.0], [0.0]])
    truth = pooled_posterior(np.full(3, 1 / 3))
    error = teacher_error(mix(POSTERIORS, shifted, tau=1.0).probabilities, truth)
    assert error > 0.01


def test_the_bias_is_at_most_the_distance_of_the_weights() -> None:
    noise = np.random.default_rng(0).normal(0, 0.5, LOG_RATIOS.shape)
    exact, noisy = (client_weights(scores, 1.0).numpy() for scores in (LOG_RATIOS, LOG_RATIOS + noise))
    distance = abs(exact - noisy).sum(0)
    bias = mix(POSTERIORS, LOG_RATIOS + noise, tau=1.0).probabilities - pooled_posterior(np.full(3, 1 / 3))
    assert (np.linalg.norm(bias, axis=1) <= distance + 1e-12).all()
    assert (distance <= np.exp(2 * abs(noise).max(0)) - 1 + 1e-12).all()


GAUSSIANS = [
    multivariate_normal([-1.0, 0.0], [[1.0, 0.3], [0.3, 0.8]]),
    multivariate_normal([1.0, 0.5], [[0.7, 0.0], [0.0, 1.2]]),
    multivariate_normal([0.0, -1.0], [[1.3, -0.4], [-0.4, 0.9]]),
]
PUBLIC = multivariate_normal([0.0, 0.0], [[2.0, 0.0], [0.0, 2.0]])


def quadratic(points: AnyArray) -> torch.Tensor:
    """Features in which the log-ratio of two Gaussians is linear."""
    x, y = points.T
    return torch.from_numpy(np.stack([x, y, x * x, x * y, y * y], 1))


def test_estimated_weights_are_the_posterior_of_the_client_where_the_true_ratio_is_known() -> None:
    public, sizes = PUBLIC.rvs(20_000, random_state=0), np.array([20_000, 10_000, 40_000])
    own = [quadratic(gaussian.rvs(size, random_state=1)) for gaussian, size in zip(GAUSSIANS, sizes, strict=True)]
    fitted = [DensityRatio.fit(features, torch.zeros(len(features))) for features in own]
    scores = np.stack([density.log_prob(quadratic(public)).numpy() for density in fitted])
    densities = np.stack([gaussian.pdf(public) for gaussian in GAUSSIANS])
    for prior in (np.ones((3, 1)), sizes[:, None]):  # UWA, and FedGO with its number of samples
        exact = prior * densities / (prior * densities).sum(0)
        found = client_weights(scores + np.log(prior), 1.0).numpy()
        assert abs(found - exact).mean() < 1e-2
        assert abs(found - 1 / 3).mean() > 0.1

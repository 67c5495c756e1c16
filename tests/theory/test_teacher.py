"""Lemma 1: it holds for any draws, it is tight where it should be, and chi is what the rules make it."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

import trustmix as tm
from trustmix import TrustmixError
from trustmix.theory import (
    bias_variance,
    concentration,
    effective_clients,
    rank_correlation,
    teacher_error,
    teacher_error_decomposition,
    weights,
)

Array = np.ndarray[Any, Any]
SEEDS = st.integers(0, 2**32 - 1)


def signs(draws: int, factors: int) -> Array:
    """(draws, factors) of +-1, each column of mean 0, all exactly uncorrelated: columns of a Hadamard matrix."""
    h = np.ones((1, 1))
    while len(h) < draws:
        h = np.block([[h, h], [h, -h]])
    return h[:, 1 : factors + 1]


def clients_of(rho: float, sigma: float, bias: float, *, clients: int = 6, samples: int = 5) -> tuple[Array, Array]:
    """Predictions (16, M, N, 3) with exactly this bias, variance and correlation, and their p*."""
    h = signs(16, clients + 1)
    factor = math.sqrt(rho) * h[:, :1] + math.sqrt(1 - rho) * h[:, 1:]  # (S, M)
    star = np.tile([0.5, 0.3, 0.2], (samples, 1))
    error = np.array([1.0, -1.0, 0.0]) / math.sqrt(2)
    offset = np.array([1.0, 1.0, -2.0]) / math.sqrt(6)
    q = star + sigma * factor[:, :, None, None] * error + bias * offset
    return q, star


def drawn_weights(rng: np.random.Generator, *shape: int) -> Array:
    return np.moveaxis(rng.dirichlet(np.ones(shape[-2]), (*shape[:-2], shape[-1])), -1, -2)


def test_averaging_has_chi_of_exactly_one_over_m() -> None:
    scores = 100 * np.random.default_rng(0).normal(size=(7, 30))
    assert concentration(weights(scores, 0.0)) == 1 / 7
    assert effective_clients(weights(scores, 0.0)) == 7.0


@given(SEEDS, st.floats(0, 50), st.integers(1, 9))
def test_chi_lies_between_one_over_m_and_one_and_rises_with_tau(seed: int, tau: float, clients: int) -> None:
    scores = 10 * np.random.default_rng(seed).normal(size=(clients, 4))
    low, high = concentration(weights(scores, tau)), concentration(weights(scores, tau + 0.5))
    assert 1 / clients - 1e-12 <= low <= high + 1e-12 <= 1 + 2e-12


@pytest.mark.parametrize("tau", [0.0, 0.25, 1.0, math.inf])
def test_weights_are_those_that_mix_the_teacher(tau: float) -> None:
    rng = np.random.default_rng(1)
    q, scores = rng.dirichlet(np.ones(4), (5, 8)), 5 * rng.normal(size=(5, 8))
    w, teacher = weights(scores, tau).numpy(), tm.mix(q, scores, tau=tau)
    np.testing.assert_allclose(np.einsum("in,inc->nc", w, q), teacher.probabilities, atol=1e-12)
    assert concentration(w) == pytest.approx(float(teacher.concentration.mean()))


@given(SEEDS, st.integers(1, 6), st.integers(1, 5), st.booleans())
def test_lemma_1_holds_for_any_draws_at_given_weights(seed: int, draws: int, clients: int, spiky: bool) -> None:
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.full(3, 0.1 if spiky else 2.0), (draws, clients, 4))
    found = teacher_error_decomposition(q, drawn_weights(rng, clients, 4), rng.dirichlet(np.ones(3), 4))
    assert found.error <= found.bound + 1e-12
    assert found.coupling == pytest.approx(0, abs=1e-12)


@given(SEEDS, st.booleans())
def test_the_terms_are_those_of_an_independent_calculation(seed: int, vary: bool) -> None:
    rng = np.random.default_rng(seed)
    q, star = rng.dirichlet(np.ones(3), (4, 3, 5)), rng.dirichlet(np.ones(3), 5)
    w = drawn_weights(rng, 4, 3, 5) if vary else np.tile(drawn_weights(rng, 3, 5), (4, 1, 1))
    bias = own = shared = error = 0.0
    for s in range(4):
        for n in range(5):
            mean = [np.mean([q[t, i, n] - star[n] for t in range(4)], 0) for i in range(3)]
            cov = [[np.mean([(q[t, i, n] - star[n] - mean[i]) @ (q[t, j, n] - star[n] - mean[j]) for t in range(4)])
                    for j in range(3)] for i in range(3)]  # fmt: skip
            ws = w[s, :, n]
            bias += np.sum(sum(ws[i] * mean[i] for i in range(3)) ** 2) / 20
            own += sum(ws[i] ** 2 * cov[i][i] for i in range(3)) / 20
            shared += sum(ws[i] * ws[j] * cov[i][j] for i in range(3) for j in range(3) if i != j) / 20
            error += np.sum((ws @ q[s, :, n] - star[n]) ** 2) / 20
    found = teacher_error_decomposition(q, w if vary else w[0], star)
    assert (found.bias, found.own, found.shared, found.error) == pytest.approx((bias, own, shared, error))
    assert found.bias + found.own + found.shared + found.coupling == pytest.approx(error)


@pytest.mark.parametrize("sigma", [0.02, 0.1])
@pytest.mark.parametrize("bias", [0.0, 0.05])
def test_the_bound_is_tight_for_uniform_weights_and_uncorrelated_errors(sigma: float, bias: float) -> None:
    q, star = clients_of(0.0, sigma, bias)
    found = teacher_error_decomposition(q, np.full((6, 5), 1 / 6), star)
    assert found.error == pytest.approx(found.bound, rel=1e-9)
    assert found.error == pytest.approx(bias**2 + sigma**2 / 6, rel=1e-9)


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
def test_the_bound_is_tight_for_any_weights_where_all_clients_err_alike(rho: float) -> None:
    q, star = clients_of(rho, 0.1, 0.05)
    w = drawn_weights(np.random.default_rng(2), 6, 5)
    found = teacher_error_decomposition(q, w, star)
    assert found.rho == pytest.approx(rho, abs=1e-9)
    assert found.sigma2 == pytest.approx(0.01)
    assert found.error == pytest.approx(found.bound, rel=1e-9)
    assert found.variance == pytest.approx(0.01 * (rho + (1 - rho) * found.chi))


def test_fully_correlated_errors_gain_nothing_from_averaging() -> None:
    q, star = clients_of(1.0, 0.1, 0.0)
    assert teacher_error_decomposition(q, np.full((6, 5), 1 / 6), star).error == pytest.approx(0.01)


def test_trusting_who_knows_lowers_the_bias_and_raises_chi() -> None:
    """Each sample is known to one of five clients; the others all guess wrong in the same way."""
    rng = np.random.default_rng(3)
    star = np.eye(5)[np.arange(40) % 5]
    knows = np.arange(5)[:, None] == np.arange(40) % 5
    wrong = np.roll(star, 1, 1)
    q = np.where(knows[..., None], 0.9 * star + 0.02, 0.9 * wrong + 0.02) + 0.01 * rng.normal(size=(8, 5, 40, 5))
    scores = np.where(knows, 0.0, -4.0)
    found = [teacher_error_decomposition(q, weights(scores, tau), star) for tau in (0.0, 0.25, 1.0)]
    assert [f.chi for f in found] == sorted(f.chi for f in found)
    assert [f.bias for f in found] == sorted((f.bias for f in found), reverse=True)
    assert [f.variance for f in found] == sorted(f.variance for f in found)
    assert all(f.error <= f.bound for f in found)


def test_bias_and_variance_of_teachers_are_unbiased_estimates() -> None:
    rng = np.random.default_rng(4)
    star = np.zeros((2000, 3))
    teachers = np.array([0.3, -0.3, 0.0]) + 0.2 * rng.normal(size=(3, 2000, 3))
    bias, variance = bias_variance(teachers, star)
    assert bias == pytest.approx(0.18, abs=0.01)
    assert variance == pytest.approx(0.12, abs=0.01)
    assert bias + variance == pytest.approx(teacher_error(teachers, star))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=20))
def test_rank_correlation_is_spearmans(pairs: list[tuple[int, int]]) -> None:
    first, second = ([float(value) for value in side] for side in zip(*pairs, strict=True))
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert math.isnan(rank_correlation(first, second))
    else:
        assert rank_correlation(first, second) == pytest.approx(scipy.stats.spearmanr(first, second).statistic)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: weights([[1.0]], -1.0), "tau is -1.0"),
        (lambda: weights([1.0], 1.0), r"shape \(1,\)"),
        (lambda: concentration([[0.5], [0.6]]), "sum to one"),
        (lambda: concentration([[1.5], [-0.5]]), "negative"),
        (lambda: concentration([0.5]), r"shape \(1,\)"),
        (lambda: teacher_error([[1.0, 0.0]], [[1.0]]), r"\(1, 2\) and the reference \(1, 1\)"),
        (lambda: bias_variance([[[1.0, 0.0]]], [[1.0, 0.0]]), "S of 2 or more"),
        (lambda: teacher_error_decomposition(torch.ones(2, 2, 1, 2), [[1.0]], [[1.0, 0.0]]), r"\(S, M, N, C\)"),
        (lambda: rank_correlation([1.0], [2.0]), "needs pairs"),
    ],
)
def test_wrong_arrays_are_refused_in_a_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        call()

"""Curves over tau against sums written down in NumPy, and sentences that name the right tau."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from trustmix.theory.analysis import (
    TAUS,
    Curve,
    ErrorCorrelation,
    Uploads,
    compute_curve,
    correlate_error_accuracy,
    describe_correlation,
    describe_curve,
)


def draw(seed: int, clients: int = 4) -> Uploads:
    rng = np.random.default_rng(seed)
    predictions, scores = rng.dirichlet(np.ones(3), (clients, 7)), 3 * rng.normal(size=(clients, 7))
    return Uploads(torch.tensor(predictions), torch.tensor(scores))


REFERENCE = torch.tensor(np.random.default_rng(9).dirichlet(np.ones(3), 7))


def mixed(uploads: Uploads, tau: float) -> Any:
    weights = np.exp(tau * uploads.scores.numpy())
    return np.einsum("mn,mnc->nc", weights / weights.sum(0), uploads.predictions.numpy())


def test_one_draw_gives_the_teacher_error_of_every_tau() -> None:
    curve = compute_curve("one", [draw(0)], REFERENCE)
    expected = [np.square(mixed(draw(0), tau) - REFERENCE.numpy()).sum(1).mean() for tau in TAUS]
    assert curve.errors == pytest.approx(expected)
    assert curve.biases is None
    assert curve.error_at(curve.best_tau) == min(curve.errors)


def test_several_draws_split_the_error_into_bias_and_variance() -> None:
    draws = [draw(seed) for seed in range(3)]
    curve = compute_curve("three", draws, REFERENCE)
    assert curve.decompositions is None
    for tau, variance, error in zip(TAUS, curve.variances or [], curve.errors, strict=True):
        teachers = np.stack([mixed(one, tau) for one in draws])
        assert variance == pytest.approx(teachers.var(0, ddof=1).sum(1).mean())
        assert error == pytest.approx(np.square(teachers - REFERENCE.numpy()).sum(2).mean())


def test_lemma_1_needs_draws_of_the_same_clients() -> None:
    same = compute_curve("same", [draw(0), draw(1)], REFERENCE, same_split=True)
    assert same.decompositions is not None
    assert same.decompositions[0.25].error == pytest.approx(same.error_at(0.25))
    assert compute_curve("other", [draw(0), draw(1, clients=5)], REFERENCE, same_split=True).decompositions is None


def test_correlations_are_those_of_scipy_and_need_three_runs() -> None:
    settings = [[(0.3, 0.5), (0.1, 0.9), (0.2, 0.4)], [(0.5, 0.6), (0.4, 0.7)]]
    found = correlate_error_accuracy(settings)
    errors, accuracies = zip(*(pair for setting in settings for pair in setting), strict=True)
    assert found.overall == pytest.approx(spearmanr(errors, accuracies).statistic)
    assert found.within == pytest.approx(spearmanr(*zip(*settings[0], strict=True)).statistic)
    assert (found.runs, found.settings) == (5, 1)
    assert correlate_error_accuracy(settings[1:]) == ErrorCorrelation(2, None, None, 0)


def test_sentences_say_whether_a_tau_of_a_quarter_is_good() -> None:
    good = [1 + abs(tau - 0.25) for tau in TAUS]
    assert "tau = 0.25 is a good choice here (1.000" in describe_curve(Curve("good", 1, good, good))
    bad = [2 - tau for tau in TAUS]
    sentence = describe_curve(Curve("bad", 2, bad, bad, bad, [tau / 10 for tau in TAUS]))
    assert "it has 1.750, tau = 1 has 1.000" in sentence
    assert "Over 2 runs the squared bias goes from 2.000 to 1.000 and the variance from 0.000 to 0.100." in sentence


def test_a_correlation_within_settings_is_named_where_there_is_one() -> None:
    assert "of -0.50 over 9 runs;" in describe_correlation(ErrorCorrelation(9, -0.5, None, 0))
    assert "over 9 runs, -0.75 within a setting (mean of 3);" in describe_correlation(
        ErrorCorrelation(9, -0.5, -0.75, 3)
    )

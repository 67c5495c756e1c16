"""The joint consensus: what clients add to the odds of labels, and classes balanced by bounded offsets."""

import math

import numpy as np
import pytest
import scipy.special
import torch

from trustmix.aggregation.joint_consensus import balance_classes, opinion_odds


def test_a_sure_client_adds_log_five_to_the_odds_of_its_class_and_a_dismissive_one_takes_as_much() -> None:
    estimates, rest, client = (
        torch.tensor([[1.0], [0.0], [0.5]]),
        torch.tensor([[0.0], [1.0], [0.5]]),
        torch.tensor([0]),
    )
    odds = opinion_odds(estimates, rest, client, torch.ones(1))
    np.testing.assert_allclose(odds[:, 0], [math.log(5), -math.log(5), 0], atol=1e-6)


def test_opinions_are_clipped_log_odds_times_the_weight_of_the_client() -> None:
    rng = np.random.default_rng(0)
    estimates, rest, weights = rng.random((6, 4)) / 2, rng.random((6, 3)), np.array([1.0, 0.5, 0.0])
    client = np.array([0, 0, 1, 2])
    expected = weights[client] * np.log((0.2 + 0.8 * estimates) / (0.2 + 0.8 * rest[:, client]))
    found = opinion_odds(
        torch.tensor(estimates).float(), torch.tensor(rest).float(), torch.tensor(client), torch.tensor(weights)
    )
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_balanced_classes_are_those_of_twenty_steps_with_offsets_of_eight_at_most(scale: float) -> None:
    """Odds as far apart as the larger ones are not balanced by then: one step more or less would be seen."""
    spread, height = np.array([0.1, 0.3, 1.0, 1.0, 1.0]), np.array([0.0, 2.0, 0.0, -6.0, 1.0])
    odds = scale * spread * np.random.default_rng(1).normal(size=(40, 5)) + height
    offset = np.zeros(5)
    for _ in range(20):
        part = scipy.special.softmax(odds + offset, 1).mean(0)
        offset = np.clip(offset + np.log(1 / 5) - np.log(part), -8, 8)
    found = balance_classes(torch.tensor(odds))
    np.testing.assert_allclose(found, scipy.special.softmax(odds + offset, 1), atol=1e-9)


def test_classes_that_can_be_balanced_are_equally_common_in_the_end() -> None:
    odds = torch.randn(300, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    odds += torch.tensor([0.0, 1.0, -1.0, 2.0])
    np.testing.assert_allclose(balance_classes(odds).mean(0), [0.25] * 4, atol=1e-6)


def test_a_class_that_nobody_supports_stays_rare() -> None:
    """Its odds are below those of the other by 30; offsets make up for 16 of them, 8 on either side."""
    found = balance_classes(torch.tensor([[0.0, -30.0]] * 3, dtype=torch.float64))
    assert float(found[0, 1] / found[0, 0]) == pytest.approx(math.exp(-30 + 16), rel=1e-6)


def test_odds_beyond_what_an_exponential_can_hold_leave_probabilities() -> None:
    found = balance_classes(torch.tensor([[0.0, -2000.0], [0.0, -2000.0]], dtype=torch.float64))
    assert bool(torch.isfinite(found).all())
    np.testing.assert_allclose(found.sum(1), [1.0, 1.0])

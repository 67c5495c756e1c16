"""Shares are what the teacher is made of."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trustmix.aggregation.client_weights import Weighing, vote_agreement_weights
from trustmix.aggregation.rules import RULES
from trustmix.aggregation.weighted_average import Accumulator, mix


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.25, 1.0, math.inf]), st.integers(1, 6))
def test_predictions_weighed_by_shares_are_the_teacher(seed: int, tau: float, clients: int) -> None:
    rng = np.random.default_rng(seed)
    predictions = rng.dirichlet(np.ones(3), (clients, 4))
    scores = rng.normal(0, 30, (clients, 4)).round()  # rounded, so that some are equal
    shares, teacher = Accumulator(tau).shares(scores).numpy(), mix(predictions, scores, tau=tau)
    assert np.allclose((shares[:, :, None] * predictions).sum(0), teacher.probabilities)
    assert np.allclose((shares**2).sum(0), teacher.concentration)


def test_infinite_scores_leave_a_share_for_everybody_who_has_the_same() -> None:
    shares = Accumulator(1.0).shares([[-math.inf, 0.0], [-math.inf, math.inf]])
    assert shares.tolist() == [[0.5, 0.0], [0.5, 1.0]]


@given(st.integers(0, 1000))
def test_agreement_is_shared_alike_by_those_who_agree(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    votes, taught = torch.randint(3, (5, 8), generator=generator), torch.randint(3, (8,), generator=generator)
    shares = vote_agreement_weights(votes, taught)
    assert torch.allclose(shares.sum(0), torch.ones(8, dtype=torch.float64))
    for sample in range(8):
        agreeing = (votes[:, sample] == taught[sample]).nonzero().flatten()
        wanted = 1 / len(agreeing) if len(agreeing) else 1 / 5
        assert shares[:, sample].max().item() == pytest.approx(wanted)


def test_rules_that_weigh_by_scores_say_so() -> None:
    assert all(isinstance(RULES.get(name)(), Weighing) for name in ("avg", "uwa", "suwa", "most-confident"))
    assert not isinstance(RULES.get("fedmd")(), Weighing)

"""Shares are what the teacher is made of."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trustmix import mix
from trustmix.aggregation import Upload, client_weights, vote_agreement_weights
from trustmix.federation import METHODS


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.25, 1.0, math.inf]), st.integers(1, 6))
def test_predictions_weighed_by_shares_are_the_teacher(seed: int, tau: float, clients: int) -> None:
    rng = np.random.default_rng(seed)
    predictions = rng.dirichlet(np.ones(3), (clients, 4))
    scores = rng.normal(0, 30, (clients, 4)).round()  # rounded, so that some are equal
    shares, teacher = client_weights(scores, tau).numpy(), mix(predictions, scores, tau=tau)
    assert np.allclose((shares[:, :, None] * predictions).sum(0), teacher.probabilities)
    assert np.allclose((shares**2).sum(0), teacher.concentration)


def test_infinite_scores_leave_a_share_for_everybody_who_has_the_same() -> None:
    shares = client_weights([[-math.inf, 0.0], [-math.inf, math.inf]], 1.0)
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
        having = agreeing if len(agreeing) else torch.arange(5)
        assert shares[:, sample].tolist() == pytest.approx([wanted if i in having else 0.0 for i in range(5)])


@pytest.mark.parametrize("name", ["avg", "uwa", "suwa", "most-confident", "trust", "fedaux", "fedgo", "fed-et"])
def test_rules_with_weights_show_them_in_the_tracked_samples(name: str) -> None:
    rng = np.random.default_rng(1)
    rule = METHODS.get(name).make_aggregator()
    rule.track(torch.tensor([4, 0]))
    scores = rng.normal(0, 3, (3, 6))
    for client, score in enumerate(scores):
        rule.update(Upload.from_arrays(str(client), np.full((6, 2), 0.5), score))
    weights = rule.client_weights()
    assert weights is not None
    assert list(weights) == ["0", "1", "2"]
    assert torch.allclose(torch.stack(list(weights.values())).sum(0), torch.ones(2, dtype=torch.float64))
    tau = METHODS.get(name).tau
    if tau is not None:
        assert torch.allclose(torch.stack(list(weights.values())), client_weights(scores, tau)[:, [4, 0]])


def test_rules_without_weights_and_samples_that_are_not_tracked_have_none() -> None:
    for name, tracked in (("fedmd", True), ("suwa", False)):
        rule = METHODS.get(name).make_aggregator()
        if tracked:
            rule.track(torch.tensor([0]))
        rule.update(np.array([[0.5, 0.5]]))
        assert rule.client_weights() is None

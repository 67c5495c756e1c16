"""Competence and the rule trust: against scikit-learn's isotonic regression and systems solved one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from trustmix import Coupling, TrustmixError
from trustmix.aggregation import Aggregator, Upload
from trustmix.aggregation.coupling import RIDGE, laplacian, log_odds
from trustmix.aggregation.trust import BINS, Trust, competence

Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def uploads(seed: int = 0, clients: int = 5, samples: int = 60, classes: int = 4) -> list[Given]:
    rng = np.random.default_rng(seed)
    held = rng.random((clients, classes)) < 0.7
    held[np.arange(clients), rng.integers(0, classes, clients)] = True
    q = rng.dirichlet(np.ones(classes), (clients, samples))
    ranks = rng.beta(0.5, 1.0, (clients, samples))
    arrays = zip(q, held.astype(int), ranks, strict=True)
    return [(torch.tensor(a), torch.tensor(b), torch.tensor(c)) for a, b, c in arrays]


def told(rule: Aggregator, given: list[Given], ranks: bool = True) -> torch.Tensor:
    for index, (q, counts, rank) in enumerate(given):
        rule.update(Upload.from_arrays(str(index), q, class_counts=counts, ranks=rank if ranks else None))
    probabilities: torch.Tensor = rule.compute().probabilities
    return probabilities


@given(st.integers(0, 10**6))
def test_competence_is_one_over_the_decreasing_density_of_the_ranks(seed: int) -> None:
    ranks = torch.tensor(np.random.default_rng(seed).beta(0.6, 1.2, 300))
    counts = np.histogram(ranks, BINS, (0, 1))[0] + 1
    density = IsotonicRegression(increasing=False).fit_transform(np.arange(BINS), counts * BINS / counts.sum())
    bins = np.clip((ranks.numpy() * BINS).astype(int), 0, BINS - 1)
    np.testing.assert_allclose(competence(ranks, 0), 1 / density[bins], rtol=1e-12)
    np.testing.assert_allclose(competence(ranks, 0.7), 1 / np.maximum(density[bins], 0.7), rtol=1e-12)


def test_competence_is_how_much_likelier_than_any_other_the_sample_is_an_own_one() -> None:
    rng = np.random.default_rng(1)
    own, foreign = rng.random(20_000), rng.random(60_000) ** 4
    ranks = torch.tensor(np.concatenate([own, foreign]))
    weights = competence(ranks, own=0.25)
    for low, high in ((0.05, 0.1), (0.5, 0.6), (0.9, 1.0)):
        there = (ranks >= low) & (ranks < high)
        truth = float(there[:20_000].sum() / there.sum()) / 0.25
        assert float(weights[there].mean()) == pytest.approx(truth, rel=0.1)


def test_a_density_that_tells_nothing_leaves_all_weights_alike() -> None:
    assert competence(torch.arange(4000) / 4000, own=0.5).sub(1).abs().max() < 1e-9


@given(st.integers(0, 10**6))
def test_an_honest_density_of_ranks_is_nowhere_below_the_bound_that_the_counts_give(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, held = 6, int(rng.integers(1, 7))
    counts = np.append(rng.integers(1, 50, held), np.zeros(classes - held, int))
    by_class = rng.dirichlet(np.ones(BINS), classes)  # how the scores of each class lie
    own = counts @ by_class / counts.sum()
    density = by_class.mean(0) / own  # over the public set, against own samples, which are spread evenly
    assert density.min() >= counts.sum() / (counts.max() * classes) - 1e-12


def test_trust_cannot_be_saved_up_for_a_few_samples() -> None:
    ranks = torch.zeros(2000)
    ranks[:20] = torch.linspace(0.05, 1, 20)
    for counts, most in (([1, 1, 0, 0, 0], 2.5), ([4, 1, 0, 0, 0], 4.0), ([1, 1, 1, 1, 1], 1.0)):
        rule = Trust()
        rule.update(Upload.from_arrays("0", torch.full((2000, 5), 0.2), class_counts=torch.tensor(counts), ranks=ranks))
        assert float(rule.state_dict()["weights"].max()) == pytest.approx(most)


def test_without_ranks_it_is_coupling() -> None:
    given = uploads()
    torch.testing.assert_close(told(Trust(), given, ranks=False), told(Coupling(), given), atol=1e-9, rtol=0)


def test_each_sample_has_a_system_of_its_own() -> None:
    given = uploads(2)
    teacher = told(Trust(), given)
    for sample in range(0, 60, 7):
        weights = [float(competence(ranks, float(held.double().mean()))[sample]) for _, held, ranks in given]
        graph = sum(w * laplacian(c).numpy() for w, (_, c, _) in zip(weights, given, strict=True)) / sum(weights)
        odds = sum(w * log_odds(q, c)[sample].numpy() for w, (q, c, _) in zip(weights, given, strict=True))
        scores = np.linalg.solve(graph + 1 / 4 + RIDGE * np.eye(4), odds / sum(weights))
        np.testing.assert_allclose(teacher[sample], np.exp(scores) / np.exp(scores).sum(), atol=1e-9)


def test_tiles_do_not_change_the_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = told(Trust(), uploads(3))
    monkeypatch.setattr("trustmix.aggregation.trust.TILE", 1)
    torch.testing.assert_close(told(Trust(), uploads(3)), whole, atol=1e-12, rtol=0)


def test_concentration_is_that_of_the_weights() -> None:
    given, rule = uploads(4), Trust()
    told(rule, given)
    weights = torch.stack([competence(ranks, float(held.double().mean())) for _, held, ranks in given])
    chi = (weights / weights.sum(0)).square().sum(0)
    torch.testing.assert_close(rule.compute().concentration, chi)


@pytest.mark.parametrize("ranks", [[0.5, 1.5], [0.5], [float("nan"), 0.5]])
def test_ranks_that_are_none_are_refused(ranks: list[float]) -> None:
    with pytest.raises(TrustmixError, match="client 1: ranks"):
        Upload.from_arrays("1", torch.full((2, 2), 0.5), class_counts=torch.ones(2), ranks=torch.tensor(ranks))


def test_other_shapes_and_nothing_at_all_are_refused() -> None:
    rule = Trust()
    with pytest.raises(TrustmixError, match="nothing to aggregate"):
        rule.compute()
    rule.update(Upload.from_arrays("0", torch.full((2, 2), 0.5), class_counts=torch.ones(2)))
    with pytest.raises(TrustmixError, match="those before had"):
        rule.update(Upload.from_arrays("1", torch.full((3, 2), 0.5), class_counts=torch.ones(2)))

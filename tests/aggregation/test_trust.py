"""The teacher of a class is made by the clients that hold it: against NumPy, exact posteriors, and as properties."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trustmix.aggregation import Accumulator, ClassShares, Trust, Upload, bounded_ratio
from trustmix.aggregation.trust import estimate_shares

CLASSES = 4


def client(seed: int, held: list[int], samples: int = 30) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    counts = np.isin(np.arange(CLASSES), held) * rng.integers(1, 9, CLASSES)
    return rng.dirichlet(np.ones(CLASSES), samples), rng.normal(size=samples) * 3, counts


def ratio_by_search(scores: Any, largest: float) -> Any:
    """min(a exp(l), largest) with the a that makes the mean 1: how many are at the bound is tried one by one."""
    e = np.exp(scores - scores.max())
    order = np.argsort(-e)
    for capped in range(len(e)):
        rest = e[order[capped:]]
        a = (len(e) - capped * largest) / rest.sum()
        if a * rest[0] <= largest + 1e-12:
            break
    return np.minimum(a * e, largest)


def reference(given: list[tuple[Any, Any, Any]]) -> Any:
    """The weighted mean over clients of their estimates r q / (C pi) of p(c|x), the weight in c being pi."""
    samples = len(given[0][0])
    teacher = np.zeros((samples, CLASSES))
    total = np.sum([counts / counts.sum() for _, _, counts in given], 0)
    for c in range(CLASSES):
        for q, scores, counts in given:
            shares = counts / counts.sum()
            if shares[c]:
                r = ratio_by_search(scores, max(1, CLASSES * shares.max()))
                within = q[:, c] / q[:, shares > 0].sum(1)
                teacher[:, c] += shares[c] * (r * within / (CLASSES * shares[c])) / max(total[c], 0.05 * total.mean())
    return teacher / teacher.sum(1, keepdims=True)


@given(st.integers(0, 10_000), st.sampled_from([1.0, 1.5, 2.0, 5.0]))
def test_a_bounded_ratio_has_mean_one_and_keeps_to_the_bound(seed: int, largest: float) -> None:
    scores = torch.tensor(np.random.default_rng(seed).normal(size=40) * 10)
    found = bounded_ratio(scores, largest)
    assert float(found.mean()) == pytest.approx(1, abs=1e-9)
    assert float(found.max()) <= largest + 1e-9
    np.testing.assert_allclose(found, ratio_by_search(scores.numpy(), largest), atol=1e-9)


def test_raising_all_scores_changes_nothing() -> None:
    scores = torch.randn(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(bounded_ratio(scores + 1e6, 5.0), bounded_ratio(scores, 5.0), atol=1e-6, rtol=0)


def test_scores_thousands_apart_still_have_mean_one() -> None:
    found = bounded_ratio(torch.tensor([0.0, -5000.0, -5001.0, -5000.0], dtype=torch.float64), 1.25)
    assert float(found.mean()) == pytest.approx(1, abs=1e-6)


def test_the_teacher_is_the_weighted_mean_of_the_holders_estimates() -> None:
    given = [client(0, [0, 1]), client(1, [1, 2]), client(2, [2, 3, 0]), client(3, [0, 1, 2, 3])]
    rule = Trust()
    for index, (q, scores, counts) in enumerate(given):
        rule.update(Upload.from_arrays(str(index), q, scores, class_counts=counts))
    np.testing.assert_allclose(rule.compute().probabilities, reference(given), atol=1e-9)


def posterior_problem(holdings: list[Any], samples: int = 4000) -> tuple[Any, list[tuple[Any, Any]]]:
    """Public samples of equally common classes, the posterior p(c|x), and what perfect clients know: q_i, log r_i."""
    rng = np.random.default_rng(0)
    means = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]])
    labels = np.arange(samples) % CLASSES
    x = means[labels] + rng.normal(size=(samples, 2))
    likelihood = np.exp(-((x[:, None] - means) ** 2).sum(2) / 2)
    exact = []
    for shares in holdings:
        of_client = likelihood @ shares
        exact.append((likelihood * shares / of_client[:, None], np.log(of_client / likelihood.mean(1))))
    return likelihood / likelihood.sum(1, keepdims=True), exact


HOLDINGS = [np.array(s) / sum(s) for s in ([1, 1, 0, 0], [0, 3, 1, 0], [0, 0, 1, 1], [2, 0, 0, 3], [2, 1, 1, 1])]


@pytest.mark.parametrize("shared", [True, False])
def test_perfect_clients_give_the_exact_posterior_whether_or_not_they_share_their_label_sets(shared: bool) -> None:
    posterior, clients = posterior_problem(HOLDINGS)
    rule = Trust()
    for index, (q, log_ratio) in enumerate(clients):
        counts = 100 * HOLDINGS[index] if shared else None
        rule.update(Upload.from_arrays(str(index), q, log_ratio - 7.0, class_counts=counts))
    np.testing.assert_allclose(rule.compute().probabilities, posterior, atol=0.03)


def test_the_estimated_shares_are_those_of_the_clients_data() -> None:
    _, clients = posterior_problem(HOLDINGS)
    for (q, log_ratio), shares in zip(clients, HOLDINGS, strict=True):
        ratio, found = ClassShares().ratio_and_shares(Upload.from_arrays("0", q, log_ratio))
        np.testing.assert_allclose(found, shares, atol=0.03)
        assert float(ratio.mean()) == pytest.approx(1, abs=1e-9)


def shares_by_turns(q: Any, scores: Any) -> Any:
    """Ratio and shares, each of which follows from the other, four times; below 0.3 of the largest nothing is held."""
    bound = float(q.shape[1])
    for _ in range(4):
        seen = (ratio_by_search(scores, bound)[:, None] * q).mean(0)
        shares = seen * (seen >= 0.3 * seen.max()) / seen[seen >= 0.3 * seen.max()].sum()
        bound = max(1, q.shape[1] * shares.max())
    return shares


@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.3, 2.0]))
def test_shares_are_estimated_from_the_ratio_and_the_ratio_is_bounded_by_the_shares(seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    q, scores = rng.dirichlet(np.full(CLASSES, spread), 12), rng.normal(size=12) * 3
    expected = shares_by_turns(q, scores)
    np.testing.assert_allclose(estimate_shares(torch.tensor(q), torch.tensor(scores)), expected, atol=1e-9)
    _, found = ClassShares().ratio_and_shares(Upload.from_arrays("north", q, scores))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_what_a_client_holds_is_estimated_in_its_first_round_and_remembered() -> None:
    _, clients = posterior_problem(HOLDINGS)
    q, log_ratio = clients[0]
    rule = Trust()
    rule.update(Upload.from_arrays("north", q, log_ratio))
    first = rule.sums["held"]
    rule.reset()
    again = Trust()
    again.load_state_dict(rule.state_dict())
    for later in (rule, again):
        later.update(Upload.from_arrays("north", np.full_like(q, 1 / CLASSES), np.zeros(len(q))))
        assert torch.equal(later.sums["held"], first)
        assert later.compute().probabilities[:, 2:].max() < 1e-9  # it still speaks of its two classes alone


def test_where_all_hold_everything_alike_it_is_the_average() -> None:
    rule, average = Trust(), Accumulator(tau=0)
    for seed in range(3):
        q, scores, _ = client(seed, [0, 1, 2, 3])
        rule.update(Upload.from_arrays(str(seed), q, scores, class_counts=np.ones(CLASSES)))
        average.update(q)
    np.testing.assert_allclose(rule.compute().probabilities, average.compute().probabilities, atol=1e-9)


def test_a_client_with_many_samples_of_a_class_does_not_prefer_it_for_that() -> None:
    q = np.array([[0.9, 0.1, 0.0, 0.0]])
    rule = Trust()
    rule.update(Upload.from_arrays("0", q, class_counts=[90, 10, 0, 0]))
    assert rule.compute().probabilities[0, :2] == pytest.approx([0.5, 0.5], abs=1e-6)


def test_a_class_that_no_client_holds_stays_small() -> None:
    dust = np.array([0.498, 0.498, 0.002, 0.002])
    rule = Trust()
    for name in "ab":
        rule.update(Upload.from_arrays(name, np.tile(dust, (50, 1))))
    assert rule.compute().probabilities[:, 2:].max() < 0.1


@pytest.mark.parametrize("counts", [None, [1, 1, 0, 0], [1, 2**31 - 1, 0, 0]])
def test_whatever_a_client_sends_it_has_one_vote_a_sample_on_average(counts: list[int] | None) -> None:
    q, _, _ = client(5, [0, 1], samples=100)
    scores = np.full(100, -1e6)
    scores[:3] = 1e6
    rule = Trust()
    rule.update(Upload.from_arrays("greedy", q, scores, class_counts=counts))
    assert float(rule.sums["weight"].mean()) <= 1 + 1e-6
    assert float(rule.sums["weight"].max()) <= CLASSES + 1e-6
    assert float(rule.sums["held"].sum()) == pytest.approx(1)


def test_samples_that_no_client_has_seen_the_like_of_keep_a_finite_concentration() -> None:
    rule = Trust()
    for name in ("a", "b"):
        scores = np.array([0.0, 0.0, -800.0, -np.inf])
        rule.update(Upload.from_arrays(name, np.full((4, 4), 0.25), scores, class_counts=[1, 1, 0, 0]))
    teacher = rule.compute()
    assert np.isfinite(teacher.concentration).all()
    assert np.isfinite(teacher.probabilities).all()


def test_counts_of_half_precision_are_added_up_without_an_overflow() -> None:
    counts = np.array([60_000, 60_000, 0, 0], dtype=np.float16)
    upload = Upload.from_arrays("large", np.full((4, 4), 0.25), class_counts=counts)
    assert ClassShares().ratio_and_shares(upload)[1].tolist() == [0.5, 0.5, 0.0, 0.0]

"""The teacher of a class is made by those who hold it."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trustmix.aggregation import Accumulator, Holders, Upload, bounded_ratio

CLASSES = 4


def client(seed: int, held: list[int], samples: int = 30) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    counts = np.isin(np.arange(CLASSES), held).astype(int)
    return rng.dirichlet(np.ones(CLASSES), samples), rng.normal(size=samples) * 3, counts


def reference(given: list[tuple[Any, Any, Any]]) -> Any:
    """Mean over the holders of c of r_i (k_i / C) q_i(c | C_i), in NumPy, the ratio found by a sorted search."""
    mass, holders = 0.0, 0.0
    for q, scores, counts in given:
        held = counts > 0
        share = held.mean()
        r = np.ones(len(q)) if share == 1 else ratio_by_search(scores, 1 / share)
        within = np.where(held, q / np.maximum(counts, 1), 0)
        within /= within.sum(1, keepdims=True)
        mass, holders = mass + within * (share * r)[:, None], holders + held
    mean = mass / np.maximum(holders, 1) + 1e-12
    return mean / mean.sum(1, keepdims=True)


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


@given(st.integers(0, 10_000), st.sampled_from([1.0, 1.5, 2.0, 5.0]))
def test_a_bounded_ratio_has_mean_one_and_keeps_to_the_bound(seed: int, largest: float) -> None:
    scores = torch.tensor(np.random.default_rng(seed).normal(size=40) * 10)
    found = bounded_ratio(scores, largest)
    assert float(found.mean()) == pytest.approx(1, abs=1e-6)
    assert float(found.max()) <= largest + 1e-9
    np.testing.assert_allclose(found, ratio_by_search(scores.numpy(), largest), atol=1e-6)


def test_raising_all_scores_changes_nothing() -> None:
    scores = torch.randn(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(bounded_ratio(scores + 1e6, 5.0), bounded_ratio(scores, 5.0), atol=1e-6, rtol=0)


def test_the_teacher_is_the_mean_over_holders() -> None:
    given = [client(0, [0, 1]), client(1, [1, 2]), client(2, [2, 3, 0]), client(3, [0, 1, 2, 3])]
    rule = Holders()
    for index, (q, scores, counts) in enumerate(given):
        rule.update(Upload.from_arrays(str(index), q, scores, class_counts=counts))
    np.testing.assert_allclose(rule.compute().probabilities, reference(given), atol=1e-6)


def test_where_all_hold_everything_it_is_the_average() -> None:
    given = [client(seed, [0, 1, 2, 3]) for seed in range(3)]
    rule, average = Holders(), Accumulator(tau=0)
    for index, (q, scores, counts) in enumerate(given):
        rule.update(Upload.from_arrays(str(index), q, scores, class_counts=counts))
        average.update(q)
    np.testing.assert_allclose(rule.compute().probabilities, average.compute().probabilities, atol=1e-9)


def test_a_client_with_many_samples_of_a_class_does_not_prefer_it_for_that() -> None:
    q = np.array([[0.9, 0.1, 0.0, 0.0]])
    rule = Holders()
    rule.update(Upload.from_arrays("0", q, class_counts=[90, 10, 0, 0]))
    assert rule.compute().probabilities[0, :2] == pytest.approx([0.5, 0.5], abs=1e-6)


def test_no_client_weighs_more_than_its_label_set_allows() -> None:
    q, _, counts = client(5, [0, 1], samples=100)
    scores = np.full(100, -1e6)
    scores[:3] = 1e6
    rule = Holders()
    rule.track(torch.arange(100))
    rule.update(Upload.from_arrays("greedy", q, scores, class_counts=counts))
    assert float(rule.sums["weight"].max()) <= CLASSES / 2 + 1e-6


def test_samples_that_no_client_has_seen_the_like_of_keep_a_finite_concentration() -> None:
    rule = Holders()
    for name, counts in (("a", [1, 1, 0, 0]), ("b", [0, 0, 1, 1])):
        scores = np.array([0.0, 0.0, -800.0, -np.inf])
        rule.update(Upload.from_arrays(name, np.full((4, 4), 0.25), scores, class_counts=counts))
    teacher = rule.compute()
    assert np.isfinite(teacher.concentration).all()
    assert np.isfinite(teacher.probabilities).all()


def test_scores_thousands_apart_still_have_mean_one() -> None:
    found = bounded_ratio(torch.tensor([0.0, -5000.0, -5001.0, -5000.0], dtype=torch.float64), 1.25)
    assert float(found.mean()) == pytest.approx(1, abs=1e-6)

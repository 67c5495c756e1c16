"""Trust under guard: the location against NumPy, and what clients that know the rule can do to it."""

import hashlib
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trustmix.aggregation import ClassShares, RobustTrust, Trust, Upload, holders, robust_trust, spool
from trustmix.aggregation.holders import Holders
from trustmix.aggregation.joint_consensus import BALANCE_STEPS, MAX_OFFSET, MIN_OPINION
from trustmix.aggregation.robust_trust import (
    CLIP,
    N_ITERATIONS,
    POWER,
    bounded_votes,
    class_estimates,
    clipped_mean,
    robust_location,
)
from trustmix.aggregation.spool import Spool
from trustmix.errors import TrustmixError

SAMPLES, CLASSES = 200, 5
TRUTH = np.arange(SAMPLES) % CLASSES


def expert(seed: int, held: list[int], noise: float = 0.1) -> tuple[Any, Any]:
    """Predictions and log-ratios of a client that knows its classes and finds other samples strange."""
    rng = np.random.default_rng(seed)
    known = np.isin(TRUTH, held)
    label = np.where(known, TRUTH, rng.choice(held, SAMPLES))
    q = (1 - 2 * noise) * np.eye(CLASSES)[label] + 2 * noise * rng.dirichlet(np.ones(len(held)), SAMPLES) @ np.eye(
        CLASSES
    )[held]
    return q, np.where(known, 3.0, -3.0) + rng.normal(size=SAMPLES)


HONEST = [expert(i, [i % CLASSES, (i + 1) % CLASSES, (i + 3) % CLASSES]) for i in range(15)]
FEW_HOLDERS = [
    *(expert(i, [2 + i % 3, 2 + (i + 1) % 3]) for i in range(11)),
    *(expert(20, [0, 2]), expert(21, [0, 3])),
    *(expert(30 + i, [1, 2 + i]) for i in range(3)),
]
"""Two clients hold class 0, three class 1; without a guard, three liars take both classes."""


def teacher(rule: Any, uploads: list[tuple[Any, Any]]) -> Any:
    for index, (q, scores) in enumerate(uploads):
        rule.update(Upload.from_arrays(str(index), q, scores))
    return rule.compute().probabilities


def recalls(found: Any) -> Any:
    return np.array([(found.argmax(1) == TRUTH)[c == TRUTH].mean() for c in range(CLASSES)])


def median_by_search(values: Any, weights: Any) -> float:
    """The middle of all values v with at most half of the weight below v and at most half above."""
    half = weights.sum() / 2 + 1e-12
    fits = [v for v in values if weights[values < v].sum() <= half and weights[values > v].sum() <= half]
    kept = [v for v in fits if weights[values == v].sum() > 0]
    return float(min(kept) + max(kept)) / 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 7))
def test_the_location_is_the_weighted_median_plus_the_clipped_mean(seed: int, clients: int) -> None:
    rng = np.random.default_rng(seed)
    values, weights = rng.random((clients, 4, 2)).astype("f4"), rng.integers(1, 4, (clients, 2)).astype(float)
    found = clipped_mean(torch.tensor(values).permute(1, 2, 0), torch.tensor(weights).t())
    for sample in range(4):
        for c in range(2):
            v, w = values[:, sample, c], weights[:, c]
            middle = median_by_search(v, w)
            expected = middle + (np.clip(v - middle, -CLIP, CLIP) * w).sum() / w.sum()
            assert float(found[sample, c]) == pytest.approx(expected, abs=1e-7)


def test_a_class_without_votes_has_no_location() -> None:
    assert clipped_mean(torch.ones(2, 1, 3), torch.zeros(1, 3)).tolist() == [[0.0], [0.0]]


def spooled(estimates: Any, votes: Any) -> tuple[Spool, Holders, torch.Tensor]:
    """Estimates (M, N, C) and votes (M, C) as `robust_location` takes them: without classes that have no votes."""
    votes, spool = torch.as_tensor(votes, dtype=torch.float64), Spool(torch.float32)
    for one, own in zip(torch.as_tensor(estimates), votes, strict=True):
        spool.append(one[:, own > 0])
    return spool, Holders(*(votes > 0).nonzero(as_tuple=True), *votes.shape), votes[votes > 0]


def consensus_by_loops(estimates: Any, held: Any, precision: Any) -> Any:
    """The joint consensus, one sample at a time, from the opinions of all clients about all classes."""
    clients, samples, classes = estimates.shape
    odds = np.zeros((samples, classes))
    for x in range(samples):
        for i in range(clients):
            rest = np.clip(1 - estimates[i, x][held[i]].sum(), 0, 1)
            opinion = np.where(held[i], estimates[i, x], rest)  # of classes that it does not hold: the rest
            odds[x] += precision[i] * np.log(MIN_OPINION + (1 - MIN_OPINION) * opinion)
    offset = np.zeros(classes)
    for _ in range(BALANCE_STEPS):
        common = scipy.special.softmax(odds + offset, 1).mean(0) * classes
        offset = np.clip(offset - np.log(common), -MAX_OFFSET, MAX_OFFSET)
    return scipy.special.softmax(odds + offset, 1)


def location_by_loops(estimates: Any, votes: Any, weights: Any) -> tuple[Any, Any]:
    """Locations and precisions, one number at a time; a client of weight 2 is there twice."""
    clients, samples, classes = estimates.shape
    precision = np.ones(clients)
    for _ in range(N_ITERATIONS):
        consensus = consensus_by_loops(estimates, votes > 0, precision * weights)
        distance = (np.abs(estimates - consensus).mean(1) * votes).sum(1) / votes.sum(1)
        precision = np.minimum(1, np.sort(distance.repeat(weights))[(weights.sum() - 1) // 2] / distance) ** POWER
    location = np.zeros((samples, classes))
    for x in range(samples):
        for c in range(classes):
            v, w = estimates[:, x, c], votes[:, c] * precision
            middle = median_by_search(v, w)
            location[x, c] = middle + (np.clip(v - middle, -CLIP, CLIP) * w).sum() / w.sum()
    return location, precision


@pytest.mark.parametrize("at_once", [1, 2, 1000])
def test_draws_follow_from_the_table_of_votes(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "DIGESTED", at_once)
    votes = torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.0, 1.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    _, pairs, flat = spooled(torch.zeros(3, 1, 3), votes)
    assert pairs.digest(flat) == hashlib.sha256(votes.numpy().tobytes()).hexdigest()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_the_precision_of_a_client_follows_from_its_distance_to_the_joint_consensus(seed: int) -> None:
    rng = np.random.default_rng(seed)
    estimates, votes = rng.random((6, 5, 3)).astype("f4") / 2, rng.integers(1, 4, (6, 3)).astype(float)
    votes[:4, 2] = 0
    estimates[0] += np.float32(rng.random() / 2)
    weights = rng.integers(1, 4, 6)
    votes *= weights[:, None]
    location = robust_location(*spooled(estimates, votes), torch.tensor(weights, dtype=torch.float64))
    for found, expected in zip(location, location_by_loops(estimates, votes, weights), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def captured(kept: float = 0.0) -> tuple[Any, Any]:
    """Claims class 0 for the samples of class 1 and gives its own to class 1, as one of several holders of both."""
    swap = np.array([1, 0, 2, 3, 4])
    q = (1 - kept) * np.eye(CLASSES)[swap[TRUTH]] + kept * np.eye(CLASSES)[TRUTH]
    return q, np.where(TRUTH < 2, 3.0, -3.0)


def test_a_class_is_not_captured_by_more_liars_than_it_has_holders() -> None:
    """Four liars exchange classes of two and of three honest holders."""
    rule = RobustTrust()
    found = recalls(teacher(rule, [*FEW_HOLDERS, *[captured()] * 4]))
    assert found.min() > 0.9
    assert set(rule.report()) == {"16", "17", "18", "19"}


@pytest.mark.parametrize("tile", [1, 17, 40, 100])
@pytest.mark.parametrize("voters", [3, 1000])
def test_any_tile_and_any_groups_of_classes_give_the_same_location(
    tile: int, voters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimates, votes = torch.rand(6, 50, 3), torch.rand(6, 3)
    votes[2:, 1] = 0
    monkeypatch.setattr(robust_trust, "MAX_VOTERS", voters)
    weights = torch.ones(6, dtype=torch.float64)
    whole = robust_location(*spooled(estimates, votes), weights)
    monkeypatch.setattr(holders, "TILE", tile)
    monkeypatch.setattr(holders, "MIN_ROWS", 1)
    monkeypatch.setattr(spool, "CHUNK", 1000)
    for one, other in zip(whole, robust_location(*spooled(estimates, votes), weights), strict=True):
        torch.testing.assert_close(one, other)


def test_estimates_of_the_holders_are_those_of_trust() -> None:
    q, scores = HONEST[0]
    ratio, estimates, shares = class_estimates(Upload.from_arrays("0", q, scores), ClassShares())
    held = shares.numpy() > 0.01
    expected = np.minimum((q * ratio.numpy()[:, None])[:, held] / (CLASSES * shares.numpy()[held]), 1)
    np.testing.assert_allclose(estimates, expected, rtol=1e-5)


def test_among_honest_clients_it_labels_as_trust_does() -> None:
    rule = RobustTrust()
    assert (teacher(rule, HONEST).argmax(1) == teacher(Trust(), HONEST).argmax(1)).mean() > 0.98
    assert (recalls(teacher(RobustTrust(), HONEST)) > 0.97).all()
    assert rule.report() == {}


def test_a_client_that_holds_a_class_alone_makes_its_teacher() -> None:
    others = [expert(i, [1 + i % 4, 1 + (i + 1) % 4, 1 + (i + 2) % 4]) for i in range(12)]
    assert recalls(teacher(RobustTrust(), others))[0] < 0.1
    assert recalls(teacher(RobustTrust(), [*others, expert(99, [0, 1])]))[0] > 0.9


def wrong_labels(classes: list[int] | None = None) -> tuple[Any, Any]:
    """Full confidence in the next class of the list, on every sample."""
    named = np.arange(CLASSES) if classes is None else np.array(classes)
    return np.eye(CLASSES)[named[(TRUTH + 1) % len(named)]], np.zeros(SAMPLES)


def near_the_margin(part: float) -> tuple[Any, Any]:
    """The honest teacher everywhere but on the samples of its smallest margins, where its runner-up is named."""
    honest = teacher(Trust(), FEW_HOLDERS)
    order = np.sort(honest, 1)
    chosen = np.argsort(order[:, -1] - order[:, -2])[: int(part * SAMPLES)]
    q = honest.copy()
    q[chosen] = np.eye(CLASSES)[honest[chosen].argsort(1)[:, -2]]
    return q, np.zeros(SAMPLES)


def loud(attack: tuple[Any, Any]) -> tuple[Any, Any]:
    return attack[0], attack[1] + 1e9


def erase(c: int) -> tuple[Any, Any]:
    """Familiar with the samples of one class alone, all of which it gives to another."""
    return np.eye(CLASSES)[np.where(c == TRUTH, (c + 1) % CLASSES, TRUTH)], np.where(c == TRUTH, 5.0, -5.0)


ATTACKS = {
    "wrong": wrong_labels(),
    "loud": loud(wrong_labels()),
    "two classes": wrong_labels([0, 1]),
    "one class": wrong_labels([2]),
    "margin": near_the_margin(0.2),
    "erase": erase(0),
    "exchange": captured(),
}


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("liars", [1, 3])
def test_a_sixth_of_the_clients_in_collusion_erases_no_class(name: str, liars: int) -> None:
    found = recalls(teacher(RobustTrust(), [*FEW_HOLDERS, *[ATTACKS[name]] * liars]))
    assert found.min() > 0.8
    assert found.mean() > 0.95


def test_without_the_guard_a_sixth_of_the_clients_takes_classes_of_few_holders() -> None:
    """What the test above would show of a guard that does nothing."""
    assert recalls(teacher(Trust(), [*FEW_HOLDERS, *[ATTACKS["exchange"]] * 3]))[:2].max() < 0.2


@pytest.mark.parametrize("counts", [[1, 2**31 - 1, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
def test_no_label_set_that_a_client_claims_gives_it_a_class(counts: list[int]) -> None:
    """Two liars know class 1 as its three holders do, and claim four samples of class 0 for it: too few to be noticed.

    With one class alone a liar would have twice the vote of a holder that has two.
    """
    stolen = np.flatnonzero(TRUTH == 0)[:4]
    familiar = np.isin(np.arange(SAMPLES), [*np.flatnonzero(TRUTH == 1), *stolen])
    honest = [expert(i, [0, 2 + i % 3, 2 + (i + 1) % 3]) for i in range(10)]
    rule = RobustTrust()
    for index, (q, scores) in enumerate([*honest, *(expert(30 + i, [1, 2 + i]) for i in range(3))]):
        rule.update(Upload.from_arrays(str(index), q, scores))
    for number in range(2):
        q, scores = np.tile(np.eye(CLASSES)[1], (SAMPLES, 1)), np.where(familiar, 3.0, -3.0)
        rule.update(Upload.from_arrays(f"liar {number}", q, scores, class_counts=counts))
    found = rule.compute().probabilities
    assert found[stolen, 1].max() < 0.2
    assert recalls(found).min() > 0.8


@pytest.mark.parametrize("liars", [1, 2])
@pytest.mark.parametrize("name", ["erase", "exchange"])
def test_liars_cannot_frame_the_only_other_holder_of_a_class(name: str, liars: int) -> None:
    others = [expert(i, [1 + i % 4, 1 + (i + 1) % 4, 1 + (i + 2) % 4]) for i in range(12)]
    with_liars, without = RobustTrust(), RobustTrust()
    found = teacher(with_liars, [*others, expert(99, [0, 1]), *[ATTACKS[name]] * liars])
    teacher(without, [*others, expert(99, [0, 1])])
    assert "12" not in with_liars.report() | without.report()
    assert recalls(found)[0] > 0.5


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 8), st.sampled_from([0.0, 0.5, 1.0]))
def test_liars_with_fewer_than_half_of_the_votes_leave_a_class_within_what_the_honest_say(
    seed: int, honest: int, lie: float
) -> None:
    rng = np.random.default_rng(seed)
    said, votes = rng.random((50, 1, honest)), rng.integers(1, 4, (1, honest)).astype(float)
    liars = rng.integers(1, 5)
    lies = np.full((50, 1, liars), lie) if lie != 0.5 else rng.integers(0, 2, (50, 1, liars)).astype(float)
    weights = np.concatenate([votes, np.full((1, liars), 0.99 * votes.sum() / liars)], 1)
    tile = torch.tensor(np.concatenate([said, lies], 2), dtype=torch.float32)
    found = clipped_mean(tile, torch.tensor(weights)).numpy()
    assert (found >= said.min(2) - CLIP / 2 - 1e-6).all()  # half of the votes at most pull by the clip
    assert (found <= said.max(2) + CLIP / 2 + 1e-6).all()


def test_votes_sum_to_one_at_most() -> None:
    votes = bounded_votes(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.3, 0.3, 0.4]]))
    assert float(votes.sum(1).max()) <= 1
    assert float(votes.max()) == 0.5


def test_predictions_outside_the_classes_that_a_client_holds_leave_the_teacher_finite() -> None:
    """Few samples, which it finds very familiar, of a class that its other predictions show it not to hold."""
    label = np.where(np.arange(SAMPLES) < 6, 1, 0)
    attack = np.eye(CLASSES)[label], np.where(label == 1, np.log(4.9), 0.0)
    upload = Upload.from_arrays("liar", *attack)
    ratio, estimates, shares = class_estimates(upload, ClassShares())
    assert float(ratio.max()) > 4
    assert shares.tolist() == [1, 0, 0, 0, 0]
    assert bool(torch.isfinite(estimates).all())
    found = teacher(RobustTrust(), [*HONEST, attack])
    assert np.isfinite(found).all()
    assert recalls(found).min() > 0.8


def test_a_second_upload_of_a_client_is_refused() -> None:
    rule = RobustTrust()
    rule.update(Upload.from_arrays("north", *HONEST[0]))
    with pytest.raises(TrustmixError, match="client north: a client has one upload a round"):
        rule.update(Upload.from_arrays("north", *HONEST[0]))


def test_of_many_holders_some_are_drawn_and_of_few_all() -> None:
    held = torch.zeros(9, 3, dtype=torch.bool)
    held[:, 0], held[:2, 1], held[:5, 2] = True, True, True
    client, class_ = held.nonzero(as_tuple=True)
    (group,), generator = Holders(client, class_, 9, 3).groups, np.random.default_rng(0)
    group.draw(9, generator)
    assert group.drawn is None
    group.draw(4, generator)
    drawn = group.drawn
    assert drawn is not None
    assert drawn[1].tolist() == [0, 1, 2, 3]
    for index, count in ((0, 9), (2, 5)):
        seats = drawn[index].tolist()
        assert len(set(seats)) == 4
        assert set(seats) <= set(range(count))


def test_a_client_of_little_weight_changes_little() -> None:
    """Its vote is its weight times that of others; the lie alone would be another teacher."""
    lie = np.eye(CLASSES)[(TRUTH + 1) % CLASSES], np.zeros(SAMPLES)
    honest, with_lie = RobustTrust(), RobustTrust()
    for index, upload in enumerate(HONEST):
        for rule in (honest, with_lie):
            rule.update(Upload.from_arrays(str(index), *upload))
    with_lie.update(Upload.from_arrays("liar", *lie).replace(weight=1e-6))
    expected, found = (np.asarray(rule.compute().probabilities) for rule in (honest, with_lie))
    assert np.abs(found - expected).max() < 0.02
    assert np.abs(found - lie[0]).max() > 0.5


def test_many_clients_of_little_weight_do_not_make_the_consensus() -> None:
    """Late liars outnumber the honest ones and count for a small part of one: they are reported, and no honest one."""
    lie = np.eye(CLASSES)[(TRUTH + 1) % CLASSES], np.zeros(SAMPLES)
    honest, with_lies = RobustTrust(), RobustTrust()
    for index, upload in enumerate(HONEST):
        for rule in (honest, with_lies):
            rule.update(Upload.from_arrays(str(index), *upload))
    liars = [f"late {index}" for index in range(2 * len(HONEST))]
    for liar in liars:
        with_lies.update(Upload.from_arrays(liar, *lie).replace(weight=1e-3))
    expected, found = (np.asarray(rule.compute().probabilities) for rule in (honest, with_lies))
    assert list(with_lies.report()) == liars
    assert np.abs(found - expected).max() < 0.02

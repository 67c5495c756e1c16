"""Coupling: against least squares written out row by row, and as properties of any label sets."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components
from scipy.special import log_softmax, softmax

from trustmix import Coupling, TrustmixError, Upload, couple
from trustmix.aggregation.coupling import FLOOR, RIDGE, validate_connected


def reference(q: Any, counts: Any, floor: float, ridge: float) -> Any:
    """The teacher of one sample, q (M, C), by stacking what every client says about each of its classes."""
    clients, classes = q.shape
    rows, said = [np.ones(classes) / np.sqrt(classes)], [0.0]
    for own, count in zip(q, counts, strict=True):
        held = np.flatnonzero(count)
        r = own[held] / (count[held] + 1)
        logs = np.log(r / r.sum() + floor)
        for c, value in zip(held, logs - logs.mean(), strict=True):
            row = np.isin(np.arange(classes), held) * -1.0 / len(held)
            row[c] += 1
            rows.append(row / np.sqrt(clients))
            said.append(value / np.sqrt(clients))
    rows += list(np.sqrt(ridge) * np.eye(classes))
    scores = np.linalg.lstsq(np.array(rows), np.array(said + [0.0] * classes), rcond=None)[0]
    compared = counts[(counts > 0).sum(1) > 1].any(0)  # of a class that is never compared nothing is known
    return softmax(np.where(compared, scores, -np.inf))


def uploads(seed: int, clients: int = 6, samples: int = 4, classes: int = 5) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 90, (clients, classes)) * (rng.random((clients, classes)) < 0.6)
    counts[np.arange(clients), rng.integers(0, classes, clients)] = 7
    return rng.dirichlet(np.full(classes, 0.4), (clients, samples)), counts


def held(q: Any, counts: Any) -> Upload:
    return Upload.from_arrays("some", q, class_counts=counts)


def coupled(q: Any, counts: Any, **options: float) -> Coupling:
    coupling = Coupling(**options)
    for client, count in zip(q, counts, strict=True):
        coupling.update(held(client, count))
    return coupling


@given(st.integers(0, 10**6))
@example(1150)  # a class that only a client without any other class holds
def test_the_teacher_is_the_least_squares_solution(seed: int) -> None:
    q, counts = uploads(seed)
    teacher = coupled(q, counts).compute()
    expected = [reference(q[:, sample], counts, FLOOR, RIDGE) for sample in range(q.shape[1])]
    np.testing.assert_allclose(teacher.probabilities, expected, atol=1e-9)
    np.testing.assert_allclose(teacher.concentration, 1 / len(q))


def chained_sets(rng: Any, classes: int, clients: int) -> list[list[int]]:
    """Random label sets that connect all classes: a chain of pairs, then any others."""
    order = rng.permutation(classes)
    chain = [[int(a), int(b)] for a, b in pairwise(order)]
    return chain + [rng.choice(classes, rng.integers(1, classes + 1), replace=False).tolist() for _ in range(clients)]


@given(st.integers(0, 10**6), st.integers(2, 8))
def test_exact_odds_recover_the_true_posterior(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    sets = chained_sets(rng, classes, 4)
    posterior = rng.dirichlet(np.ones(classes), 6) * 0.99 + 0.01 / classes
    logits = np.stack([np.log(posterior) + rng.normal(size=(6, 1)) * 5 for _ in sets])
    for client, held in zip(logits, sets, strict=True):  # of classes it does not hold a client knows nothing
        unheld = np.setdiff1d(np.arange(classes), held)
        client[:, unheld] = rng.normal(size=(6, len(unheld))) * 3
    counts = [np.isin(np.arange(classes), held).astype(int) for held in sets]
    teacher = coupled(softmax(logits, -1), counts, floor=0, ridge=1e-12).compute()
    np.testing.assert_allclose(teacher.probabilities, posterior, atol=1e-6)


def test_where_all_hold_all_classes_it_is_the_log_linear_pool() -> None:
    logits = np.random.default_rng(3).normal(size=(5, 20, 7)) * 3
    pool = softmax(log_softmax(logits, -1).mean(0), -1)
    teacher = coupled(softmax(logits, -1), np.ones((5, 7), int), floor=0, ridge=1e-12).compute()
    np.testing.assert_allclose(teacher.probabilities, pool, atol=1e-9)


def test_counts_take_out_what_a_client_expects_from_its_own_frequencies() -> None:
    rng = np.random.default_rng(4)
    posterior = rng.dirichlet(np.ones(4), 10)
    counts = rng.integers(1, 500, (3, 4))
    skewed = posterior * (counts[:, None] + 1)
    teacher = coupled(skewed / skewed.sum(-1, keepdims=True), counts, floor=0, ridge=1e-12).compute()
    np.testing.assert_allclose(teacher.probabilities, posterior, atol=1e-6)


@given(st.integers(0, 10**6), st.data())
@settings(max_examples=50)
def test_any_tree_of_merges_and_any_order_give_the_same_teacher(seed: int, draw: Any) -> None:
    q, counts = uploads(seed)
    leaves = [coupled(q[[i]], counts[[i]]) for i in range(len(q))]
    while len(leaves) > 1:
        other = leaves.pop(draw.draw(st.integers(0, len(leaves) - 1)))
        leaves[draw.draw(st.integers(0, len(leaves) - 1))].merge(other)
    whole = coupled(q, counts).compute()
    np.testing.assert_allclose(leaves[0].compute().probabilities, whole.probabilities, atol=1e-6)
    assert leaves[0].n_clients == whole.clients == len(q)


def test_a_weight_counts_as_that_many_clients() -> None:
    q, counts = uploads(5)
    weighed, repeated = coupled(q, counts), coupled(q, counts)
    weighed.update(replace(held(q[0], counts[0]), weight=2.0))
    for _ in range(2):
        repeated.update(held(q[0], counts[0]))
    np.testing.assert_allclose(weighed.compute().probabilities, repeated.compute().probabilities, atol=1e-12)


def test_one_client_cannot_claim_more_than_the_floor_allows() -> None:
    certain = np.array([[1.0, 0.0]])
    teacher = coupled([certain], [np.array([1, 1])], ridge=1e-9).compute()
    odds = teacher.probabilities[0, 0] / teacher.probabilities[0, 1]
    assert np.log(odds) == pytest.approx(np.log(1 / FLOOR), rel=1e-3)


def test_memory_does_not_grow_with_the_number_of_clients() -> None:
    q, counts = uploads(6)
    coupling = coupled(q, counts)
    size = sum(tensor.numel() for tensor in coupling.sums.values())
    for client in range(500):
        coupling.update(held(q[client % 6], counts[client % 6]))
    assert sum(tensor.numel() for tensor in coupling.sums.values()) == size == 4 * 5 + 5 * 5 + 2


def test_saved_and_loaded_it_goes_on(tmp_path: Path) -> None:
    q, counts = uploads(7)
    first = coupled(q[:3], counts[:3])
    first.save(tmp_path / "half.safetensors")
    again = Coupling()
    again.load(tmp_path / "half.safetensors")
    for client, count in zip(q[3:], counts[3:], strict=True):
        again.update(held(client, count))
    assert (again.compute().probabilities == coupled(q, counts).compute().probabilities).all()


def test_arrays_come_back_as_they_came() -> None:
    logits = torch.randn(3, 4, 5)
    teacher = couple(logits, [{0, 1, 2}, {2, 3}, {3, 4}])
    assert teacher.probabilities.dtype == torch.float32
    assert couple(logits.numpy(), counts=[[3, 1, 2, 0, 0]] * 3).probabilities.dtype == np.float32


def test_a_class_that_nobody_holds_gets_no_probability() -> None:
    assert couple(np.zeros((2, 1, 4)), [{0, 1}, {1, 2}]).probabilities[0, 3] == 0
    alone = couple(np.zeros((1, 1, 3)), [{1}]).probabilities  # one class compares with none: it says nothing
    np.testing.assert_allclose(alone, 1 / 3)


@given(st.lists(st.sets(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=9))
def test_islands_are_found(sets: list[set[int]]) -> None:
    joined = np.zeros((7, 7))
    for labels in sets:
        for c in labels:
            joined[min(labels), c] = 1
    connected = set().union(*sets) == set(range(7)) and connected_components(joined)[0] == 1
    held = {str(index): torch.tensor(sorted(labels)) for index, labels in enumerate(sets)}
    if connected:
        validate_connected(held, 7)
    else:
        with pytest.raises(TrustmixError, match=r"no client holds class|no chain of clients"):
            validate_connected(held, 7)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: couple(np.zeros((2, 1, 3)), [{0}]), "logits are of 2 clients, and what they hold is given of 1"),
        (lambda: couple(np.zeros((1, 1, 3)), [{3}]), "must name some of the classes 0 to 2"),
        (lambda: couple(np.zeros((1, 1, 3))), "either label_sets"),
        (lambda: couple(np.zeros((1, 1, 3)), counts=np.array([[1, -1, 0]])), "number of samples of each class"),
        (lambda: Coupling().update(np.array([[0.5, 0.5]])), "client 0: the upload has no label set"),
        (lambda: Coupling().compute(), "nothing to aggregate"),
        (lambda: coupled([np.ones((1, 1)), np.ones((2, 1))], np.ones((2, 1))), "those before had"),
    ],
)
def test_wrong_arrays_are_refused_in_a_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        call()

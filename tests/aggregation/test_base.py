"""What every rule promises, whatever it computes: uploads validated once, any tree of merges, states that travel."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from trustmix import Accumulator, Aggregator, Coupling, TrustmixError, Upload
from trustmix.aggregation import Guard, GuardedAggregator, Trust
from trustmix.aggregation.base import pack_uploads, unpack_uploads
from trustmix.federation import METHODS

CLIENTS, SAMPLES, CLASSES = 7, 12, 4
RULES = [name for name in METHODS.names() if METHODS.get(name).aggregator is not None]
GUARDED = [name for name in RULES if METHODS.get(name).guardable]


def uploads(seed: int = 0, clients: int = CLIENTS) -> list[Upload]:
    rng = np.random.default_rng(seed)
    made = []
    for index in range(clients):
        counts = np.zeros(CLASSES, int)
        counts[[index % CLASSES, (index + 1) % CLASSES]] = 5
        q, scores = rng.dirichlet(np.ones(CLASSES), SAMPLES).astype("f4"), rng.normal(size=SAMPLES).round()
        made.append(
            Upload.from_arrays(str(index), torch.tensor(q), scores, class_counts=counts, ranks=rng.random(SAMPLES))
        )
    return made


def make(name: str, guarded: bool = False) -> Aggregator:
    rule = METHODS.get(name).make_aggregator()
    return GuardedAggregator(rule) if guarded else rule


def folded(rule: Aggregator, given: list[Upload]) -> Aggregator:
    for upload in given:
        rule.update(upload)
    return rule


CASES = [(name, False) for name in RULES] + [(name, True) for name in GUARDED]


@pytest.mark.parametrize(("name", "guarded"), CASES)
def test_merged_halves_are_the_teacher_of_all(name: str, guarded: bool) -> None:
    given = uploads()
    left, right = folded(make(name, guarded), given[:3]), folded(make(name, guarded), given[3:])
    left.merge(right)
    left.merge(make(name, guarded))
    whole = folded(make(name, guarded), given).compute()
    merged = left.compute()
    assert merged.clients == whole.clients
    torch.testing.assert_close(merged.probabilities, whole.probabilities, atol=1e-6, rtol=0)
    torch.testing.assert_close(merged.concentration, whole.concentration, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("name", "guarded"), CASES)
def test_a_state_that_travelled_goes_on_with_the_same_numbers(name: str, guarded: bool) -> None:
    given = uploads(1)
    half, other = folded(make(name, guarded), given[:4]), make(name, guarded)
    other.load_state_dict(half.state_dict())
    assert other.n_clients == 4
    found = folded(other, given[4:]).compute()
    expected = folded(half, given[4:]).compute()
    assert torch.equal(found.probabilities, expected.probabilities)
    assert torch.equal(found.concentration, expected.concentration)
    assert found.probabilities.dtype == torch.float32


@pytest.mark.parametrize(("name", "guarded"), CASES)
def test_a_round_leaves_nothing_but_what_the_rule_remembers(name: str, guarded: bool) -> None:
    rule = folded(make(name, guarded), uploads(2))
    first = rule.compute().probabilities
    assert torch.equal(rule.compute().probabilities, first)  # computing twice changes nothing
    rule.reset()
    assert rule.n_clients == 0
    with pytest.raises(TrustmixError, match="nothing to aggregate"):
        rule.compute()
    again = make(name, guarded)
    again.load_state_dict(rule.state_dict())
    assert torch.equal(
        folded(again, uploads(3)).compute().probabilities, folded(rule, uploads(3)).compute().probabilities
    )


@pytest.mark.parametrize(("name", "guarded"), CASES)
def test_an_upload_of_another_shape_is_refused_and_changes_nothing(name: str, guarded: bool) -> None:
    rule, other = folded(make(name, guarded), uploads(4)), uploads(5, 1)[0]
    narrow = replace(other, client="narrow", predictions=other.predictions[:5])
    with pytest.raises(
        TrustmixError, match=r"client narrow: predictions have the shape \(5, 4\); those before had \(12, 4\)"
    ):
        rule.update(narrow)
    assert torch.equal(rule.compute().probabilities, folded(make(name, guarded), uploads(4)).compute().probabilities)


def test_aggregators_of_other_rules_shapes_and_constants_are_not_merged() -> None:
    with pytest.raises(TrustmixError, match="a Trust cannot be merged into a Coupling"):
        Coupling().merge(Trust())  # type: ignore[arg-type]
    small = Accumulator()
    small.update([[0.5, 0.5]])
    large = Accumulator()
    large.update([[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(TrustmixError, match=r"the merged aggregator: predictions have the shape \(2, 2\)"):
        small.merge(large)
    flat = folded(Coupling(ridge=1.0), uploads())
    with pytest.raises(TrustmixError, match="different floor or ridge"):
        folded(Coupling(), uploads()).merge(flat)


@pytest.mark.parametrize("name", [name for name in RULES if METHODS.get(name).needs_label_sets])
def test_a_rule_that_needs_label_sets_refuses_an_upload_without(name: str) -> None:
    bare = replace(uploads()[0], class_counts=None)
    for guarded in (False, True):
        with pytest.raises(TrustmixError, match="client 0: the upload has no label set"):
            make(name, guarded).update(bare)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"predictions": [[0.5, 0.4]]}, "client north: row 0 of the predictions sums to 0.9"),
        ({"predictions": [[0.5, 0.5]], "scores": [1.0, 2.0]}, r"client north: scores have the shape \(2,\)"),
        ({"predictions": [[0.5, 0.5]], "class_counts": [1, -1]}, "client north: class counts"),
        ({"predictions": [[0.5, 0.5]], "class_counts": [0, 0]}, "client north: class counts"),
        ({"predictions": [[0.5, 0.5]], "ranks": [1.5]}, "client north: ranks must be 1 numbers from 0 to 1"),
    ],
)
def test_what_is_no_upload_is_refused_where_it_is_made(arrays: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        Upload.from_arrays("north", **arrays)


def test_uploads_are_packed_and_unpacked_whole() -> None:
    given = [*uploads(6, 2), Upload.from_arrays("bare, with comma", [[0.25, 0.75]])]
    found = unpack_uploads(pack_uploads(given))
    assert [upload.client for upload in found] == ["0", "1", "bare, with comma"]
    for before, after in zip(given, found, strict=True):
        for name in ("predictions", "scores", "class_counts", "ranks"):
            one, other = getattr(before, name), getattr(after, name)
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)


def test_a_caller_may_reuse_its_buffers() -> None:
    for name in ("median", "suwa", "fedmd"):
        for rule in (make(name), GuardedAggregator(make(name))):
            buffer = np.array([[0.9, 0.1]])
            rule.update(buffer)
            buffer[:] = 0.5
            assert rule.compute().probabilities[0, 0] == pytest.approx(0.9)


@pytest.mark.parametrize(("name", "guarded"), CASES)
def test_an_empty_state_is_that_of_a_new_aggregator(name: str, guarded: bool) -> None:
    rule = folded(make(name, guarded), uploads(7))
    rule.compute()
    rule.reset()
    folded(rule, uploads(8))
    rule.load_state_dict({})
    assert rule.n_clients == 0
    found, expected = (folded(one, uploads(9)).compute() for one in (rule, make(name, guarded)))
    assert torch.equal(found.probabilities, expected.probabilities)


@pytest.mark.parametrize(("name", "guarded"), CASES)
def test_a_state_saved_after_computing_computes_the_same_again(name: str, guarded: bool) -> None:
    rule, other = folded(make(name, guarded), uploads(10)), make(name, guarded)
    first = rule.compute().probabilities
    other.load_state_dict(rule.state_dict())
    assert torch.equal(other.compute().probabilities, first)


def test_a_reloaded_guard_gives_back_the_kind_of_array_it_was_given() -> None:
    rule, other = GuardedAggregator(make("avg")), GuardedAggregator(make("avg"))
    rule.update(np.array([[0.9, 0.1]], "f4"))
    other.load_state_dict(rule.state_dict())
    assert isinstance(other.compute().probabilities, np.ndarray)


def test_guards_of_other_bounds_are_not_merged() -> None:
    one = folded(GuardedAggregator(make("uwa"), Guard(cap=0.6)), uploads())
    with pytest.raises(TrustmixError, match="different rules or bounds"):
        folded(GuardedAggregator(make("uwa")), uploads(1, 2)).merge(one)


@pytest.mark.parametrize("counts", [[float("inf"), 1.0], [1e16, 1.0]])
def test_counts_that_cannot_be_are_refused(counts: list[float]) -> None:
    with pytest.raises(TrustmixError, match="client north: class counts"):
        Upload.from_arrays("north", [[0.5, 0.5]], class_counts=counts)

"""What every rule promises, whatever it computes: uploads validated once, any tree of merges, states that travel."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trustmix import Accumulator, Aggregator, TrustmixError, Upload, storage
from trustmix.aggregation import Guard, GuardedAggregator, SumAggregator, Trust, guarded
from trustmix.aggregation.upload import pack_uploads, unpack_uploads
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
        made.append(Upload.from_arrays(str(index), torch.tensor(q), scores, class_counts=counts))
    return made


def make(name: str, under_guard: bool = False) -> Aggregator:
    rule = METHODS.get(name).make_aggregator()
    return guarded(rule) if under_guard else rule


def folded(rule: Aggregator, given: list[Upload]) -> Aggregator:
    for upload in given:
        rule.update(upload)
    return rule


CASES = [(name, False) for name in RULES] + [(name, True) for name in GUARDED]


@pytest.mark.parametrize(("name", "under_guard"), CASES)
def test_merged_halves_are_the_teacher_of_all(name: str, under_guard: bool) -> None:
    given = uploads()
    left, right = folded(make(name, under_guard), given[:3]), folded(make(name, under_guard), given[3:])
    left.merge(right)
    left.merge(make(name, under_guard))
    whole = folded(make(name, under_guard), given).compute()
    merged = left.compute()
    assert merged.clients == whole.clients
    torch.testing.assert_close(merged.probabilities, whole.probabilities, atol=1e-6, rtol=0)
    torch.testing.assert_close(merged.concentration, whole.concentration, atol=1e-6, rtol=0)


PARTED = [name for name in RULES if hasattr(make(name), "make_part")]


@pytest.mark.parametrize("name", PARTED)
def test_parts_that_are_folded_elsewhere_know_their_clients_and_merge_to_the_teacher_of_one_rule(name: str) -> None:
    rounds = [[replace(one, class_counts=None) for one in uploads(seed)] for seed in (7, 8)]
    whole, split = make(name), make(name)
    for rule in (whole, split):
        rule.track(torch.tensor([0, 5]))
        folded(rule, rounds[0]).compute()
        rule.reset()
    maker = split
    assert isinstance(maker, SumAggregator | Accumulator)
    for half in (rounds[1][:3], rounds[1][3:]):
        part = maker.make_part([upload.client for upload in half])
        assert part.n_clients == 0
        split.merge(folded(part, half))
    expected, found = folded(whole, rounds[1]).compute(), split.compute()
    assert found.clients == expected.clients == CLIENTS
    torch.testing.assert_close(found.probabilities, expected.probabilities, atol=1e-6, rtol=0)
    votes = split.client_votes()
    assert {client: vote.tolist() for client, vote in votes.items()} == {
        upload.client: upload.predictions[[0, 5]].argmax(1).tolist() for upload in rounds[1]
    }


def fold_tree(name: str, under_guard: bool, given: list[Upload], data: st.DataObject) -> Aggregator:
    """A server that folds the uploads itself, or merges the states that servers below it send as bytes."""
    rule = make(name, under_guard)
    cut = data.draw(st.integers(0, len(given)))
    if cut in (0, len(given)):
        return folded(rule, given)
    for part in (given[:cut], given[cut:]):
        sent = storage.pack(fold_tree(name, under_guard, part, data).state_dict())
        received = make(name, under_guard)
        received.load_state_dict(storage.unpack(sent)[0])
        rule.merge(received)
    return rule


@pytest.mark.parametrize(("name", "under_guard"), [("avg", False), ("suwa", False), ("trust", False), ("trust", True)])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_tree_of_servers_gives_the_teacher_of_all(name: str, under_guard: bool, data: st.DataObject) -> None:
    given_ = [replace(one, class_counts=None) for one in uploads(11, 9)]
    whole, tree = (
        folded(make(name, under_guard), given_).compute(),
        fold_tree(name, under_guard, given_, data).compute(),
    )
    assert tree.clients == whole.clients
    torch.testing.assert_close(tree.probabilities, whole.probabilities, atol=1e-6, rtol=0)
    torch.testing.assert_close(tree.concentration, whole.concentration, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("name", "under_guard"), CASES)
def test_a_state_that_travelled_goes_on_with_the_same_numbers(name: str, under_guard: bool) -> None:
    given = uploads(1)
    half, other = folded(make(name, under_guard), given[:4]), make(name, under_guard)
    other.load_state_dict(half.state_dict())
    assert other.n_clients == 4
    found = folded(other, given[4:]).compute()
    expected = folded(half, given[4:]).compute()
    assert torch.equal(found.probabilities, expected.probabilities)
    assert torch.equal(found.concentration, expected.concentration)
    assert found.probabilities.dtype == torch.float32


@pytest.mark.parametrize(("name", "under_guard"), CASES)
def test_a_round_leaves_nothing_but_what_the_rule_remembers(name: str, under_guard: bool) -> None:
    rule = folded(make(name, under_guard), uploads(2))
    first = rule.compute().probabilities
    assert torch.equal(rule.compute().probabilities, first)  # computing twice changes nothing
    rule.reset()
    assert rule.n_clients == 0
    with pytest.raises(TrustmixError, match="nothing to aggregate"):
        rule.compute()
    again = make(name, under_guard)
    again.load_state_dict(rule.state_dict())
    assert torch.equal(
        folded(again, uploads(3)).compute().probabilities, folded(rule, uploads(3)).compute().probabilities
    )


@pytest.mark.parametrize(("name", "under_guard"), CASES)
def test_an_upload_of_another_shape_is_refused_and_changes_nothing(name: str, under_guard: bool) -> None:
    rule, other = folded(make(name, under_guard), uploads(4)), uploads(5, 1)[0]
    narrow = replace(other, client="narrow", predictions=other.predictions[:5])
    with pytest.raises(
        TrustmixError, match=r"client narrow: predictions have the shape \(5, 4\); those before had \(12, 4\)"
    ):
        rule.update(narrow)
    assert torch.equal(
        rule.compute().probabilities, folded(make(name, under_guard), uploads(4)).compute().probabilities
    )


def test_aggregators_of_other_rules_shapes_and_constants_are_not_merged() -> None:
    with pytest.raises(TrustmixError, match="a Trust cannot be merged into a Accumulator"):
        Accumulator().merge(Trust())  # type: ignore[arg-type]
    small = Accumulator()
    small.update([[0.5, 0.5]])
    large = Accumulator()
    large.update([[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(TrustmixError, match=r"the merged aggregator: predictions have the shape \(2, 2\)"):
        small.merge(large)


class NeedsLabelSets(Accumulator):
    needs_label_sets = True


def test_a_rule_that_needs_label_sets_refuses_an_upload_without() -> None:
    bare = replace(uploads()[0], class_counts=None)
    for rule in (NeedsLabelSets(), guarded(NeedsLabelSets())):
        with pytest.raises(TrustmixError, match="client 0: the upload has no label set"):
            rule.update(bare)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"predictions": [[0.5, 0.4]]}, "client north: row 1 of the predictions sums to 0.9"),
        ({"predictions": [[0.0, 1.0], [0.5, 0.4]]}, "row 2 of the predictions sums to 0.9, smallest entry 0.4"),
        ({"predictions": [[0.0, 1.0], [-0.5, 1.5]]}, "row 2 of the predictions sums to 1, smallest entry -0.5"),
        ({"predictions": [[0.5, 0.4985]]}, "row 1 of the predictions sums to 0.9985"),
        ({"predictions": [[0.5, 0.5015]]}, "row 1 of the predictions sums to 1.00"),
        ({"predictions": torch.tensor([[0.5, 0.525]]).half()}, "row 1 of the predictions sums to 1.02"),
        ({"predictions": np.zeros((2, 0))}, r"predictions have the shape \(2, 0\)"),
        ({"predictions": np.ones((1, 1, 1))}, r"predictions have the shape \(1, 1, 1\)"),
        ({"predictions": [[0.5, 0.5]], "class_counts": [1]}, r"class counts have the shape \(1,\) and the sum 1"),
        ({"predictions": [[0.5, 0.5]], "class_counts": [1, np.nan]}, "client north: class counts"),
        ({"predictions": [[0.5, 0.5]], "scores": [1.0, 2.0]}, r"client north: scores have the shape \(2,\)"),
        ({"predictions": [[0.5, 0.5]], "class_counts": [1, -1]}, "client north: class counts"),
        ({"predictions": [[0.5, 0.5]], "class_counts": [0, 0]}, "client north: class counts"),
    ],
)
def test_what_is_no_upload_is_refused_where_it_is_made(arrays: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        Upload.from_arrays("north", **arrays)


@pytest.mark.parametrize(
    ("dtype", "off"), [(torch.float64, 9e-4), (torch.float32, 9e-4), (torch.float16, 1.9e-2), (torch.bfloat16, 1.5e-2)]
)
def test_rows_may_miss_one_by_the_rounding_of_their_type(dtype: torch.dtype, off: float) -> None:
    for sign in (-1, 1):
        q = torch.tensor([[0.0, 1.0], [0.5, 0.5 + sign * off]], dtype=dtype)
        assert torch.equal(Upload.from_arrays("north", q, class_counts=[0, 2]).predictions, q)


def test_scores_without_bounds_are_bounded_by_what_can_be_subtracted() -> None:
    scores = Upload.from_arrays("north", np.full((4, 2), 0.5), [-np.inf, np.inf, -1e299, 3.5]).scores
    assert scores is not None
    assert scores.tolist() == [-1e300, 1e300, -1e299, 3.5]


def test_uploads_are_packed_and_unpacked_whole() -> None:
    given = [*uploads(6, 2), Upload.from_arrays("bare, with comma", [[0.25, 0.75]])]
    given[1] = replace(given[1], weight=0.3)
    found = unpack_uploads(pack_uploads(given))
    assert [upload.client for upload in found] == ["0", "1", "bare, with comma"]
    assert [upload.weight for upload in found] == [1.0, 0.3, 1.0]
    assert [upload.spec.dtype for upload in found] == [torch.float32, torch.float32, torch.float64]
    for before, after in zip(given, found, strict=True):
        for name in ("predictions", "scores", "class_counts"):
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


@pytest.mark.parametrize(("name", "under_guard"), CASES)
def test_an_empty_state_is_that_of_a_new_aggregator(name: str, under_guard: bool) -> None:
    rule = folded(make(name, under_guard), uploads(7))
    rule.compute()
    rule.reset()
    folded(rule, uploads(8))
    rule.load_state_dict({})
    assert rule.n_clients == 0
    found, expected = (folded(one, uploads(9)).compute() for one in (rule, make(name, under_guard)))
    assert torch.equal(found.probabilities, expected.probabilities)


@pytest.mark.parametrize(("name", "under_guard"), CASES)
def test_a_state_saved_after_computing_computes_the_same_again(name: str, under_guard: bool) -> None:
    rule, other = folded(make(name, under_guard), uploads(10)), make(name, under_guard)
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


def test_uploads_rules_and_teachers_say_what_they_are() -> None:
    upload = uploads()[0]
    assert repr(upload) == "<Upload of 0: predictions and scores and class_counts, 12 x 4>"
    assert repr(replace(upload, scores=None, class_counts=None)) == "<Upload of 0: predictions, 12 x 4>"
    rule = Accumulator(tau=0.5)
    rule.update(upload)
    assert repr(rule).endswith(": 1 uploads so far>")
    assert repr(rule.compute()) == "<Teacher of 12 samples x 4 classes: 1.0 of 1 clients, effectively>"
    assert rule.report() == {}


def test_what_a_guard_estimates_is_what_it_computes() -> None:
    rule = folded(GuardedAggregator(Accumulator(tau=0.5)), uploads())
    probabilities, concentration = rule.estimate()
    found = rule.compute()
    torch.testing.assert_close(found.probabilities, probabilities.float())
    torch.testing.assert_close(found.concentration, concentration.float())


@pytest.mark.parametrize("under_guard", [False, True])
def test_a_rule_that_returns_a_teacher_without_its_concentration_is_told_what_is_missing(under_guard: bool) -> None:
    class Forgetful(SumAggregator):
        def terms(self, upload: Upload) -> dict[str, torch.Tensor]:
            return {"total": upload.predictions.double()}

        def from_sums(self, sums: Any) -> Any:
            return sums["total"] / self.n_clients

    rule = folded(guarded(Forgetful()) if under_guard else Forgetful(), uploads())
    with pytest.raises(TrustmixError, match=r"Forgetful must return two tensors, .* not one Tensor\."):
        rule.compute()

"""Sparse predictions are aggregated as the dense ones that they stand for, under every rule, and never made dense."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trustmix.aggregation import (
    Accumulator,
    Aggregator,
    ClassShares,
    GuardedAggregator,
    Median,
    RobustTrust,
    SparsePredictions,
    Trust,
    Upload,
    trust,
)
from trustmix.errors import TrustmixError
from trustmix.wire import CODECS, MessageHeader, decode_upload, encode_upload

RULES: dict[str, Any] = {
    "avg": lambda: Accumulator(0.0),
    "suwa": lambda: Accumulator(0.25),
    "most confident": lambda: Accumulator(torch.inf),
    "trust": Trust,
    "trust, guarded": RobustTrust,
    "suwa, guarded": lambda: GuardedAggregator(Accumulator(0.25)),
    "median": Median,
}
FOLDED_SPARSE = ["avg", "suwa", "most confident", "trust", "trust, guarded"]


def make_uploads(seed: int, clients: int, samples: int, classes: int, codec: str, shared: bool = True) -> list[Upload]:
    """Uploads as they come over the wire; of clients with scores, and with label sets if they are shared."""
    luck, found = torch.Generator().manual_seed(seed), []
    for index in range(clients):
        logits = 4 * torch.randn(samples, classes, generator=luck)
        counts = torch.randint(0, 3, (classes,), generator=luck)
        counts[int(torch.randint(classes, (1,), generator=luck))] += 1
        scores = 3 * torch.randn(samples, generator=luck)
        upload = Upload(str(index), torch.softmax(logits, 1), scores, counts if shared else None)
        header = MessageHeader(str(index), 1, "0" * 16, samples, classes)
        found.append(decode_upload(encode_upload(upload, header, codec), header))
    return found


def to_dense(upload: Upload) -> Upload:
    return Upload.from_arrays(upload.client, upload.predictions, upload.scores, class_counts=upload.class_counts)


def same_label_set(upload: Upload) -> bool:
    """Whether no class is so near the share from which on it counts as held that rounding decides."""
    one, other = (ClassShares().ratio_and_shares(upload)[1] > 0 for upload in (upload, to_dense(upload)))
    return torch.equal(one, other)


def fold(rule: Aggregator, uploads: list[Upload]) -> Aggregator:
    for upload in uploads:
        rule.update(upload)
    return rule


def assert_same(one: Aggregator, other: Aggregator) -> None:
    for name in ("probabilities", "concentration"):
        found, expected = (getattr(rule.compute(), name).double() for rule in (one, other))
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    assert float(one.compute().probabilities.min()) >= 0


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 7),
    st.integers(1, 9),
    st.integers(1, 12),
    st.sampled_from(["top-2", "top-5", "argmax"]),
    st.booleans(),
)
def test_sparse_uploads_give_the_teacher_of_the_dense_ones(
    name: str, seed: int, clients: int, samples: int, classes: int, codec: str, shared: bool
) -> None:
    uploads = make_uploads(seed, clients, samples, classes, codec, shared)
    assert all(upload.sparse is not None for upload in uploads)
    assume(all(same_label_set(upload) for upload in uploads))
    assert_same(fold(RULES[name](), uploads), fold(RULES[name](), [to_dense(one) for one in uploads]))


@pytest.mark.parametrize("name", FOLDED_SPARSE)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 9), st.data())
def test_any_tree_and_any_mixture_of_sparse_and_dense_uploads_gives_the_same_teacher(
    name: str, seed: int, clients: int, data: st.DataObject
) -> None:
    uploads = make_uploads(seed, clients, 5, 7, "top-3")
    flat = fold(RULES[name](), [to_dense(one) for one in uploads])
    servers = [RULES[name]() for _ in range(data.draw(st.integers(1, 3)))]
    for upload in uploads:
        rule = servers[data.draw(st.integers(0, len(servers) - 1))]
        rule.update(to_dense(upload) if data.draw(st.booleans()) else upload)
        if data.draw(st.booleans()):  # a state that travels goes on as it was
            state = copy.deepcopy(rule.state_dict())
            rule.reset()
            rule.load_state_dict(state)
    root = RULES[name]()
    for rule in servers:
        root.merge(rule)
    assert_same(root, flat)


@pytest.mark.parametrize("name", FOLDED_SPARSE)
def test_rules_that_are_sums_never_make_an_upload_dense(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = make_uploads(3, 6, 20, 50, "top-5", shared=False)
    expected = fold(RULES[name](), [to_dense(one) for one in uploads])
    monkeypatch.setattr(trust, "MAX_LABEL_SETS", 2)

    def refuse(_: SparsePredictions) -> torch.Tensor:
        raise AssertionError("made dense")

    with monkeypatch.context() as patch:
        patch.setattr(SparsePredictions, "to_dense", refuse)
        rule = fold(RULES[name](), [upload.replace(weight=1.0) for upload in uploads])
        rule.compute()
    assert_same(rule, expected)


@pytest.mark.parametrize("name", ["suwa", "trust"])
def test_a_state_taken_in_the_middle_does_not_change_when_folding_goes_on(name: str) -> None:
    uploads, rule = make_uploads(1, 6, 4, 9, "top-2"), RULES[name]()
    fold(rule, uploads[:3])
    state, teacher = rule.state_dict(), rule.compute().probabilities.clone()
    kept = copy.deepcopy(state)
    fold(rule, uploads[3:])
    other = RULES[name]()
    other.load_state_dict(kept)
    assert torch.equal(other.compute().probabilities, teacher)
    if name == "trust":  # the state of an accumulator is its own sums
        assert all(torch.equal(state[key], kept[key]) for key in kept)


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 9), st.data())
def test_columns_and_weighted_sums_are_those_of_the_dense_predictions(
    seed: int, classes: int, samples: int, data: st.DataObject
) -> None:
    q = make_uploads(seed, 1, samples, classes, "top-3")[0].sparse
    assert q is not None
    dense = q.to_dense()
    chosen = torch.tensor(data.draw(st.lists(st.integers(0, classes - 1), unique=True, min_size=1)))
    assert torch.equal(q.select(chosen), dense[:, chosen])
    weights = torch.rand(samples, generator=torch.Generator().manual_seed(seed)).double()
    torch.testing.assert_close(q.weighted_sum(weights), weights @ dense.double(), atol=1e-12, rtol=1e-12)


def test_the_predictions_of_a_copy_stay_sparse_and_another_field_changes() -> None:
    upload = make_uploads(0, 1, 3, 9, "top-2")[0]
    copied = upload.replace(weight=0.5, client="south")
    assert (copied.sparse, copied.weight, copied.client) == (upload.sparse, 0.5, "south")
    assert torch.equal(copied.predictions, upload.predictions)
    assert repr(copied) == "<Upload of south: predictions and scores and class_counts, 3 x 9>"


@pytest.mark.parametrize(
    ("values", "classes", "rest", "sentence"),
    [
        ([[0.5, 0.3]], [[0, 0]], [0.1], "row 1 of the predictions names a class twice"),
        ([[0.5, 0.3]], [[0, 1]], [0.3], "row 1 of the predictions sums to 1.4"),
        ([[0.5, 0.3]], [[0, 1]], [0.05], "row 1 of the predictions sums to 0.9"),
        ([[0.5, 0.3]], [[0, 1]], [0.099], "row 1 of the predictions sums to 0.998"),
        ([[0.5, 0.6]], [[0, 1]], [-0.05], "smallest entry -0.05"),
        ([[1.1, -0.1]], [[0, 1]], [0.0], "smallest entry -0.1"),
        ([[torch.nan, 0.3]], [[0, 1]], [0.1], r"the entry at \(0, 0\) is nan"),
    ],
)
def test_sparse_rows_that_are_no_probabilities_are_refused(
    values: list[list[float]], classes: list[list[int]], rest: list[float], sentence: str
) -> None:
    q = SparsePredictions(torch.tensor(values), torch.tensor(classes), torch.tensor(rest), 4)
    with pytest.raises(TrustmixError, match=sentence):
        Upload.from_arrays("north", q)


@given(st.integers(0, 10**6), st.integers(2, 300), st.sampled_from(["top-2", "top-10", "argmax"]))
def test_a_codec_decodes_to_the_same_numbers_sparse_and_dense(seed: int, classes: int, codec: str) -> None:
    luck = torch.Generator().manual_seed(seed)
    rows = torch.softmax(3 * torch.randn(4, classes, generator=luck), 1).double()
    chosen: Any = CODECS.get(codec)
    parts = chosen.encode(rows)
    assume(classes > 1)
    assert torch.equal(chosen.decode(parts, classes), chosen.decode_sparse(parts, classes).to_dense())
    assert chosen.decode_sparse(parts, classes).on_simplex(1e-5)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda upload: pickle.loads(pickle.dumps(upload))])
def test_a_copy_of_an_upload_keeps_its_predictions_sparse(copied: Callable[[Upload], Upload]) -> None:
    rows = SparsePredictions(torch.tensor([[0.7]]), torch.tensor([[1]]), torch.tensor([0.1]), 4)
    upload = Upload.from_arrays("north", rows, [1.0])
    found = copied(upload)
    assert found.sparse is not None
    assert torch.equal(found.predictions, upload.predictions)
    assert repr(found) == repr(upload)

"""The mixture of predictions: against a float64 reference, and as properties of any upload."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trustmix import Accumulator, Trust, TrustmixError, mix
from trustmix.federation import METHODS, resolve_method

TAUS = [0.0, 0.25, 1.0, math.inf]


def reference(predictions: Any, scores: Any, tau: float) -> tuple[Any, Any]:
    """p_agg and chi, straight from the definition in float64."""
    if math.isinf(tau):
        weights = (scores == scores.max(0)).astype(float)
    else:
        weights = np.exp(tau * scores - (tau * scores).max(0))
    weights = weights / weights.sum(0)
    return np.einsum("mn,mnc->nc", weights, predictions), np.square(weights).sum(0)


def uploads(
    clients: int = 7, samples: int = 11, classes: int = 5, spread: float = 20.0, seed: int = 0
) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(classes), (clients, samples)), rng.normal(size=(clients, samples)) * spread


@st.composite
def any_uploads(draw: st.DrawFn) -> tuple[Any, Any]:
    clients, samples, classes = draw(st.integers(1, 6)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    spread = draw(st.sampled_from([0.0, 1.0, 50.0, 1e6, 1e30]))
    return uploads(clients, samples, classes, spread, draw(st.integers(0, 10**6)))


@pytest.mark.parametrize("tau", TAUS)
def test_teacher_and_concentration_follow_the_definition(tau: float) -> None:
    q, scores = uploads()
    teacher = mix(q, scores, tau=tau)
    probabilities, chi = reference(q, scores, tau)
    np.testing.assert_allclose(teacher.probabilities, probabilities, atol=1e-12)
    np.testing.assert_allclose(teacher.concentration, chi, atol=1e-12)
    np.testing.assert_allclose(teacher.effective_clients, 1 / chi, rtol=1e-12)
    assert teacher.clients == 7


@given(any_uploads(), st.sampled_from(TAUS))
def test_the_teacher_is_on_the_simplex_and_chi_between_one_over_m_and_one(data: tuple[Any, Any], tau: float) -> None:
    teacher = mix(*data, tau=tau)
    assert (teacher.probabilities >= 0).all()
    np.testing.assert_allclose(teacher.probabilities.sum(1), 1, atol=1e-9)
    assert (teacher.concentration >= 1 / len(data[0]) - 1e-12).all()
    assert (teacher.concentration <= 1 + 1e-12).all()


@given(any_uploads(), st.sampled_from(TAUS), st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(data: tuple[Any, Any], tau: float, random: Any) -> None:
    q, scores = data
    order = list(range(len(q)))
    random.shuffle(order)
    np.testing.assert_allclose(
        mix(q[order], scores[order], tau=tau).probabilities, mix(q, scores, tau=tau).probabilities, atol=1e-9
    )


@given(any_uploads(), st.sampled_from(TAUS), st.data())
@settings(max_examples=200)
def test_any_tree_of_merges_gives_the_teacher_of_all_uploads(data: tuple[Any, Any], tau: float, draw: Any) -> None:
    q, scores = data
    leaves = []
    for client in range(len(q)):
        leaf = Accumulator(tau)
        leaf.update(q[client], scores[client])
        leaves.append(leaf)
    while len(leaves) > 1:
        other = leaves.pop(draw.draw(st.integers(0, len(leaves) - 1)))
        leaves[draw.draw(st.integers(0, len(leaves) - 1))].merge(other)
    merged, whole = leaves[0].compute(), mix(q, scores, tau=tau)
    np.testing.assert_allclose(merged.probabilities, whole.probabilities, atol=1e-6)
    np.testing.assert_allclose(merged.concentration, whole.concentration, atol=1e-6)
    assert merged.clients == len(q)


@given(any_uploads())
def test_tau_zero_is_the_plain_mean(data: tuple[Any, Any]) -> None:
    np.testing.assert_allclose(mix(*data, tau=0).probabilities, data[0].mean(0), atol=1e-12)


@given(any_uploads(), st.floats(0, 5), st.floats(0, 5))
def test_trust_concentrates_as_tau_grows(data: tuple[Any, Any], one: float, other: float) -> None:
    low, high = sorted([one, other])
    assert (mix(*data, tau=high).concentration >= mix(*data, tau=low).concentration - 1e-9).all()


@given(any_uploads())
def test_the_most_confident_client_gains_with_tau_until_it_speaks_alone(data: tuple[Any, Any]) -> None:
    _, scores = data
    votes = np.eye(len(scores))[:, None, :].repeat(scores.shape[1], 1)  # client i votes for class i: the teacher is w
    best, sample = scores.argmax(0), np.arange(scores.shape[1])
    shares = [mix(votes, scores, tau=tau).probabilities[sample, best] for tau in TAUS]
    assert all((later >= earlier - 1e-9).all() for earlier, later in pairwise(shares))


def test_infinite_tau_picks_the_most_confident_and_shares_between_equals() -> None:
    q = np.array([[[1.0, 0, 0]], [[0, 1.0, 0]], [[0, 0, 1.0]]])
    assert mix(q, np.array([[3.0], [2.0], [1.0]]), tau=math.inf).probabilities.tolist() == [[1, 0, 0]]
    assert mix(q, np.array([[3.0], [3.0], [1.0]]), tau=math.inf).probabilities.tolist() == [[0.5, 0.5, 0]]


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize(
    "scores", [[-1e30, 1e30], [1e30, 1e30], [-1e30, -1e30], [-math.inf, 5.0], [-math.inf, -math.inf], [1e308, -1e308]]
)
def test_extreme_scores_do_not_produce_nan(tau: float, scores: list[float]) -> None:
    q = np.array([[[0.9, 0.1]], [[0.2, 0.8]]])
    column = np.array(scores)[:, None]
    for order in ([0, 1], [1, 0]):
        teacher = mix(q[order], column[order], tau=tau)
        assert np.isfinite(teacher.probabilities).all()
        np.testing.assert_allclose(teacher.probabilities.sum(1), 1)
    if scores[0] == scores[1] or tau == 0:
        np.testing.assert_allclose(teacher.probabilities, q.mean(0))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("tau", TAUS)
def test_numpy_and_torch_of_any_width_agree_and_come_back_as_they_were(dtype: str, tau: float) -> None:
    q, scores = uploads()
    q, scores = q.astype(dtype), scores.astype(dtype)
    array = mix(q, scores, tau=tau).probabilities
    tensor = mix(torch.from_numpy(q), torch.from_numpy(scores), tau=tau).probabilities
    assert array.dtype == dtype
    assert tensor.dtype == getattr(torch, dtype)
    np.testing.assert_array_equal(array, tensor.numpy())
    tolerance = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(array, reference(q.astype(float), scores.astype(float), tau)[0], atol=tolerance)


def test_lists_of_arrays_and_whole_numbers_are_taken_too() -> None:
    teacher = mix([[[1, 0]], [[0, 1]]], [[0], [0]])
    assert teacher.probabilities.tolist() == [[0.5, 0.5]]
    assert mix([torch.tensor([[1, 0]])]).probabilities.dtype == torch.float64


def test_a_reused_buffer_does_not_change_what_was_added() -> None:
    buffer = np.array([[1.0, 0.0]])
    accumulator = Accumulator(0)
    accumulator.update(buffer)
    buffer[:] = [[0.0, 1.0]]
    assert accumulator.compute().probabilities.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("tau", TAUS)
def test_a_saved_accumulator_goes_on_where_it_stopped(tau: float, tmp_path: Path) -> None:
    q, scores = uploads()
    accumulator = Accumulator(tau)
    for client in range(3):
        accumulator.update(q[client].astype("float32"), scores[client])
    accumulator.save(tmp_path / "half.safetensors")
    resumed = Accumulator(tau)
    resumed.load(tmp_path / "half.safetensors")
    for client in range(3, 7):
        accumulator.update(q[client], scores[client])
        resumed.update(q[client], scores[client])
    assert resumed.compute().probabilities.dtype == np.float32
    np.testing.assert_array_equal(resumed.compute().probabilities, accumulator.compute().probabilities)
    assert resumed.n_clients == 7


def test_an_empty_accumulator_can_be_saved_and_merged_but_not_finished(tmp_path: Path) -> None:
    Accumulator(1).save(tmp_path / "empty.safetensors")
    empty = Accumulator(1)
    empty.load(tmp_path / "empty.safetensors")
    with pytest.raises(TrustmixError, match="nothing to aggregate"):
        empty.compute()
    full = Accumulator(1)
    full.update(np.array([[1.0, 0.0]]))
    full.merge(empty)
    empty.merge(full)
    assert empty.compute().probabilities.tolist() == full.compute().probabilities.tolist() == [[1.0, 0.0]]


GOOD = np.array([[0.5, 0.5], [0.2, 0.8]])


@pytest.mark.parametrize(
    ("predictions", "scores", "sentence"),
    [
        ([[0.5, np.nan]], None, r"client 1 of 1: predictions: the entry at \(0, 1\) is nan"),
        ([[3.0, -1.0]], None, "must be probabilities"),
        ([[1.5, -0.5]], None, "smallest entry -0.5"),
        ([0.5, 0.5], None, r"must be \(N, C\)"),
        (np.zeros((0, 2)), None, r"must be \(N, C\)"),
        (GOOD, [0.0], "one a sample"),
        (GOOD, [0.0, np.nan], "the score of sample 2 is nan"),
        (GOOD, ["a", "b"], "client 1 of 1: scores: expected an array of numbers"),
    ],
)
def test_a_bad_upload_is_refused_with_its_place(predictions: Any, scores: Any, sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        mix([predictions], None if scores is None else [scores])


def test_a_refused_upload_leaves_the_accumulator_as_it_was() -> None:
    accumulator = Accumulator(1)
    accumulator.update(GOOD, [1.0, 2.0])
    for bad in (np.ones((3, 2)) / 2, GOOD * 2):
        with pytest.raises(TrustmixError):
            accumulator.update(bad)
    np.testing.assert_allclose(accumulator.compute().probabilities, GOOD)
    assert accumulator.n_clients == 1


def test_what_does_not_belong_together_is_not_mixed() -> None:
    with pytest.raises(TrustmixError, match="2 clients and scores of 1"):
        mix([GOOD, GOOD], [[0.0, 0.0]])
    with pytest.raises(TrustmixError, match=r"tau = 0\.0 into one of tau = 1\.0"):
        Accumulator(1).merge(Accumulator(0))
    for tau in (-1.0, math.nan):
        with pytest.raises(TrustmixError, match="tau is"):
            Accumulator(tau)
    with pytest.raises(TrustmixError, match="not the state of an accumulator"):
        Accumulator(1).load_state_dict({"n_clients": torch.tensor(1)})
    half = Accumulator(0.5)
    half.update(GOOD)
    with pytest.raises(TrustmixError, match=r"tau = 0\.5, and this accumulator has tau = 1\.0"):
        Accumulator(1).load_state_dict(half.state_dict())
    with pytest.raises(TrustmixError, match="a Trust cannot be merged into a Accumulator"):
        Accumulator(1).merge(Trust())  # type: ignore[arg-type]


def test_the_rules_of_the_paper_are_one_rule_at_four_temperatures() -> None:
    taus = {name: METHODS.get(name).tau for name in ("avg", "suwa", "uwa", "most-confident")}
    assert taus == {"avg": 0.0, "suwa": 0.25, "uwa": 1.0, "most-confident": math.inf}
    with pytest.raises(TrustmixError, match=r'no rule "suw".*"suwa"'):
        resolve_method("suw")


def test_a_loaded_state_has_no_weights_of_clients_that_were_folded_before() -> None:
    saved, other = Accumulator(), Accumulator()
    saved.update([[0.9, 0.1]])
    other.track(torch.tensor([0]))
    other.update([[0.1, 0.9]])
    other.load_state_dict(saved.state_dict())
    assert other.client_weights() is None

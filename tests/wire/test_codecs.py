"""Codecs: rows stay on the simplex, and no entry is further from the truth than documented."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trustmix import TrustmixError
from trustmix.wire import CODECS
from trustmix.wire.codecs import COARSE, EXACT, FINE, ScoreQuantizer, round_rows


@st.composite
def probabilities(draw: st.DrawFn) -> torch.Tensor:
    """Rows from flat to certain, few classes and many, sometimes with exact zeros, ties and ones."""
    classes, seed = draw(st.integers(2, 300)), draw(st.integers(0, 2**32))
    sharpness = draw(st.sampled_from([0.0, 0.1, 1.0, 4.0, 20.0, 1000.0]))
    logits = sharpness * torch.randn(draw(st.integers(1, 12)), classes, generator=torch.Generator().manual_seed(seed))
    if draw(st.booleans()):
        logits = logits.round()
    return torch.softmax(logits.double(), 1)


def there_and_back(codec: str, q: torch.Tensor) -> torch.Tensor:
    chosen = CODECS.get(codec)
    parts = chosen.encode(q)
    layout = chosen.layout(*q.shape)
    assert {name: (part.dtype, tuple(part.shape)) for name, part in parts.items()} == layout
    return chosen.decode(parts, q.shape[1]).double()


@pytest.mark.parametrize("codec", CODECS.names())
@given(q=probabilities())
@settings(max_examples=60, deadline=None)
def test_rows_stay_on_the_simplex(codec: str, q: torch.Tensor) -> None:
    arrived = there_and_back(codec, q)
    assert float(arrived.min()) >= 0
    assert float((arrived.sum(1) - 1).abs().max()) < (5e-4 if codec == "float16" else 1e-5)


@pytest.mark.parametrize(("codec", "relative", "absolute"), [("float32", 2**-24, 2**-126), ("float16", 2**-11, 2**-25)])
@given(q=probabilities())
@settings(max_examples=60, deadline=None)
def test_floats_are_rounded_to_their_type(codec: str, relative: float, absolute: float, q: torch.Tensor) -> None:
    assert bool(((there_and_back(codec, q) - q).abs() <= relative * q + absolute).all())


@given(q=probabilities())
@settings(max_examples=100, deadline=None)
def test_uint8_is_less_than_one_level_off(q: torch.Tensor) -> None:
    assert float((there_and_back("uint8", q) - q).abs().max()) < 1 / 255 + 1e-6


@given(q=probabilities())
@settings(max_examples=100, deadline=None)
def test_uint4_is_within_a_factor_and_drops_only_what_is_rare(q: torch.Tensor) -> None:
    arrived = there_and_back("uint4", q)
    gone = arrived == 0
    assert bool((q[gone] <= (math.exp(-4.75) * q.amax(1, keepdim=True)).expand_as(q)[gone] + 1e-12).all())
    dropped = (q * gone).sum(1, keepdim=True)
    factor = math.exp(0.5) * (1 + 1e-5)
    assert bool((arrived <= q * factor / (1 - dropped) + 1e-9)[~gone].all())
    assert bool((arrived >= q / factor - 1e-9)[~gone].all())
    assert bool(((arrived - q).abs() <= math.tanh(1 / 8) + dropped + 1e-6).all())


@pytest.mark.parametrize("k", [2, 3, 5, 10])
@given(q=probabilities())
@settings(max_examples=60, deadline=None)
def test_top_k_keeps_the_largest_and_spreads_the_rest(k: int, q: torch.Tensor) -> None:
    error = (there_and_back(f"top-{k}", q) - q).abs()
    kept = min(k, q.shape[1] - 1)
    order = q.argsort(dim=1, descending=True, stable=True)
    largest, others = order[:, :kept], order[:, kept:]
    tail = q.gather(1, others).sum(1, keepdim=True)
    spread = (tail + 1 / 255) / (q.shape[1] - kept)
    # where classes tie, which of them is kept is open: the weaker bound holds for all
    either = torch.maximum(torch.maximum(tail, spread), torch.tensor(1 / 255)) + 1e-6
    assert bool((error <= either).all())
    distinct = q.gather(1, order[:, kept - 1 : kept]) > q.gather(1, order[:, kept : kept + 1])
    assert float((error.gather(1, largest) * distinct).max()) < 1 / 255 + 1e-6
    assert bool((error.gather(1, others) * distinct <= torch.maximum(tail, spread) + 1e-6).all())


@given(q=probabilities())
@settings(max_examples=60, deadline=None)
def test_argmax_is_off_by_what_the_largest_lacks(q: torch.Tensor) -> None:
    assert bool(((there_and_back("argmax", q) - q).abs() <= 1 - q.amax(1, keepdim=True) + 1e-9).all())


STEPS = [(COARSE, 0.1, 127), (FINE, 1 / 2048, 32767)]
"""The steps and the largest levels that the documentation of the wire promises."""


@pytest.mark.parametrize(("codec", "step"), [(codec, step) for codec, step, _ in STEPS])
@given(scores=st.lists(st.floats(-1.6e5, 1.6e5), min_size=1, max_size=50))
@settings(max_examples=100, deadline=None)
def test_scores_are_within_half_a_step_on_their_scale(codec: ScoreQuantizer, step: float, scores: list[float]) -> None:
    truth = torch.tensor(scores, dtype=torch.float64)
    error = (codec.decode(codec.encode(truth)).double() - truth).abs()
    half = step / 2
    bound = math.sinh(half) * (1 + truth.square()).sqrt() + (math.cosh(half) - 1) * truth.abs()
    assert bool((error <= bound * (1 + 1e-3) + 1e-6 * truth.abs()).all())


@pytest.mark.parametrize(("codec", "step", "levels"), STEPS)
def test_scores_beyond_the_scale_are_the_ends_of_it(codec: ScoreQuantizer, step: float, levels: int) -> None:
    end = math.sinh(step * levels)
    for far in (math.inf, 1e30, 1.1 * end):
        assert codec.decode(codec.encode(torch.tensor([-far, far]))).tolist() == pytest.approx([-end, end])


def test_exact_scores_are_those_of_float32() -> None:
    scores = torch.tensor([-1e30, -2.123456789, 0.0], dtype=torch.float64)
    assert torch.equal(EXACT.decode(EXACT.encode(scores)), scores.float())


@pytest.mark.parametrize(("classes", "dtype"), [(256, torch.uint8), (257, torch.int32)])
def test_classes_are_one_byte_as_long_as_they_fit(classes: int, dtype: torch.dtype) -> None:
    q = torch.eye(classes, dtype=torch.float64)[[0, classes - 1]]
    for codec in ("argmax", "top-2"):
        parts = CODECS.get(codec).encode(q)
        assert parts["classes"].dtype == dtype
        assert torch.equal(CODECS.get(codec).decode(parts, classes).argmax(1), torch.tensor([0, classes - 1]))


def test_of_two_or_of_a_single_class_top_k_keeps_one() -> None:
    assert there_and_back("top-3", torch.tensor([[0.2, 0.8]]).double()).tolist() == [pytest.approx([0.2, 0.8])]
    assert there_and_back("top-3", torch.tensor([[1.0]]).double()).tolist() == [[1.0]]


@pytest.mark.parametrize(("classes", "kept"), [(1, 1), (2, 1), (3, 2), (4, 3), (5, 3), (300, 3)])
def test_where_there_are_k_classes_or_fewer_all_but_one_are_sent(classes: int, kept: int) -> None:
    """The level of the last one is what the others leave of 255."""
    q = torch.softmax(torch.randn(6, classes, generator=torch.Generator().manual_seed(0)), 1).double()
    parts = CODECS.get("top-3").encode(q)
    layout = CODECS.get("top-3").layout(6, classes)
    assert {name: tuple(part.shape) for name, part in parts.items()} == {"classes": (6, kept), "levels": (6, kept)}
    assert {name: shape for name, (_, shape) in layout.items()} == {"classes": (6, kept), "levels": (6, kept)}


def test_half_nats_are_packed_high_bits_first_and_ten_of_them_are_zero() -> None:
    below = torch.tensor([[0.0, 1, 4.5, 4.7], [4.8, 6, 0, 0.2]], dtype=torch.float64)
    q = torch.exp(-below)
    codec = CODECS.get("uint4")
    assert codec.encode(q)["levels"].tolist() == [[0x02, 0x99], [0xAA, 0x00]]
    levels = torch.tensor([[0.0, 2, 9, 9], [math.inf, math.inf, 0, 0]], dtype=torch.float64)
    expected = torch.softmax(-levels / 2, 1)
    torch.testing.assert_close(codec.decode(codec.encode(q), 4).double(), expected, atol=1e-6, rtol=0)


@given(q=probabilities(), count=st.sampled_from([1, 15, 255]))
@settings(max_examples=60, deadline=None)
def test_rounded_rows_sum_to_the_count_and_each_level_is_next_to_its_share(q: torch.Tensor, count: int) -> None:
    levels = round_rows(q, count)
    assert bool((levels.sum(1) == count).all())
    assert float((levels - count * q).abs().max()) < 1 + 1e-9
    assert float(levels.min()) >= 0


@pytest.mark.parametrize("wrong", [-1, 300])
def test_a_class_that_does_not_exist_is_refused_by_its_number(wrong: int) -> None:
    with pytest.raises(TrustmixError, match=f"names class {wrong}; there are 300"):
        CODECS.get("argmax").decode({"classes": torch.tensor([5, wrong], dtype=torch.int32)}, 300)


def test_a_codec_that_does_not_exist_is_answered_with_those_that_do() -> None:
    with pytest.raises(
        TrustmixError, match=r'There is no codec "top-4". Did you mean "top-\d"\? There are: argmax, float'
    ):
        CODECS.get("top-4")

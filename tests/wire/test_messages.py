"""Messages: what was sent arrives, both upload forms say the same, and nothing is taken that was not promised."""

import json
from typing import Any

import pytest
import torch
import zstandard

from trustmix import ClassGaussians, TrustmixError
from trustmix.aggregation import Upload
from trustmix.wire import (
    CODECS,
    UPLOAD_ENCODERS,
    MessageHeader,
    decode_teacher,
    decode_upload,
    encode_teacher,
    encode_upload,
    fingerprint,
)
from trustmix.wire.framing import DICTIONARY, add_checksum, decode_frame, encode_frame

SAMPLES, CLASSES = 40, 10
HEADER = MessageHeader("7", 3, "f" * 16, SAMPLES, CLASSES)


def logits_and_density() -> tuple[torch.Tensor, ClassGaussians]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(SAMPLES, CLASSES, generator=generator) * 4
    calibration = torch.randn(30, CLASSES, generator=generator) * 4
    return logits, ClassGaussians.fit(calibration, torch.arange(30) % 3)


@pytest.mark.parametrize("codec", ["float32", "float16"])
def test_both_forms_bring_the_same_predictions_and_scores(codec: str) -> None:
    logits, density = logits_and_density()
    scores, mixture = (
        decode_upload(UPLOAD_ENCODERS[f](logits, density, HEADER, codec), HEADER) for f in UPLOAD_ENCODERS
    )
    tolerance = {"float32": 1e-6, "float16": 2e-2}[codec]
    torch.testing.assert_close(scores.predictions.double(), torch.softmax(logits.double(), 1), atol=tolerance, rtol=0)
    torch.testing.assert_close(scores.predictions.double(), mixture.predictions, atol=tolerance, rtol=0)
    torch.testing.assert_close(scores.scores, mixture.scores, atol=0, rtol=max(tolerance, 1e-6))


def test_a_message_is_hardly_longer_than_its_numbers_and_a_narrow_codec_shortens_it() -> None:
    sizes = {codec: len(UPLOAD_ENCODERS["scores"](*logits_and_density(), HEADER, codec)) for codec in CODECS.names()}
    assert sizes["float32"] < 4 * SAMPLES * (CLASSES + 1) + 200
    order = ["float32", "float16", "uint8", "uint4", "argmax"]
    assert sorted(order, key=lambda codec: -sizes[codec]) == order
    assert sizes["top-5"] > sizes["top-3"] > sizes["top-2"] > sizes["argmax"]


def test_the_form_density_takes_no_codec_that_is_made_for_probabilities() -> None:
    with pytest.raises(TrustmixError, match="uint8 is for probabilities; the form density sends logits"):
        UPLOAD_ENCODERS["density"](*logits_and_density(), HEADER, "uint8")
    with pytest.raises(TrustmixError, match="no difference to a teacher"):
        UPLOAD_ENCODERS["density"](*logits_and_density(), HEADER, "float32", torch.full((SAMPLES, CLASSES), 0.1))


@pytest.mark.parametrize("codec", CODECS.names())
def test_a_difference_to_the_teacher_brings_the_same_upload_in_fewer_bytes(codec: str) -> None:
    logits, density = logits_and_density()
    teacher = torch.softmax(logits + 0.01 * torch.randn(SAMPLES, CLASSES), 1)
    whole, difference = (UPLOAD_ENCODERS["scores"](logits, density, HEADER, codec, base) for base in (None, teacher))
    assert len(difference) < len(whole)
    one, other = decode_upload(whole, HEADER, teacher), decode_upload(difference, HEADER, teacher)
    assert torch.equal(one.predictions, other.predictions)
    torch.testing.assert_close(one.scores, other.scores, atol=0, rtol=0)
    with pytest.raises(TrustmixError, match="a difference to a teacher, but there is none"):
        decode_upload(difference, HEADER)
    with pytest.raises(TrustmixError, match="a difference to another teacher than the last"):
        decode_upload(difference, HEADER, teacher.flip(1))


@pytest.mark.parametrize("codec", ["float32", "uint8", "uint4", "top-3"])
def test_where_a_difference_would_be_longer_the_whole_is_sent(codec: str) -> None:
    logits, density = logits_and_density()
    sharp = torch.nn.functional.one_hot(logits.argmax(1), CLASSES) * 50.0
    teacher = torch.softmax(torch.randn(SAMPLES, CLASSES), 1)
    whole = UPLOAD_ENCODERS["scores"](sharp, density, HEADER, codec)
    assert UPLOAD_ENCODERS["scores"](sharp, density, HEADER, codec, teacher) == whole


@pytest.mark.parametrize(("codec", "tolerance"), [("float32", 1e-6), ("float16", 1e-3), ("uint8", 4e-3)])
def test_a_teacher_arrives_on_the_simplex(codec: str, tolerance: float) -> None:
    teacher = torch.softmax(logits_and_density()[0], 1)
    arrived = decode_teacher(encode_teacher(teacher, HEADER, codec), HEADER)
    torch.testing.assert_close(arrived, teacher, atol=tolerance, rtol=0)
    torch.testing.assert_close(arrived.sum(1), torch.ones(SAMPLES))


@pytest.mark.parametrize(
    ("promise", "sentence"),
    [
        ({"sender": "8"}, "has sender = 7; expected was 8"),
        ({"round": 4}, "has round = 3; expected was 4"),
        ({"fingerprint": "0" * 16}, "has fingerprint"),
        ({"samples": 41}, r"has the shape \(40, 10\) of torch.float32 for predictions; expected was \(41, 10\)"),
        ({"classes": 9}, r"expected was \(40, 9\)"),
    ],
)
def test_a_message_with_another_header_than_expected_is_refused(promise: dict[str, Any], sentence: str) -> None:
    message = UPLOAD_ENCODERS["scores"](*logits_and_density(), HEADER, "float32")
    fields = {"sender": "7", "round": 3, "fingerprint": "f" * 16, "samples": SAMPLES, "classes": CLASSES}
    with pytest.raises(TrustmixError, match=sentence):
        decode_upload(message, MessageHeader(**{**fields, **promise}))


def test_a_teacher_is_no_upload() -> None:
    teacher = encode_teacher(torch.full((SAMPLES, CLASSES), 0.1), HEADER, "float32")
    with pytest.raises(TrustmixError, match="has kind = teacher; expected was scores or density"):
        decode_upload(teacher, HEADER)


def forged(tensors: dict[str, Any], facts: Any) -> bytes:
    """A frame around a safetensors header of any content, without a byte of data."""
    header = json.dumps({**tensors, "__metadata__": {"trustmix": json.dumps(facts)}}).encode()
    body = len(header).to_bytes(8, "little") + header
    return add_checksum(zstandard.ZstdCompressor(dict_data=DICTIONARY).compress(body))


@pytest.mark.parametrize(
    ("tensors", "facts"),
    [
        ({}, [[1, 2], ["kind", "scores"]]),
        ({}, "scores"),
        ({}, {"kind": "\ud800"}),
        ({}, {"kind": "scores", "sender": [[[[]]]]}),
        ({"x": {"dtype": "F32", "shape": [0, 2**62, 8], "data_offsets": [0, 0]}}, HEADER.header("scores", "float32")),
        ({"x": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}, HEADER.header("scores", "float32")),
    ],
)
def test_a_header_of_any_content_is_refused_like_any_other(tensors: dict[str, Any], facts: Any) -> None:
    with pytest.raises(TrustmixError, match="The message"):
        decode_upload(forged(tensors, facts), HEADER)


def test_scores_that_are_no_numbers_are_refused_whatever_the_rule_does_with_them() -> None:
    upload = Upload("north", torch.full((SAMPLES, CLASSES), 0.1), torch.full((SAMPLES,), torch.nan))
    with pytest.raises(TrustmixError, match="the score of sample 0 is nan"):
        decode_upload(encode_upload(upload, HEADER, "float32"), HEADER)


@pytest.mark.parametrize("length", [0, 4, 8, 200, -1])
def test_a_truncated_message_is_refused(length: int) -> None:
    message = UPLOAD_ENCODERS["density"](*logits_and_density(), HEADER, "float32")
    with pytest.raises(TrustmixError, match=r"The message of 7 (does not begin with TMX1|is damaged)"):
        decode_upload(message[:length], HEADER)


def test_the_fingerprint_knows_type_shape_and_values() -> None:
    base = torch.zeros(4, 3)
    others = [
        torch.zeros(3, 4),
        torch.zeros(4, 3, dtype=torch.float64),
        torch.zeros(4, 3).index_fill(0, torch.tensor(2), 1),
    ]
    assert len({fingerprint(x) for x in [base, *others]}) == 4
    assert fingerprint(base.T.contiguous().T) == fingerprint(base)


def test_a_message_of_another_format_is_refused_by_its_version_and_added_fields_are_tolerated() -> None:
    upload = Upload("7", torch.full((SAMPLES, CLASSES), 1 / CLASSES), torch.zeros(SAMPLES))
    message = encode_upload(upload, HEADER, "float32")
    with pytest.raises(TrustmixError, match="The message of 7 has format 2; this version of trustmix reads format 1"):
        decode_upload(b"TMX2" + message[4:], HEADER)
    tensors, header = decode_frame(message, HEADER.limit, "the message")
    later = encode_frame(tensors, {**header, "added_later": True})
    torch.testing.assert_close(decode_upload(later, HEADER).predictions, upload.predictions)

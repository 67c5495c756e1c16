"""Messages: what was sent arrives, both upload forms say the same, and nothing is taken that was not promised."""

from typing import Any

import pytest
import torch

from trustmix import ClassGaussians, StorageError, TrustmixError
from trustmix.wire import FORMS, Envelope, decode_teacher, decode_upload, encode_teacher, fingerprint

SAMPLES, CLASSES = 40, 10
ENVELOPE = Envelope("7", 3, "f" * 16, SAMPLES, CLASSES)


def logits_and_density() -> tuple[torch.Tensor, ClassGaussians]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(SAMPLES, CLASSES, generator=generator) * 4
    calibration = torch.randn(30, CLASSES, generator=generator) * 4
    return logits, ClassGaussians.fit(calibration, torch.arange(30) % 3)


@pytest.mark.parametrize("codec", ["float32", "float16"])
def test_both_forms_bring_the_same_predictions_and_scores(codec: str) -> None:
    logits, density = logits_and_density()
    scores, mixture = (decode_upload(FORMS[f](logits, density, ENVELOPE, codec), ENVELOPE) for f in FORMS)
    tolerance = {"float32": 1e-6, "float16": 2e-2}[codec]
    torch.testing.assert_close(scores.predictions.double(), torch.softmax(logits.double(), 1), atol=tolerance, rtol=0)
    torch.testing.assert_close(scores.predictions.double(), mixture.predictions, atol=tolerance, rtol=0)
    torch.testing.assert_close(scores.scores.double(), mixture.scores.double(), atol=0, rtol=max(tolerance, 1e-6))


def test_an_upload_of_scores_costs_one_number_more_a_sample_than_its_classes() -> None:
    message = FORMS["scores"](*logits_and_density(), ENVELOPE, "float32")
    assert 0 < len(message) - 4 * SAMPLES * (CLASSES + 1) < 400
    half = FORMS["scores"](*logits_and_density(), ENVELOPE, "float16")
    assert len(message) - len(half) == 2 * SAMPLES * CLASSES


@pytest.mark.parametrize(("codec", "tolerance"), [("float32", 1e-6), ("float16", 1e-3)])
def test_a_teacher_arrives_on_the_simplex(codec: str, tolerance: float) -> None:
    teacher = torch.softmax(logits_and_density()[0], 1)
    arrived = decode_teacher(encode_teacher(teacher, ENVELOPE, codec), ENVELOPE)
    torch.testing.assert_close(arrived, teacher, atol=tolerance, rtol=0)
    torch.testing.assert_close(arrived.sum(1), torch.ones(SAMPLES))


@pytest.mark.parametrize(
    ("promise", "sentence"),
    [
        ({"sender": "8"}, "says sender = 7; expected was 8"),
        ({"round": 4}, "says round = 3; expected was 4"),
        ({"fingerprint": "0" * 16}, "says fingerprint"),
        ({"samples": 41}, r"has the shape \(40, 10\) for predictions; expected was \(41, 10\)"),
        ({"classes": 9}, r"expected was \(40, 9\)"),
    ],
)
def test_a_message_that_says_something_else_than_promised_is_refused(promise: dict[str, Any], sentence: str) -> None:
    message = FORMS["scores"](*logits_and_density(), ENVELOPE, "float32")
    fields = {"sender": "7", "round": 3, "fingerprint": "f" * 16, "samples": SAMPLES, "classes": CLASSES}
    with pytest.raises(TrustmixError, match=sentence):
        decode_upload(message, Envelope(**{**fields, **promise}))


def test_a_teacher_is_no_upload() -> None:
    teacher = encode_teacher(torch.full((SAMPLES, CLASSES), 0.1), ENVELOPE, "float32")
    with pytest.raises(TrustmixError, match="nothing for predictions"):
        decode_upload(teacher, ENVELOPE)


@pytest.mark.parametrize("length", [0, 4, 8, 200, -1])
def test_a_truncated_message_is_refused(length: int) -> None:
    message = FORMS["density"](*logits_and_density(), ENVELOPE, "float32")
    with pytest.raises(StorageError, match="The message of 7 is not a whole safetensors file"):
        decode_upload(message[:length], ENVELOPE)


def test_the_fingerprint_knows_type_shape_and_values() -> None:
    base = torch.zeros(4, 3)
    others = [
        torch.zeros(3, 4),
        torch.zeros(4, 3, dtype=torch.float64),
        torch.zeros(4, 3).index_fill(0, torch.tensor(2), 1),
    ]
    assert len({fingerprint(x) for x in [base, *others]}) == 4
    assert fingerprint(base.T.contiguous().T) == fingerprint(base)

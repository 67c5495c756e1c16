"""How a client learns from a teacher: how much of it, for how long, and beside its own labels."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from trustmix import Client, Labelled, Public, Training
from trustmix.federation import Request
from trustmix.federation.training import AGREEMENT_SAMPLES, agreement_samples
from trustmix.privacy import PrivacyBudget
from trustmix.wire import encode_teacher

CLASSES, FEATURES = 4, 6
CENTRES = 3 * torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))


def samples(count: int, classes: list[int], seed: int) -> Labelled:
    labels = torch.tensor(classes).repeat(count)[:count]
    noise = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return Labelled(CENTRES[labels] + noise, labels)


PUBLIC = samples(40, [0, 1, 2, 3], 50)
SHARED = Public(PUBLIC.inputs, CLASSES)
TRUTH = torch.nn.functional.one_hot(PUBLIC.labels, CLASSES).float()


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def make_client(public: Public = SHARED, model: Callable[[], nn.Module] = small, **training: Any) -> Client:
    fields: dict[str, Any] = {"lr": 1e-2, "batch": 8, "first_epochs": 3, "public_epochs": 2, **training}
    settings = {name: fields.pop(name) for name in ("privacy",) if name in fields}
    private, calibration = samples(24, [0, 1], 0), samples(10, [0, 1], 100)
    return Client("0", model, private, calibration, public, TEST, Training(**fields), **settings)


TEST = samples(60, [0, 1, 2, 3], 51)


def teacher_message(teacher: torch.Tensor, round_: int = 1, public: Public = SHARED) -> bytes:
    return encode_teacher(teacher, public.header("server", round_), "float32")


def predicted_classes(client: Client, inputs: torch.Tensor) -> torch.Tensor:
    assert client._live is not None
    with torch.no_grad():
        return client._live.model.eval()(inputs).argmax(1)  # type: ignore[no-any-return]


def test_agreement_is_the_share_of_public_samples_on_which_the_client_chooses_the_teachers_class() -> None:
    client = make_client()
    assert client.step(Request(1)).agreement is None
    reply = client.step(Request(2, teacher_message(TRUTH), train=False, upload=False))
    assert reply.agreement == float((predicted_classes(client, PUBLIC.inputs) == PUBLIC.labels).double().mean())
    assert 0.25 < reply.agreement < 1


def test_agreement_is_measured_after_distilling_and_before_private_training() -> None:
    client, closing = make_client(epochs=20), make_client(epochs=20)
    for one in (client, closing):
        one.step(Request(1))
    measured = client.step(Request(2, teacher_message(TRUTH))).agreement
    assert measured == closing.step(Request(2, teacher_message(TRUTH), train=False, upload=False)).agreement
    assert measured != float((predicted_classes(client, PUBLIC.inputs) == PUBLIC.labels).double().mean())


def test_agreement_on_a_large_public_set_is_measured_on_the_same_thousand_samples_by_every_client() -> None:
    large = samples(3 * AGREEMENT_SAMPLES, [0, 1, 2, 3], 52)
    public = Public(large.inputs, CLASSES)
    client = make_client(public)
    client.step(Request(1))
    teacher = torch.nn.functional.one_hot(large.labels, CLASSES).float()
    reply = client.step(Request(2, teacher_message(teacher, public=public), train=False, upload=False))
    right = predicted_classes(client, large.inputs) == large.labels
    assert reply.agreement is not None
    assert reply.agreement == pytest.approx(float(right.double().mean()), abs=0.05)
    assert (reply.agreement * AGREEMENT_SAMPLES).is_integer()
    one, two = (agreement_samples(len(large), torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(one, two)
    assert len(set(one.tolist())) == AGREEMENT_SAMPLES


def test_predictions_that_noise_protects_are_not_shown_by_the_agreement() -> None:
    client = make_client(privacy=PrivacyBudget(epsilon=5.0, delta=1e-3, rounds=3, mechanism="uploads"))
    client.step(Request(1))
    assert client.step(Request(2, teacher_message(TRUTH))).agreement is None

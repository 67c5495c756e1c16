"""How a client learns from a teacher: how much of it, for how long, and beside its own labels."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from trustmix import Client, Labelled, Public, Training, TrustmixError
from trustmix.engines import ExecutionPlan, LocalEngine
from trustmix.engines.local import Mode
from trustmix.federation import Reply, Request
from trustmix.learners.torch_learner import as_torch
from trustmix.learners.training import (
    AGREEMENT_SAMPLES,
    MAX_EPOCHS,
    MAX_FIRST_EPOCHS,
    MIN_RISE,
    PATIENCE,
    agreement_samples,
    mixed_batches,
)
from trustmix.metrics import fit_temperature
from trustmix.privacy import PrivacyBudget
from trustmix.seeds import torch_generator
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


def with_dropout() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, CLASSES))


def distil(client: Client, teacher: torch.Tensor = TRUTH) -> Reply:
    client.step(Request(1))
    return client.step(Request(2, teacher_message(teacher), train=False, upload=False))


def test_auto_goes_on_while_the_agreement_rises_and_then_equals_that_number_of_epochs() -> None:
    auto = make_client(public_epochs="auto")
    reply = distil(auto)
    assert reply.public_epochs is not None
    curve = [distil(make_client(public_epochs=epochs)).agreement or 0.0 for epochs in range(1, MAX_FIRST_EPOCHS + 1)]
    idle = [curve[i] < max(curve[:i]) + MIN_RISE for i in range(1, MAX_FIRST_EPOCHS)]
    expected = next(i for i in range(2, MAX_FIRST_EPOCHS) if all(idle[i - PATIENCE : i])) + 1
    assert 1 + PATIENCE < expected < MAX_FIRST_EPOCHS
    assert (reply.public_epochs, reply.agreement) == (expected, curve[expected - 1])
    fixed = make_client(public_epochs=expected)
    assert distil(fixed).public_epochs == expected
    assert auto._live is not None
    assert fixed._live is not None
    for one, other in zip(auto._live.model.parameters(), fixed._live.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("keep_optimizer", [True, False])
def test_auto_repeats_itself_when_a_round_is_asked_again(keep_optimizer: bool) -> None:
    client = make_client(model=with_dropout, public_epochs="auto", keep_optimizer=keep_optimizer)
    client.step(Request(1))
    once, again = (client.step(Request(2, teacher_message(TRUTH))) for _ in range(2))
    assert (once.payload, once.public_epochs, once.agreement) == (again.payload, again.public_epochs, again.agreement)


def test_auto_stops_at_its_bound_which_is_larger_for_the_first_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trustmix.federation.client.MIN_RISE", -1.0)
    client = make_client(public_epochs="auto")
    taken = [client.step(Request(1)).public_epochs]
    taken += [client.step(Request(r, teacher_message(TRUTH, r - 1))).public_epochs for r in (2, 3)]
    assert taken == [None, MAX_FIRST_EPOCHS, MAX_EPOCHS]


def test_clients_that_take_different_numbers_of_epochs_are_trained_as_one_stack_and_alone_alike() -> None:
    def answers(mode: Mode) -> list[Reply]:
        clients = [make_client(public_epochs="auto") for _ in range(3)]
        for index, client in enumerate(clients):
            client.id = str(index)
            client.private = samples(24, [index, index + 1], index)
        engine = LocalEngine(clients, ExecutionPlan(mode))
        list(engine.exchange(dict.fromkeys("012", Request(1))))
        replies = engine.exchange(dict.fromkeys("012", Request(2, teacher_message(TRUTH))))
        return [reply for reply in replies if isinstance(reply, Reply)]

    stacked, alone = answers("stacked"), answers("sequential")
    assert len({reply.public_epochs for reply in alone}) > 1
    assert [reply.public_epochs for reply in stacked] == [reply.public_epochs for reply in alone]
    assert [reply.agreement for reply in stacked] == [reply.agreement for reply in alone]


@pytest.mark.parametrize(("private", "public"), [(24, 40), (3, 400), (400, 3), (1, 1), (30, 2)])
def test_every_batch_of_a_mixed_epoch_has_its_share_of_both_and_every_sample_is_in_one(
    private: int, public: int
) -> None:
    parts = mixed_batches(private, public, 8, torch.Generator())
    assert sorted(torch.cat(parts).tolist()) == list(range(private + public))
    own = [int((part < private).sum()) for part in parts]
    shared = [len(part) - count for part, count in zip(parts, own, strict=True)]
    assert max(own) - min(own) <= 1
    assert max(shared) - min(shared) <= 1
    assert min(map(len, parts)) >= 2


def test_a_mixed_stage_is_cross_entropy_with_labels_and_the_teacher_in_every_batch() -> None:
    teacher = torch.softmax(torch.randn(40, CLASSES, generator=torch.Generator().manual_seed(3)), 1)
    client = make_client(stages="mixed")
    client.step(Request(1))
    reply = client.step(Request(2, teacher_message(teacher)))
    plain = make_client(stages="mixed")
    plain.step(Request(1))
    assert plain._live is not None
    model, optimizer = plain._live.model.train(), as_torch(plain._live.learner, "").optimizer
    generator = torch_generator(0, "order", "mixed", "0", 2)
    torch.randint(2**62, (1,), generator=generator)
    inputs = torch.cat([plain.private.inputs, PUBLIC.inputs])
    targets = torch.cat([torch.eye(CLASSES)[plain.private.labels], teacher])
    for _ in range(2):
        for batch in mixed_batches(24, 40, 8, generator):
            optimizer.zero_grad()
            loss = -(targets[batch] * torch.log_softmax(model(inputs[batch]), 1)).sum(1).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert torch.equal(predicted_classes(client, TEST.inputs), predicted_classes(plain, TEST.inputs))
    agreed = predicted_classes(plain, PUBLIC.inputs) == teacher.argmax(1)
    assert reply.agreement == float(agreed.double().mean())
    assert (reply.public_epochs, "train" in reply.seconds) == (2, False)


def test_a_mixed_stage_forgets_less_of_the_clients_own_classes() -> None:
    two, mixed = (make_client(stages=stages, public_epochs=20) for stages in ("two", "mixed"))
    wrong = torch.eye(CLASSES)[(PUBLIC.labels + 1) % CLASSES]
    for client in (two, mixed):
        distil(client, wrong)
    own = TEST[torch.isin(TEST.labels, torch.tensor([0, 1]))]
    right = [float((predicted_classes(c, own.inputs) == own.labels).double().mean()) for c in (two, mixed)]
    assert right[0] < 0.1
    assert right[1] > right[0] + 0.2


def test_mixed_batches_are_refused_where_private_gradients_get_noise() -> None:
    client = make_client(stages="mixed", privacy=PrivacyBudget(epsilon=5.0, delta=1e-3, rounds=3, simulated=True))
    client.step(Request(1))
    with pytest.raises(TrustmixError, match="mixed batches cannot be trained with DP-SGD"):
        client.step(Request(2, teacher_message(TRUTH)))


def test_a_calibrated_client_is_surer_or_less_sure_by_its_held_out_samples_and_uploads_the_same() -> None:
    soft = 0.6 * TRUTH + 0.1
    plain, calibrated = (make_client(calibrate=calibrate, public_epochs=20) for calibrate in (False, True))
    for client in (plain, calibrated):
        client.step(Request(1))
    before, after = (client.step(Request(2, teacher_message(soft))) for client in (plain, calibrated))
    assert (before.payload, before.accuracy, before.agreement) == (after.payload, after.accuracy, after.agreement)
    assert before.ece is not None
    assert after.ece is not None
    assert after.ece < before.ece / 2
    assert (after.nll or 0) < (before.nll or 0)


def test_a_temperature_is_fitted_after_distilling_and_kept_with_the_state() -> None:
    client = make_client(calibrate=True)
    distil(client)
    assert client._live is not None
    with torch.no_grad():
        logits = client._live.model.eval()(client.calibration.inputs)
    assert client._live.temperature == fit_temperature(logits, client.calibration.labels) != 1
    stored = client.store.load_before(3)
    assert stored is not None
    assert stored[1]["temperature"] == client._live.temperature
    del stored[1]["temperature"]  # as in states of earlier versions
    client._live = None
    assert client._resume(3).temperature == 1

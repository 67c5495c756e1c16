"""What a federation writes down of whom it trusted, against its own uploads; the figures of calibration it keeps."""

from pathlib import Path
from typing import Any

import pytest
import torch

import trustmix as tm
from trustmix.callbacks.trust_log import RoundTrust, TrustRecorder, tracked_indices
from trustmix.errors import StorageError
from trustmix.federation import Failure, Reply
from trustmix.federation.client import Client
from trustmix.metrics import ClassificationMetrics
from trustmix.wire import decode_upload

CLASSES = 3
CENTRES = 3 * torch.eye(CLASSES)


def samples(count: int, classes: list[int], seed: int) -> tm.Labelled:
    labels = torch.tensor(classes).repeat(count)[:count]
    return tm.Labelled(
        CENTRES[labels] + torch.randn(count, CLASSES, generator=torch.Generator().manual_seed(seed)), labels
    )


PUBLIC, TEST = samples(30, [0, 1, 2], 7), samples(40, [0, 1, 2], 8)
SHARED = tm.Public(PUBLIC.inputs, CLASSES)


def linear() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(CLASSES, CLASSES)


def clients() -> list[Client]:
    return [
        Client(
            str(index),
            linear,
            samples(20, [index, (index + 1) % CLASSES], index),
            samples(8, [index, (index + 1) % CLASSES], 10 + index),
            SHARED,
            TEST,
        )
        for index in range(CLASSES)
    ]


class Overheard:
    """An engine that keeps the uploads; client 1 fails in round 2."""

    def __init__(self) -> None:
        self.members = clients()
        self.clients = [client.id for client in self.members]
        self.payloads: dict[tuple[int, str], bytes] = {}

    def exchange(self, requests: Any) -> Any:
        for client in reversed(self.members):  # uploads arrive in any order
            request = requests[client.id]
            if request.round == 2 and client.id == "1":
                yield Failure("1", "asleep")
                continue
            reply: Reply = client.step(request)
            if reply.payload:
                self.payloads[request.round, client.id] = reply.payload
            yield reply

    def close(self) -> None:
        pass


def recorder(folder: Path, labels: torch.Tensor | None = PUBLIC.labels) -> TrustRecorder:
    order = tracked_indices(len(PUBLIC), 0)
    return TrustRecorder(folder, order, None if labels is None else labels[order], ({}, {"classes": ["a", "b", "c"]}))


def test_a_round_is_written_down_as_its_uploads_say(tmp_path: Path) -> None:
    engine, order = Overheard(), tracked_indices(len(PUBLIC), 0)
    federation = tm.Federation(clients=engine, public=SHARED, rule="suwa", callbacks=[recorder(tmp_path)])
    federation.run(rounds=2)
    for number, present in ((1, ["0", "1", "2"]), (2, ["0", "2"])):
        saved = RoundTrust.load(tmp_path / f"{number:06d}.safetensors")
        assert (saved.round, saved.clients, saved.weighed) == (number, present, True)
        sent = [decode_upload(engine.payloads[number, c], SHARED.header(c, number), None) for c in present]
        weights = torch.softmax(0.25 * torch.stack([torch.as_tensor(upload.scores) for upload in sent]), 0)[:, order]
        assert torch.allclose(saved.shares.double(), weights, atol=1e-3)
        assert torch.equal(saved.votes, torch.stack([u.predictions.argmax(1)[order] for u in sent]).to(torch.int32))
        mixed = sum(w[:, None] * u.predictions[order] for w, u in zip(weights, sent, strict=True))
        assert torch.allclose(saved.teacher.double(), torch.as_tensor(mixed).double(), atol=1e-3)
        for group in range(CLASSES):
            mean = weights[:, PUBLIC.labels[order] == group].mean(1)
            assert torch.allclose(saved.trust[:, group].double(), mean, atol=1e-3)


def test_weights_that_a_rule_keeps_are_shared_out(tmp_path: Path) -> None:
    members = clients()
    for client in members:
        client.labels = "counts"
    federation = tm.Federation(clients=members, public=SHARED, rule="trust", callbacks=[recorder(tmp_path)])
    (line,) = federation.run(rounds=1).rounds
    saved = RoundTrust.load(tmp_path / "000001.safetensors")
    assert saved.weighed
    assert torch.allclose(saved.shares.double().sum(0), torch.ones(len(PUBLIC)).double(), atol=1e-2)
    assert float(saved.shares.double().square().sum(0).mean()) == pytest.approx(line.concentration, rel=1e-2)


def test_rules_without_weights_are_recorded_as_agreement_and_unknown_classes_go_by_the_teacher(tmp_path: Path) -> None:
    federation = tm.Federation(clients=clients(), public=SHARED, rule="fedmd", callbacks=[recorder(tmp_path, None)])
    federation.run(rounds=1)
    saved = RoundTrust.load(tmp_path / "000001.safetensors")
    assert not saved.weighed
    taught = saved.teacher.argmax(1)
    for sample in range(len(taught)):
        agreeing = saved.votes[:, sample] == taught[sample]
        if agreeing.any():
            assert (saved.shares[:, sample] > 0).tolist() == agreeing.tolist()
    there = torch.bincount(taught, minlength=CLASSES) > 0
    assert torch.allclose(saved.trust[:, there].sum(0).double(), torch.ones(int(there.sum())).double(), atol=1e-2)
    assert bool((saved.trust[:, ~there] == -1).all())


def test_clients_without_a_teacher_leave_nothing(tmp_path: Path) -> None:
    tm.Federation(clients=clients(), public=SHARED, rule="alone", callbacks=[recorder(tmp_path)]).run(rounds=1)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_something_else_is_named(tmp_path: Path) -> None:
    tm.storage.write_tensors(tmp_path / "x.safetensors", {"a": torch.ones(1)}, {"round": 1})
    with pytest.raises(StorageError, match=r"x\.safetensors is no record of a RoundTrust"):
        RoundTrust.load(tmp_path / "x.safetensors")


def test_lines_tell_how_honest_clients_and_teacher_are() -> None:
    members = clients()
    (line,) = (
        tm.Federation(clients=members, public=SHARED, rule="avg", public_labels=PUBLIC.labels).run(rounds=1).rounds
    )
    probabilities = [client._live.model(TEST.inputs).softmax(1).detach() for client in members if client._live]
    each = [ClassificationMetrics.of(p, TEST.labels) for p in probabilities]
    assert line.nll_mean == pytest.approx(sum(one.nll for one in each) / 3, rel=1e-4)
    assert line.ece_mean == pytest.approx(sum(one.ece for one in each) / 3, rel=1e-4)
    fresh = clients()
    uploads = []
    for client in fresh:
        payload = client.step(tm.federation.Request(1)).payload or b""
        uploads.append(decode_upload(payload, SHARED.header(client.id, 1), None).predictions)
    worth = ClassificationMetrics.of(torch.stack(uploads).mean(0), PUBLIC.labels)
    found = (line.teacher_accuracy, line.teacher_nll, line.teacher_ece)
    assert found == pytest.approx((worth.accuracy, worth.nll, worth.ece), rel=1e-4)

"""The round of Algorithm 1: against a plain rewriting of it, and with clients that fail, lag or lie."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from trustmix import (
    Callback,
    Checkpoint,
    ClassGaussians,
    Client,
    Federation,
    Labelled,
    Participation,
    Public,
    Training,
    TrustmixError,
    Upload,
)
from trustmix.engines import LocalEngine
from trustmix.engines.fault_injection import FaultInjectionEngine
from trustmix.federation import DiskStore, Failure, MemoryStore, Reply, Request
from trustmix.learners.training import batches
from trustmix.seeds import torch_generator
from trustmix.wire import decode_upload

CLASSES, FEATURES = 4, 6
TRAINING = Training(lr=1e-2, batch=8, first_epochs=3, epochs=2, public_epochs=2)
CENTRES = 3 * torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))


def samples(count: int, classes: list[int], seed: int) -> Labelled:
    labels = torch.tensor(classes).repeat(count)[:count]
    noise = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return Labelled(CENTRES[labels] + noise, labels)


PUBLIC = samples(40, [0, 1, 2, 3], 50)
SHARED = Public(PUBLIC.inputs, CLASSES)
TEST = samples(60, [0, 1, 2, 3], 51)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


def with_dropout() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, CLASSES))


def clients(model: Callable[[], nn.Module] = linear, count: int = 4, **settings: Any) -> list[Client]:
    made = []
    for index in range(count):
        own = [index % CLASSES, (index + 1) % CLASSES]
        private, calibration = samples(24, own, index), samples(10, own, 100 + index)
        fields = {"test": TEST, "training": TRAINING, **settings}
        made.append(Client(str(index), model, private, calibration, SHARED, **fields))
    return made


def numbers(history: Any) -> list[dict[str, Any]]:
    """All of a history but its times."""
    return [{key: value for key, value in asdict(line).items() if key != "seconds"} for line in history.rounds]


def federation(members: Any = None, **settings: Any) -> Federation:
    fields = {"clients": clients() if members is None else members, "public": SHARED, "public_labels": PUBLIC.labels}
    return Federation(**{**fields, **settings})


def algorithm_1(rounds: int, tau: float) -> list[tuple[list[float], list[float], float]]:
    """The paper's algorithm written down plainly: two stages a round, everything in one loop, no messages."""
    members = clients()
    models = [linear() for _ in members]
    optimizers = [torch.optim.Adam(model.parameters(), lr=TRAINING.lr) for model in models]

    def learn(i: int, stage: str, round_: int, x: torch.Tensor, y: torch.Tensor, epochs: int) -> None:
        generator = torch_generator(0, "order", stage, str(i), round_)
        torch.randint(2**62, (1,), generator=generator)
        for _ in range(epochs):
            for index in batches(len(x), TRAINING.batch, generator):
                optimizers[i].zero_grad()
                cross_entropy(models[i](x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
                optimizers[i].step()

    def correct(i: int, data: Labelled) -> float:
        return float((models[i](data.inputs).argmax(1) == data.labels).double().mean())

    lines = []
    for round_ in range(1, rounds + 1):
        q, scores, local = [], [], []
        for i, client in enumerate(members):
            epochs = TRAINING.first_epochs if round_ == 1 else TRAINING.epochs
            learn(i, "private", round_, client.private.inputs, client.private.labels, epochs)
            own = torch.isin(TEST.labels, client.private.labels)
            local.append(correct(i, TEST[own]))
            with torch.no_grad():
                density = ClassGaussians.fit(models[i](client.calibration.inputs), client.calibration.labels)
                logits = models[i](PUBLIC.inputs)
            q.append(torch.softmax(logits, 1))
            scores.append(density.log_prob(logits))
        weights = torch.softmax(tau * torch.stack(scores).double(), 0)
        teacher = torch.einsum("mn,mnc->nc", weights, torch.stack(q).double()).float()
        for i in range(len(members)):
            learn(i, "public", round_ + 1, PUBLIC.inputs, teacher, TRAINING.max_public_epochs(round_))
        accuracy = [correct(i, TEST) for i in range(len(members))]
        lines.append((accuracy, local, float((teacher.argmax(1) == PUBLIC.labels).double().mean())))
    return lines


@pytest.mark.parametrize(("rule", "tau"), [("avg", 0.0), ("suwa", 0.25), ("uwa", 1.0), (0.4, 0.4)])
def test_one_exchange_a_round_plays_the_papers_two_stage_algorithm(rule: str | float, tau: float) -> None:
    history = federation(clients(density="gaussians"), rule=rule).run(3)
    for line, (accuracy, local, teacher) in zip(history.rounds, algorithm_1(3, tau), strict=True):
        assert list(line.accuracy.values()) == pytest.approx(accuracy, abs=1 / 60 + 1e-9)
        assert list(line.local_accuracy.values()) == pytest.approx(local, abs=1 / 30 + 1e-9)
        assert line.teacher_accuracy == pytest.approx(teacher, abs=1 / 40 + 1e-9)
    assert history.rounds[-1].accuracy_mean == pytest.approx(sum(accuracy) / 4, abs=0.01)


def test_both_upload_forms_lead_to_the_same_run() -> None:
    forms = (clients(form=form, density="gaussians") for form in ("scores", "density"))
    one, other = (federation(members, rule="suwa").run(3) for members in forms)
    for a, b in zip(one.rounds, other.rounds, strict=True):
        assert a.concentration == pytest.approx(b.concentration, rel=1e-4)
        assert a.accuracy == pytest.approx(b.accuracy, abs=1 / 60 + 1e-9)
        assert a.bytes_up != b.bytes_up


@pytest.mark.parametrize("model", [linear, with_dropout])
def test_the_same_federation_twice_gives_the_same_numbers(model: Callable[[], nn.Module]) -> None:
    assert numbers(federation(clients(model)).run(3)) == numbers(federation(clients(model)).run(3))


def test_different_architectures_learn_together() -> None:
    members = clients(linear, 2) + clients(with_dropout, 4)[2:]
    history = federation(members, rule="suwa").run(6)
    assert len(history.rounds[-1].accuracy) == 4
    assert history.best_accuracy is not None
    assert history.best_accuracy > federation(rule="alone").run(6).best_accuracy + 0.2  # type: ignore[operator]


def test_avg_has_chi_one_over_m_and_uwa_is_more_concentrated_than_suwa() -> None:
    chi = {rule: federation(rule=rule).run(1).rounds[0].concentration for rule in ("avg", "suwa", "uwa")}
    assert chi["avg"] == pytest.approx(0.25, abs=1e-12)
    assert 0.25 < chi["suwa"] < chi["uwa"] <= 1  # type: ignore[operator]


def test_alone_nothing_is_sent_and_training_goes_on() -> None:
    history = federation(rule="alone").run(2)
    assert [(r.bytes_up, r.bytes_down, r.teacher_accuracy, r.concentration) for r in history.rounds] == [
        (0, 0, None, None)
    ] * 2
    assert history.rounds[-1].accuracy_mean is not None


def test_bytes_are_those_of_the_messages() -> None:
    line = federation().run(1).rounds[0]
    assert line.bytes_up == pytest.approx(4 * 40 * (CLASSES + 1) * 4, rel=0.7)
    assert 4 * 40 * CLASSES * 4 * 0.7 < line.bytes_down < 4 * 40 * CLASSES * 4 + 4 * 400
    assert line.bytes_up == sum(line.client_bytes_up.values())
    assert line.bytes_down == sum(line.client_bytes_down.values())
    assert set(line.client_bytes_up) == set(line.client_bytes_down) == {"0", "1", "2", "3"}
    assert line.paper_bytes_up == 4 * 40 * CLASSES * 4


def test_bytes_of_a_refused_upload_were_sent_too() -> None:
    line = federation(Liar(clients(count=8))).run(1).rounds[0]
    assert {client: line.client_bytes_up.get(client) for client in ("1", "3")} == {"1": len(b"nonsense"), "3": None}
    assert "2" in line.client_bytes_up
    assert line.paper_bytes_up == 5 * 40 * CLASSES * 4


@pytest.mark.parametrize("codec", ["float32", "uint4", "argmax"])
def test_a_delta_changes_the_bytes_of_a_run_and_nothing_else(codec: str) -> None:
    whole, delta = (federation(clients(codec=codec, delta=delta), codec=codec).run(4) for delta in (False, True))
    assert [line.accuracy for line in delta.rounds] == [line.accuracy for line in whole.rounds]
    assert delta.rounds[0].bytes_up == whole.rounds[0].bytes_up
    assert all(a.bytes_up <= b.bytes_up for a, b in zip(delta.rounds, whole.rounds, strict=True))


def test_a_client_that_got_no_teacher_sends_its_upload_whole() -> None:
    client = clients(count=1, codec="uint4", delta=True)[0]
    client.step(Request(1))
    upload = decode_upload(client.step(Request(2)).payload or b"", SHARED.header("0", 2))
    assert upload.predictions.shape[0] == 40


def test_unknown_public_labels_are_left_out_of_the_teachers_accuracy() -> None:
    labels = PUBLIC.labels.clone()
    labels[::2] = -1
    assert federation(public_labels=labels).run(1).rounds[0].teacher_accuracy is not None
    assert federation(public_labels=torch.full_like(labels, -1)).run(1).rounds[0].teacher_accuracy is None
    assert federation(public_labels=None).run(1).rounds[0].teacher_accuracy is None


def test_a_fraction_of_the_clients_is_asked_each_round_and_all_get_the_last_teacher() -> None:
    half = federation(clients(count=8), participation=Participation(fraction=0.5), seed=5)
    history = half.run(4)
    assert all(len(line.participants) == 4 for line in history.rounds)
    assert len({tuple(line.participants) for line in history.rounds}) > 1
    assert len(history.rounds[-1].accuracy) == 8


class Moody(nn.Module):
    """A model that fails for one client in its second private stage."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 40:
            raise RuntimeError("out of luck")
        return self.layer(x)  # type: ignore[no-any-return]


def test_a_client_that_fails_is_left_out_of_that_round_recorded_and_back_in_the_next() -> None:
    members = clients()
    members[2].model = Moody
    history = federation(members).run(4)
    failed = [line.failed for line in history.rounds]
    assert [sorted(f) for f in failed].count(["2"]) >= 1
    bad = next(i for i, f in enumerate(failed) if f)
    assert failed[bad]["2"] == "RuntimeError: out of luck"
    assert "2" not in history.rounds[bad].participants
    assert all(set(line.participants) | set(line.failed) == {"0", "1", "2", "3"} for line in history.rounds)


def test_half_a_step_is_no_step() -> None:
    class FailsOnPublicData(nn.Module):
        armed = False

        def __init__(self) -> None:
            super().__init__()
            self.layer = linear()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if type(self).armed and not self.training and len(x) == 40:
                raise RuntimeError("power cut after private training")
            return self.layer(x)  # type: ignore[no-any-return]

    client, calm = clients(FailsOnPublicData, 1)[0], clients(linear, 1)[0]
    client.step(Request(1))
    calm.step(Request(1))
    FailsOnPublicData.armed = True
    with pytest.raises(RuntimeError):
        client.step(Request(2))
    FailsOnPublicData.armed = False
    assert client.step(Request(2)).payload == calm.step(Request(2)).payload


def test_a_round_asked_again_gives_the_same_answer() -> None:
    client = clients(with_dropout, 1)[0]
    client.step(Request(1))
    once, again = client.step(Request(2)), client.step(Request(2))
    assert once.payload == again.payload


class Liar(LocalEngine):
    """Clients 1 to 3 send something else than they should."""

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        for answer in super().exchange(requests):
            if isinstance(answer, Reply) and answer.payload and answer.client in self.lies:
                yield self.lies[answer.client](answer)
            else:
                yield answer

    lies: ClassVar[Any] = {
        "1": lambda r: Reply(r.client, r.round, b"nonsense"),
        "2": lambda r: Reply(r.client, r.round, r.payload[:-1] + bytes([r.payload[-1] ^ 1])),
        "3": lambda r: Reply(r.client, r.round, None),
    }


def test_a_refused_upload_costs_only_its_sender() -> None:
    line = federation(Liar(clients(count=8))).run(1).rounds[0]
    assert line.participants == ["0", "4", "5", "6", "7"]
    assert sorted(line.failed) == ["1", "2", "3"]
    assert all(reason.startswith("upload refused: The message of") for reason in line.failed.values())


def test_too_few_answers_stop_the_run_with_the_first_reason() -> None:
    with pytest.raises(
        TrustmixError, match=r"Round 1: 1 of 4 clients answered, the quorum is 2; client 1: upload refused"
    ):
        federation(Liar(clients())).run(1)


def test_an_answer_after_the_deadline_is_left_out() -> None:
    with pytest.raises(TrustmixError, match=r"answered after .* s, the deadline is 1e-06 s"):
        federation(participation=Participation(deadline=1e-6)).run(1)
    assert federation(participation=Participation(deadline=3600)).run(1).rounds[0].failed == {}


def test_faults_on_purpose_are_drawn_from_the_seed_and_recorded() -> None:
    def faulty() -> Any:
        engine = FaultInjectionEngine(LocalEngine(clients(count=8)), crash=0.2, late=0.2, seed=3)
        return federation(engine, participation=Participation(quorum=0.1)).run(4)

    one = faulty()
    reasons = [reason for line in one.rounds for reason in line.failed.values()]
    assert {r.split(" (")[0] for r in reasons} == {"crashed before its step", "answered late"}
    assert numbers(one) == numbers(faulty())
    assert len(one.rounds[-1].accuracy) == 8


def test_a_diverging_client_says_so() -> None:
    wild = clients(training=Training(optimizer="sgd", lr=1e38, batch=8))
    with pytest.raises(TrustmixError, match="the loss became"):
        federation(wild).run(1)


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (2, 1, 3)), nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(12, CLASSES)
    )


@pytest.mark.parametrize("interrupted_after", [1, 2, 3])
@pytest.mark.parametrize("model", [with_dropout, convolutional])
def test_a_run_resumed_from_its_checkpoint_ends_in_the_same_numbers(
    tmp_path: Path, model: Callable[[], nn.Module], interrupted_after: int
) -> None:
    def stored(folder: Path) -> list[Client]:
        members = clients(model)
        for client in members:
            client.store = DiskStore(folder / client.id)
        return members

    whole = federation(stored(tmp_path / "whole")).run(4)
    first = federation(stored(tmp_path / "cut")).iter_rounds(4, checkpoint=Checkpoint(tmp_path / "cut"))
    told = [next(first) for _ in range(interrupted_after)]
    del first  # the last round was told, but not committed
    rest = federation(stored(tmp_path / "cut")).run(4, checkpoint=Checkpoint(tmp_path / "cut"))
    assert [line.round for line in rest.rounds] == list(range(interrupted_after, 5))
    assert numbers(rest)[0] == {k: v for k, v in asdict(told[-1]).items() if k != "seconds"}
    assert numbers(rest) == numbers(whole)[interrupted_after - 1 :]


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_store_keeps_two_versions_and_gives_the_newest_older_one(kind: str, tmp_path: Path) -> None:
    store = MemoryStore() if kind == "memory" else DiskStore(tmp_path)
    assert store.load_before(1) is None
    for round_ in (1, 2, 3):
        store.save(round_, ({"w": torch.tensor([float(round_)])}, {"stages": round_}))
    found = [store.load_before(r) for r in (2, 3, 4, 9)]
    assert [None if s is None else s[1]["stages"] for s in found] == [None, 2, 3, 3]
    assert [None if s is None else s[0]["w"].item() for s in found] == [None, 2.0, 3.0, 3.0]


def test_a_store_forgets_the_future_of_a_run_that_begins_anew() -> None:
    store = MemoryStore()
    for round_ in (5, 6, 1):
        store.save(round_, ({}, {"stages": round_}))
    found = store.load_before(9)
    assert found is not None
    assert found[1]["stages"] == 1


def test_resetting_the_optimiser_is_a_setting_that_matters() -> None:
    kept, fresh = (
        federation(clients(training=Training(lr=1e-2, batch=8, keep_optimizer=keep))).run(3) for keep in (True, False)
    )
    assert numbers(kept) != numbers(fresh)


def test_a_federation_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(TrustmixError, match="at least one client"):
        federation([])
    with pytest.raises(TrustmixError, match="the same id"):
        federation(clients() + clients())
    with pytest.raises(TrustmixError, match="no rule"):
        federation(rule="swua")
    with pytest.raises(TrustmixError, match="public set is empty"):
        Public(torch.zeros(0, 3), 2)


@pytest.mark.parametrize(
    ("asked", "sent", "reason"),
    [
        ("none", "set", "a label set, which was not asked for: wire.labels = none"),
        ("inferred", "counts", "a label set, which was not asked for: wire.labels = inferred"),
        ("set", "counts", "the label set has a count of"),
        ("set", "set", None),
        ("counts", "counts", None),
        (None, "counts", None),
    ],
)
def test_a_label_set_that_was_not_asked_for_is_refused(asked: Any, sent: Any, reason: str | None) -> None:
    public = Public(torch.rand(8, 4), classes=2)
    inputs, labels = torch.rand(12, 4), torch.arange(12) % 2
    clients = [Client.from_arrays(name, partial(nn.Linear, 4, 2), inputs, labels, public=public) for name in "ab"]
    clients[0].labels = sent
    with Federation(clients=clients, public=public, labels=asked) as federation:
        failed = federation.run(rounds=1).rounds[0].failed
    assert set(failed) == ({"a"} if reason else set())
    assert reason is None or reason in failed["a"]


@pytest.mark.parametrize(("rule", "kept"), [("uwa", False), ("avg", False), ("trust", True)])
def test_a_label_set_that_the_rule_does_not_use_does_not_reach_the_guard(rule: str, kept: bool) -> None:
    seen = []

    class Watch(Callback):
        def on_upload(self, round_: int, upload: Upload) -> None:
            seen.append((round_, upload.class_counts is not None))

    federation(clients(labels="set"), rule=rule, callbacks=[Watch()]).run(1)
    assert seen == [(1, kept)] * 4

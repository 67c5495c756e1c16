"""The local engine: however clients are run, each of them does the same."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trustmix import Client, Federation, Labelled, LocalEngine, Participation, Public, StorageError, Training
from trustmix.engines import ExecutionPlan, autotune, select_plan
from trustmix.engines.local import run_generators, run_jobs
from trustmix.engines.vectorized import train_stacked
from trustmix.federation import DiskStore, Failure, Request
from trustmix.learners import DeviceConfig, TrainingJob, train

CLASSES, FEATURES = 4, 6
CENTRES = 3 * torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))


def samples(count: int, classes: list[int], seed: int) -> Labelled:
    labels = torch.tensor(classes).repeat(count)[:count]
    noise = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return Labelled(CENTRES[labels] + noise, labels)


PUBLIC = Public(samples(40, [0, 1, 2, 3], 50).inputs, CLASSES)
TEST = samples(60, [0, 1, 2, 3], 51)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def with_dropout() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.3), nn.Linear(8, CLASSES))


def with_batch_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))


def clients(model: Callable[[], nn.Module] = network, count: int = 7, **settings: Any) -> list[Client]:
    """Ragged on purpose: every client holds another number of samples."""
    made = []
    for index in range(count):
        own = [index % CLASSES, (index + 1) % CLASSES]
        private, calibration = samples(17 + 5 * index, own, index), samples(10, own, 100 + index)
        fields = {"test": TEST, "training": Training(lr=1e-2, batch=8, first_epochs=2), **settings}
        made.append(Client(str(index), model, private, calibration, PUBLIC, **fields))
    return made


def history(members: list[Client], plan: ExecutionPlan, rounds: int = 3, **settings: Any) -> list[dict[str, Any]]:
    engine = LocalEngine(members, plan, keep=settings.pop("keep", True))
    try:
        lines = Federation(clients=engine, public=PUBLIC, **settings).run(rounds).rounds
    finally:
        engine.close()
    return [{key: value for key, value in asdict(line).items() if key != "seconds"} for line in lines]


PLANS = [
    ExecutionPlan("processes", 2),
    ExecutionPlan("processes", 3),
    ExecutionPlan("stacked", 1),
    ExecutionPlan("stacked", 2),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("model", [network, with_dropout, with_batch_norm])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_a_clients_results_do_not_depend_on_the_mode(
    plan: ExecutionPlan, model: Callable[[], nn.Module], optimizer: str
) -> None:
    training = Training(optimizer=optimizer, lr=1e-2, batch=8, first_epochs=2)
    reference = history(clients(model, training=training), ExecutionPlan())
    found = history(clients(model, training=training), plan)
    for one, other in zip(reference, found, strict=True):
        assert one["failed"] == other["failed"] == {}
        assert other["concentration"] == pytest.approx(one["concentration"], rel=1e-4)
        assert other["accuracy"] == pytest.approx(one["accuracy"], abs=1 / 60 + 1e-9)


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("refresh", ["once", 2])
def test_kept_scores_do_not_depend_on_the_mode(plan: ExecutionPlan, refresh: Any, tmp_path: Path) -> None:
    reference = history(clients(density="ratio", refresh=refresh), ExecutionPlan())
    members = clients(density="ratio", refresh=refresh)
    for client in members:
        client.store = DiskStore(tmp_path / client.id)
    for one, other in zip(reference, history(members, plan, keep=False), strict=True):
        assert one["failed"] == other["failed"] == {}
        assert other["concentration"] == pytest.approx(one["concentration"], rel=1e-3)


def jobs(members: list[Client], epochs: int = 3) -> list[TrainingJob]:
    made = []
    for client in members:
        model = client.model()
        made.append(
            TrainingJob.of(
                model,
                client.training.make_optimizer(model.parameters()),
                client.private.inputs,
                client.private.labels,
                epochs=epochs,
                generator=torch.Generator().manual_seed(int(client.id)),
                architecture=client.architecture,
                training=client.training,
                hardware=DeviceConfig(),
            )
        )
    return made


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_stacked_training_moves_weights_and_optimisers_as_training_alone_does(optimizer: str) -> None:
    members = clients(training=Training(optimizer=optimizer, lr=1e-2, batch=8))
    alone, together = jobs(members), jobs(members)
    for _ in range(2):  # the second time optimisers have a past, of another length for each client
        for job in alone:
            train(job)
        train_stacked(together)
        for one, other in zip(alone, together, strict=True):
            for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
                ours, theirs = one.optimizer.state[a], other.optimizer.state[b]
                assert ours.keys() == theirs.keys()
                for key in ours:
                    torch.testing.assert_close(ours[key], theirs[key], rtol=1e-4, atol=1e-6)


def test_models_that_cannot_be_stacked_are_left_untouched_and_trained_one_by_one() -> None:
    members = clients(with_dropout, 3)
    alone, together = jobs(members), jobs(members)
    with pytest.raises(RuntimeError):
        train_stacked(together)
    assert run_jobs({str(i): job for i, job in enumerate(together)}) == {}
    for one, other in zip(alone, together, strict=True):
        train(one)
        for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(a, b)


class Counting(nn.Module):
    """Counts its batches in a buffer, in place or by putting another there, and uses the count."""

    def __init__(self, *, replaces: bool, dropout: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.drop = nn.Linear(FEATURES, CLASSES), nn.Dropout(0.5 if dropout else 0.0)
        self.replaces = replaces
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        if self.training and self.replaces:
            self.count = 0.9 * self.count + x.detach().mean()
        elif self.training:
            self.count += 1
        return self.drop(self.linear(x / (1 + 0.01 * self.count)))


@pytest.mark.parametrize(
    "how", [{"replaces": False}, {"replaces": True}, {"replaces": False, "dropout": True}], ids=str
)
def test_models_that_update_buffers_are_left_untouched_and_trained_one_by_one(how: dict[str, bool]) -> None:
    members = clients(lambda: Counting(**how), 3)
    alone, together = jobs(members), jobs(members)
    with pytest.raises(RuntimeError):
        train_stacked(together)
    for one, other in zip(alone, together, strict=True):
        train(one)
        train(other)
        for key, value in one.model.state_dict().items():
            assert torch.equal(value, other.model.state_dict()[key])


class Activated(nn.Module):
    """Two of these may look alike, parameters, names and all, and still compute something else."""

    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.activation(self.first(x)))  # type: ignore[no-any-return]


def test_models_that_only_look_alike_are_not_stacked() -> None:
    def mixed() -> list[Client]:
        members = clients()
        for client in members:
            client.model = tanh if int(client.id) % 2 else relu
        return members

    def relu() -> nn.Module:
        return Activated(torch.relu)

    def tanh() -> nn.Module:
        return Activated(torch.tanh)

    one, other = history(mixed(), ExecutionPlan()), history(mixed(), ExecutionPlan("stacked", 1))
    assert other[-1]["accuracy"] == pytest.approx(one[-1]["accuracy"], abs=1 / 60 + 1e-9)
    assert other[-1]["concentration"] == pytest.approx(one[-1]["concentration"], rel=1e-4)


def frozen_features() -> nn.Module:
    """A frozen random layer, another one each time, under a trainable head."""
    return nn.Sequential(nn.Linear(FEATURES, 8).requires_grad_(False), nn.ReLU(), nn.Linear(8, CLASSES))


def test_models_whose_frozen_parts_differ_are_not_stacked() -> None:
    torch.manual_seed(3)
    different = jobs(clients(frozen_features))
    with pytest.raises(RuntimeError, match="frozen parts differ"):
        train_stacked(different)
    same = clients(frozen_features, 3)
    for client in same:
        client.model = lambda: (torch.manual_seed(5), frozen_features())[1]
    alone, together = jobs(same), jobs(same)
    train_stacked(together)
    for one, other in zip(alone, together, strict=True):
        train(one)
        for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_plan_under_which_training_fails_is_never_the_fastest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OnlyHere(nn.Module):
        """Fails in any process but the one it was first made in."""

        home = os.getpid()

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.dropout = network(), nn.Dropout(0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if os.getpid() != self.home:
                raise ValueError("not at home")
            return self.inner(self.dropout(x))  # type: ignore[no-any-return]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan, found = select_plan(clients(OnlyHere), device="cpu", precision="float32", workers=2)
    assert plan.mode == "sequential"
    assert "sequential in 2 processes, float32 0.0x" in found


@pytest.mark.parametrize("plan", [ExecutionPlan(), *PLANS], ids=str)
def test_one_clients_failure_is_its_own(plan: ExecutionPlan) -> None:
    members = clients()
    members[2].private = Labelled(members[2].private.inputs, members[2].private.labels + 100)
    members[4].private = Labelled(members[4].private.inputs * float("inf"), members[4].private.labels)
    line = history(members, plan, rounds=1)[0]
    assert sorted(line["failed"]) == ["2", "4"]
    assert "the loss became nan" in line["failed"]["4"]
    assert line["participants"] == ["0", "1", "3", "5", "6"]


class KillsItsProcess(nn.Module):
    """A model whose process dies in training, once."""

    flag = Path()

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and not type(self).flag.exists():
            type(self).flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x)  # type: ignore[no-any-return]


def test_a_worker_that_dies_costs_its_clients_one_round(tmp_path: Path) -> None:
    KillsItsProcess.flag = tmp_path / "died"
    members = clients(store=None)
    for client in members:
        client.store = DiskStore(tmp_path / client.id)
    members[3].model = KillsItsProcess
    lines = history(members, ExecutionPlan("processes", 2), rounds=3, participation=Participation(quorum=0.1))
    assert lines[0]["failed"]["3"] == "its worker process died (exit code -9)"
    assert "0" in lines[0]["participants"]
    assert lines[1]["failed"] == lines[2]["failed"] == {}


class FullStore(DiskStore):
    def save(self, round_: int, state: Any) -> None:
        raise StorageError("Could not write: No space left on device.")


@pytest.mark.parametrize("plan", [ExecutionPlan(), *PLANS], ids=str)
def test_a_full_disk_ends_the_run_whatever_the_mode(plan: ExecutionPlan, tmp_path: Path) -> None:
    members = clients()
    members[5].store = FullStore(tmp_path)
    with pytest.raises(StorageError, match="No space left"):
        history(members, plan)


@pytest.mark.parametrize("plan", [ExecutionPlan(), ExecutionPlan("stacked", 2)], ids=str)
def test_models_that_live_on_disk_between_rounds_learn_the_same(plan: ExecutionPlan, tmp_path: Path) -> None:
    members = clients()
    for client in members:
        client.store = DiskStore(tmp_path / client.id)
    assert history(members, plan, keep=False) == history(clients(), plan)
    assert all(client._live is None for client in members)


def test_an_abandoned_exchange_leaves_nothing_behind() -> None:
    engine = LocalEngine(clients(), ExecutionPlan("processes", 2))
    first = engine.exchange(dict.fromkeys(engine.clients, Request(1)))
    next(first)
    first.close()  # type: ignore[attr-defined]
    answers = list(engine.exchange(dict.fromkeys(engine.clients, Request(1))))
    engine.close()
    assert [answer.client for answer in answers] == list("0123456")
    assert not any(isinstance(answer, Failure) for answer in answers)


class EndedWhileItStarts:
    """As long as one is alive, a forked process is asked to end before its own code runs."""

    def __init__(self) -> None:
        register_after_fork(self, lambda _: os.kill(os.getpid(), signal.SIGTERM))


def test_a_worker_that_is_ended_while_it_starts_runs_no_handler_of_its_parent(
    capfd: pytest.CaptureFixture[str],
) -> None:
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    ended = EndedWhileItStarts()
    try:
        engine = LocalEngine(clients(), ExecutionPlan("processes", 2))
        answers = list(engine.exchange(dict.fromkeys(engine.clients, Request(1))))
        engine.close()
    finally:
        del ended
        signal.signal(signal.SIGTERM, previous)
    assert {str(answer) for answer in answers} == {
        str(Failure(client, "its worker process died (exit code -15)")) for client in engine.clients
    }
    assert capfd.readouterr().err == ""


def test_a_worker_that_is_ended_at_work_does_not_complain(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        engine = LocalEngine(clients(), ExecutionPlan("processes", 3))
        first = engine.exchange(dict.fromkeys(engine.clients, Request(1)))
        next(first)
        first.close()  # type: ignore[attr-defined]
        engine.close()
    assert capfd.readouterr().err == ""


def test_lockstep_answers_in_the_order_asked() -> None:
    members = clients()
    answers = run_generators({client.id: client.step_jobs(Request(1)) for client in reversed(members)})
    assert [answer.client for answer in answers] == list("6543210")


def test_auto_times_every_mode_keeps_the_fastest_and_remembers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan, found = select_plan(clients(), device="cpu", precision="float32", workers=2)
    assert found.startswith(f"{plan} (timed: sequential in 2 processes, float32 ")
    assert "stacked in 2 processes, float32 " in found
    assert found.endswith("sequential, float32 1.0x)")
    again, recalled = select_plan(clients(), device="cpu", precision="float32", workers=2)
    assert again == plan
    assert recalled == found.replace("timed", "found before")
    assert len(json.loads((tmp_path / "trustmix" / "engine.json").read_text())) == 1
    _, other = select_plan(clients(with_dropout), device="cpu", precision="float32", workers=2)
    assert "timed" in other


def test_a_cache_that_cannot_be_used_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trustmix").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "timed" in select_plan(clients(), device="cpu", precision="float32", workers=2)[1]


def test_trying_modes_changes_no_client() -> None:
    members = clients()
    select_plan(members, device="cpu", precision="float32")
    assert history(members, ExecutionPlan()) == history(clients(), ExecutionPlan())


def test_timing_chooses_a_mode_and_never_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def measure(_: object, plan: ExecutionPlan) -> float:
        tried.append(plan.hardware.precision)
        return 1.0

    monkeypatch.setattr(autotune, "measure_throughput", measure)
    plan, _ = select_plan(clients(with_dropout), device="cpu", precision="auto", workers=2)
    assert plan.hardware.precision == "float32"
    assert set(tried) == {"float32"}


def test_bfloat16_stays_close_to_float32() -> None:
    exact = history(clients(), ExecutionPlan(), rounds=4)
    for plan in (
        ExecutionPlan(hardware=DeviceConfig(precision="bfloat16")),
        ExecutionPlan("stacked", 1, DeviceConfig(precision="bfloat16")),
    ):
        rough = history(clients(), plan, rounds=4)
        assert rough != exact
        assert rough[-1]["accuracy_mean"] == pytest.approx(exact[-1]["accuracy_mean"], abs=0.1)


def test_convolutions_are_laid_out_channels_last_and_saved_as_usual(tmp_path: Path) -> None:
    placed = DeviceConfig().to_device(nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten(), nn.Linear(5, 2)))
    assert placed[0].weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[index]
    DiskStore(tmp_path).save(1, (placed.state_dict(), {}))
    stored = DiskStore(tmp_path).load_before(2)
    assert stored is not None
    assert torch.equal(stored[0]["0.weight"], placed.state_dict()["0.weight"])

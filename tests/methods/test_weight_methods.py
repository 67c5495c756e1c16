"""FedAvg, SCAFFOLD and FedDF: their updates by hand, a convex problem with a known answer, and what they refuse."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from trustmix import (
    Callback,
    Checkpoint,
    Federation,
    Labelled,
    Participation,
    Public,
    Recipe,
    Training,
    TrustmixError,
    run,
    storage,
)
from trustmix.engines import ExecutionPlan, LocalEngine
from trustmix.engines.fault_injection import FaultInjectionEngine
from trustmix.federation import (
    CLIENTS,
    METHODS,
    Client,
    DiskStore,
    Engine,
    Failure,
    History,
    MemoryStore,
    ProgressEvent,
    Reply,
    Request,
)
from trustmix.methods.fedavg import FedAvg, WeightedMean, decode_weights, encode_weights
from trustmix.methods.scaffold import CONTROL

WEIGHT_METHODS = [name for name in METHODS.names() if METHODS.get(name).exchanges == "weights"]
SHARED = Public(torch.zeros(4, 2), 2)


class Quadratic(nn.Module):
    """A model whose cross-entropy on (a, b) with label 0 is a/2 (theta - b)^2 + 1: logits (0, log(e^loss - 1))."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = x[:, 0] / 2 * (self.theta - x[:, 1]).square() + 1
        return torch.stack([torch.zeros_like(loss), loss.expm1().log()], 1)


PROBLEMS = [(0.5, -2.0, 8), (4.0, 3.0, 4), (1.0, -1.0, 12)]
"""a, b and the number of samples of each client."""
RATE, STEPS = 0.2, 4
LOCAL = Training("sgd", lr=RATE, batch=16, first_epochs=STEPS, epochs=STEPS)


def client_class(method: str) -> type[Client]:
    return CLIENTS.get(METHODS.get(method).client)


def quadratic_clients(method: str) -> list[Client]:
    made = []
    for index, (a, b, count) in enumerate(PROBLEMS):
        private = Labelled(
            torch.tensor([[a, b]], dtype=torch.float64).repeat(count, 1), torch.zeros(count, dtype=torch.int64)
        )
        made.append(client_class(method)(str(index), Quadratic, private, private, SHARED, training=LOCAL))
    return made


def federation(
    method: str,
    clients: Sequence[Client] | Engine,
    model: Callable[[], nn.Module] = Quadratic,
    public: Public = SHARED,
    participation: Participation | None = None,
) -> Federation:
    nothing = Labelled(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
    student = Client("student", model, nothing, nothing, public, training=LOCAL)
    return Federation(rule=method, clients=clients, student=student, public=public, participation=participation)


def algorithm_of(server: Federation) -> FedAvg:
    assert isinstance(server.algorithm, FedAvg)  # SCAFFOLD and FedDF are built on it
    return server.algorithm


def theta_after(method: str, rounds: int) -> float:
    members = quadratic_clients(method)
    federation(method, members).run(rounds)
    states = [client.store.load_before(rounds + 2) for client in members]
    values = {float(state[0]["model.theta"]) for state in states if state is not None}
    assert len(values) == 1  # after the closing exchange everybody has the server's model
    return values.pop()


def test_one_round_of_fedavg_is_the_mean_by_samples_of_what_local_steps_reach() -> None:
    reached = [b * (1 - (1 - RATE * a) ** STEPS) for a, b, _ in PROBLEMS]
    samples = [count for *_, count in PROBLEMS]
    wanted = sum(n * y for n, y in zip(samples, reached, strict=True)) / sum(samples)
    assert theta_after("fedavg", 1) == pytest.approx(wanted, rel=1e-12)


def test_fedavg_converges_to_its_biased_fixed_point_and_not_to_the_optimum() -> None:
    pulls = [(n * (1 - (1 - RATE * a) ** STEPS), b) for a, b, n in PROBLEMS]
    fixed = sum(pull * b for pull, b in pulls) / sum(pull for pull, _ in pulls)
    optimum = sum(n * a * b for a, b, n in PROBLEMS) / sum(n * a for a, _, n in PROBLEMS)
    assert theta_after("fedavg", 60) == pytest.approx(fixed, abs=1e-9)
    assert abs(fixed - optimum) > 0.5


def test_scaffold_converges_to_the_optimum_of_the_clients_mean_loss() -> None:
    optimum = sum(a * b for a, b, _ in PROBLEMS) / sum(a for a, *_ in PROBLEMS)
    assert theta_after("scaffold", 120) == pytest.approx(optimum, abs=1e-9)


def test_two_rounds_of_scaffold_are_those_of_the_papers_algorithm() -> None:
    x = c = 0.0
    controls = [0.0] * 3
    for _ in range(2):
        ys, changes = [], []
        for i, (a, b, _) in enumerate(PROBLEMS):
            y = x
            for _ in range(STEPS):
                y -= RATE * (a * (y - b) - controls[i] + c)
            new = controls[i] - c + (x - y) / (STEPS * RATE)
            changes.append(new - controls[i])
            ys.append(y)
            controls[i] = new
        x, c = sum(ys) / 3, c + sum(changes) / 3
    members = quadratic_clients("scaffold")
    server = federation("scaffold", members)
    server.run(2)
    for client, control in zip(members, controls, strict=True):
        state = client.store.load_before(9)
        assert state is not None
        assert float(state[0]["model.theta"]) == pytest.approx(x, rel=1e-12)
        assert float(state[0]["optimizer.0.control"]) == pytest.approx(control, rel=1e-12)


def test_scaffold_with_some_of_the_clients_moves_the_control_by_their_part() -> None:
    members = quadratic_clients("scaffold")
    algorithm = algorithm_of(federation("scaffold", members))
    opening = algorithm.initial_message()
    algorithm.begin_round(1, opening)
    algorithm.aggregate(members[1].step(Request(1, opening)))
    message = algorithm.finalize(["1"]).message
    sent, _ = decode_weights(message or b"", "server", 1, algorithm.initial)
    a, b, _ = PROBLEMS[1]
    y = b * (1 - (1 - RATE * a) ** STEPS)
    assert float(sent["theta"]) == pytest.approx(y, rel=1e-12)
    assert float(sent[CONTROL + "theta"]) == pytest.approx(-y / (STEPS * RATE) / 3, rel=1e-12)


def test_fedavg_with_one_full_step_is_gradient_descent_on_everybodys_data() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator)
    y = (x @ torch.randn(3, 3, generator=generator)).argmax(1)
    shares = [slice(0, 10), slice(10, 30), slice(30, 60)]
    training = Training("sgd", lr=0.5, batch=64, first_epochs=1, epochs=1)
    public = Public(x[:4], 3)
    members = [
        client_class("fedavg")(str(i), softmax_regression, Labelled(x[s], y[s]), Labelled(x[s], y[s]), public)
        for i, s in enumerate(shares)
    ]
    for member in members:
        member.training = training
    federation("fedavg", members, softmax_regression, public=public).run(50)
    model = softmax_regression()
    for _ in range(50):
        gradients = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.data -= 0.5 * gradient
    state = members[0].store.load_before(99)
    assert state is not None
    for name, value in model.state_dict().items():
        torch.testing.assert_close(state[0][f"model.{name}"], value, atol=1e-5, rtol=1e-4)


def softmax_regression() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 3)


def with_batch_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def two_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))


def samples(count: int, seed: int, shift: float) -> Labelled:
    labels = torch.arange(count) % 2
    noise = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return Labelled(noise + torch.tensor([[shift, 0.0]]) + 2 * labels.unsqueeze(1), labels)


PUBLIC = Public(samples(20, 9, 0.0).inputs, 2)
TEST = samples(40, 8, 0.0)
SMALL = Training("sgd", lr=0.1, batch=8, first_epochs=2, epochs=1, public_epochs=1)


def network_clients(method: str, model: Callable[[], nn.Module], folder: Path | None = None) -> list[Client]:
    return [
        client_class(method)(
            str(i),
            model,
            samples(16 + 8 * i, i, i - 1.0),
            samples(4, i, 0.0),
            PUBLIC,
            test=TEST,
            training=SMALL,
            store=DiskStore(folder / str(i)) if folder else MemoryStore(),
        )
        for i in range(4)
    ]


def numbers(history: History) -> list[dict[str, Any]]:
    return [{key: value for key, value in asdict(line).items() if key != "seconds"} for line in history.rounds]


def test_one_round_of_feddf_is_fedavg_then_distillation_from_the_mean_logits() -> None:
    members = network_clients("feddf", two_layers)
    server = federation("feddf", members, two_layers, public=PUBLIC)
    algorithm_of(server).student.training = Training("sgd", lr=0.3, batch=32, public_epochs=1)  # one full step
    opening = server.algorithm.initial_message()
    uploads = [client.step(Request(1, opening)).payload for client in network_clients("feddf", two_layers)]
    weights = [decode_weights(upload or b"", str(i), 1, two_layers().state_dict()) for i, upload in enumerate(uploads)]
    mean, model, logits = WeightedMean(), two_layers(), []
    for tensors, count in weights:
        mean.update(tensors, count)
        model.load_state_dict(tensors)
        logits.append(model(PUBLIC.inputs).detach())
    model.load_state_dict(mean.compute())
    teacher = torch.softmax(torch.stack(logits).mean(0), 1)
    cross_entropy(model(PUBLIC.inputs), teacher).backward()  # type: ignore[no-untyped-call]
    line = server.run(1).rounds[0]
    state = members[0].store.load_before(9)
    assert state is not None
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(state[0][f"model.{name}"], parameter.detach() - 0.3 * parameter.grad)
    assert line.effective_clients == 4


@pytest.mark.parametrize("method", WEIGHT_METHODS)
@pytest.mark.parametrize("model", [two_layers, with_batch_norm])
def test_all_ways_to_run_clients_agree(method: str, model: Callable[[], nn.Module]) -> None:
    histories = []
    for plan in (ExecutionPlan("sequential"), ExecutionPlan("stacked"), ExecutionPlan("processes", 2)):
        engine = LocalEngine(network_clients(method, model), plan)
        histories.append(federation(method, engine, model, public=PUBLIC).run(3))
        engine.close()
    for other in histories[1:]:
        for one, two in zip(histories[0].rounds, other.rounds, strict=True):
            assert two.accuracy == pytest.approx(one.accuracy, abs=1 / 40 + 1e-9)
            assert (two.bytes_up, two.bytes_down) == (one.bytes_up, one.bytes_down)


def test_stacked_clients_of_scaffold_keep_their_own_corrections() -> None:
    states = []
    for mode in ("sequential", "stacked"):
        members = network_clients("scaffold", two_layers)
        engine = LocalEngine(members, ExecutionPlan(mode))
        federation("scaffold", engine, two_layers, public=PUBLIC).run(3)
        states.append([client.store.load_before(9) for client in members])
    for one, two in zip(*states, strict=True):
        assert one is not None
        assert two is not None
        assert set(one[0]) == set(two[0])
        for name, value in one[0].items():
            torch.testing.assert_close(two[0][name], value, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", WEIGHT_METHODS)
@pytest.mark.parametrize("interrupted_after", [1, 2])
def test_resumed_from_its_checkpoint_it_ends_in_the_same_numbers(
    method: str, interrupted_after: int, tmp_path: Path
) -> None:
    def begun(name: str) -> Federation:
        members = network_clients(method, with_batch_norm, tmp_path / name)
        half = Participation(fraction=0.5)
        return federation(method, members, with_batch_norm, public=PUBLIC, participation=half)

    whole = begun("whole").run(4)
    first = begun("cut").iter_rounds(4, checkpoint=Checkpoint(tmp_path / "cut"))
    for _ in range(interrupted_after):
        next(first)
    del first
    rest = begun("cut").run(4, checkpoint=Checkpoint(tmp_path / "cut"))
    assert numbers(rest) == numbers(whole)[interrupted_after - 1 :]
    assert all(len(line.participants) == 2 for line in whole.rounds)


def test_everybody_evaluates_the_same_model_and_bytes_are_those_of_the_weights() -> None:
    for method, times in (("fedavg", 1), ("scaffold", 2)):
        line = federation(method, network_clients(method, two_layers), two_layers, public=PUBLIC).run(1).rounds[0]
        assert len(set(line.accuracy.values())) == 1
        assert len(line.local_accuracy) == 4
        floats = times * sum(p.numel() for p in two_layers().parameters())
        for total in (line.bytes_up, line.bytes_down):
            assert 4 * 4 * floats < total < 4 * (4 * floats + 1500)
        assert line.paper_bytes_up == 4 * 4 * floats


def test_batch_norm_statistics_are_averaged_with_the_weights() -> None:
    members = network_clients("fedavg", with_batch_norm)
    algorithm = algorithm_of(federation("fedavg", members, with_batch_norm, public=PUBLIC))
    uploads = [client.step(Request(1, algorithm.initial_message())).payload for client in members]
    decoded = [decode_weights(upload or b"", str(i), 1, algorithm.initial) for i, upload in enumerate(uploads)]
    wanted = sum(w["1.running_mean"].double() * n for w, n in decoded) / sum(n for _, n in decoded)
    members = network_clients("fedavg", with_batch_norm)
    federation("fedavg", members, with_batch_norm, public=PUBLIC).run(1)
    state = members[0].store.load_before(9)
    assert state is not None
    torch.testing.assert_close(state[0]["model.1.running_mean"].double(), wanted, atol=1e-6, rtol=1e-5)


class TamperingEngine(LocalEngine):
    """Clients 1 to 3 send something else than weights of the right kind."""

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        for answer in super().exchange(requests):
            if isinstance(answer, Reply) and answer.payload and answer.client in "123":
                tensors, header = storage.unpack(answer.payload)
                name = next(iter(tensors))
                if answer.client == "1":
                    tensors[name] = tensors[name][:1]
                if answer.client == "2":
                    tensors[name] = tensors[name] * float("nan")
                if answer.client == "3":
                    header["samples"] = -5
                yield Reply(answer.client, answer.round, storage.pack(tensors, header))
            else:
                yield answer


def test_a_refused_upload_costs_only_its_sender() -> None:
    engine = TamperingEngine(network_clients("fedavg", two_layers))
    few = Participation(quorum=0.1)
    line = federation("fedavg", engine, two_layers, public=PUBLIC, participation=few).run(1).rounds[0]
    assert line.participants == ["0"]
    for client, reason in {"1": "another architecture", "2": "not finite", "3": "samples = -5"}.items():
        assert reason in line.failed[client]
    with pytest.raises(TrustmixError, match="has round = 3; expected was 2"):
        decode_weights(encode_weights({}, "server", 3), "server", 2, {})


def test_lost_answers_do_not_stop_scaffold() -> None:
    engine = FaultInjectionEngine(LocalEngine(network_clients("scaffold", two_layers)), late=0.4, seed=1)
    few = Participation(quorum=0.1)
    history = federation("scaffold", engine, two_layers, public=PUBLIC, participation=few).run(4)
    assert any(line.failed for line in history.rounds)
    assert history.rounds[-1].accuracy_mean is not None


def test_mixed_architectures_are_refused() -> None:
    members = network_clients("fedavg", two_layers)[:2] + network_clients("fedavg", with_batch_norm)[2:]
    with pytest.raises(TrustmixError, match="fedavg averages weights, which takes one architecture"):
        federation("fedavg", members, two_layers, public=PUBLIC)
    for method in WEIGHT_METHODS:
        with pytest.raises(TrustmixError, match=rf"rule: {method} averages weights.*lists 3 models"):
            Recipe.load("mixed", [f"rule={method}", "train.optimizer=sgd"])


def test_scaffold_refuses_adam_with_the_reason() -> None:
    sentence = "scaffold corrects gradients, which adam would rescale.*set train.optimizer = sgd"
    with pytest.raises(TrustmixError, match=sentence):
        Recipe.load("demo", ["rule=scaffold"])
    with pytest.raises(TrustmixError, match=sentence):
        client_class("scaffold")("0", two_layers, TEST, TEST, PUBLIC, training=Training("adam"))


@pytest.mark.parametrize("method", WEIGHT_METHODS)
def test_a_recipe_runs_it_into_a_run_directory_and_resumes(method: str, tmp_path: Path) -> None:
    changes = ["clients=4", "rounds=3", "split.samples_per_client=100", "split.classes_per_client=9"]
    changes += ["public.samples=60", "train.optimizer=sgd", "train.lr=0.3", f"rule={method}", "train.epochs=3"]
    changes += ["engine.mode=sequential"]
    recipe = Recipe.load("demo", changes)
    history = run(recipe, out=tmp_path / "run")
    assert history.rounds[-1].method == method
    assert (history.best_accuracy or 0) > 0.65
    assert not (tmp_path / "run" / "models" / "student.safetensors").exists()
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    for events in (1, 6):
        folder = tmp_path / f"cut{events}"
        with pytest.raises(KeyboardInterrupt):
            run(recipe, out=folder, callbacks=[InterruptAfter(events)])
        run(recipe, out=folder, resume=True)
        resumed = (folder / "rounds.jsonl").read_text().splitlines()
        assert [_timeless(line) for line in resumed] == [_timeless(line) for line in lines]


class InterruptAfter(Callback):
    """Ctrl-C after so many events of progress."""

    def __init__(self, events: int) -> None:
        self.left = events

    def on_progress(self, event: ProgressEvent) -> None:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1


def _timeless(line: str) -> dict[str, Any]:
    return {key: value for key, value in json.loads(line).items() if key != "seconds"}


@pytest.mark.parametrize("method", WEIGHT_METHODS)
def test_all_begin_with_one_model_whatever_the_clients_build(method: str) -> None:
    def drawn() -> nn.Module:
        return nn.Linear(2, 2)

    members = network_clients(method, drawn)
    algorithm = algorithm_of(federation(method, members, drawn, public=PUBLIC))
    drawn_weights = [client._resume(1).model.state_dict()["weight"].clone() for client in members]
    assert not any(torch.equal(weight, algorithm.initial["weight"]) for weight in drawn_weights)
    for client in members:
        live = client._resume(1)
        assert client.apply_server_message(live, 1, algorithm.initial_message()) is None
        assert torch.equal(live.model.state_dict()["weight"], algorithm.initial["weight"])

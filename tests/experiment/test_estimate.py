"""What a run will cost is told before it is run, and is near to what it then costs."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import trustmix as tm
from trustmix import Recipe
from trustmix.cli import app
from trustmix.data import Labelled
from trustmix.experiment import estimate
from trustmix.experiment.build import build_federation
from trustmix.experiment.estimate import estimate_cost
from trustmix.experiment.trial_run import RunCost
from trustmix.federation import Client
from trustmix.learners import Training
from trustmix.learners.training import MAX_EPOCHS, MAX_FIRST_EPOCHS

SMALL = ["clients=4", "rounds=3", "split.classes_per_client=3", "split.samples_per_client=60", "public.samples=300"]


def test_bytes_are_near_to_those_really_sent_and_weights_are_counted_as_the_paper_does(tmp_path: Path) -> None:
    recipe = Recipe.load("demo", [*SMALL, "engine.mode=sequential"])
    cost = estimate_cost(recipe)
    history = tm.run(recipe)
    sent = history.summary()["bytes_up"] / 4
    assert cost.messages["float32"][0] == pytest.approx(sent, rel=0.25)
    parameters = 64 * 64 + 64 + 64 * 10 + 10
    assert cost.parameters == (parameters,)
    assert cost.weights == {
        "FedAvg": (12 * parameters, 12 * parameters),
        "SCAFFOLD": (24 * parameters, 24 * parameters),
    }
    assert next(iter(cost.messages)) == "float32"
    assert cost.messages["uint4"][0] < cost.messages["float32"][0] / 5


def test_steps_are_those_that_a_run_takes() -> None:
    recipe = Recipe.load("demo", [*SMALL, "engine.mode=sequential"])
    experiment = build_federation(recipe)
    clients = list(experiment.clients)
    private = math.ceil(48 / 32) * (5 + 2 * 1)
    public = math.ceil(300 / 32) * 5 * 3
    assert estimate._steps(clients, recipe, exchanges=True) == 4 * (private + public)
    assert estimate._steps(clients, recipe, exchanges=False) == 4 * private


def test_steps_of_texts_are_counted_by_the_tokens_that_a_run_pads_to() -> None:
    lengths = [2, 10] * 32  # sorted, half of the batches are short; unsorted, nearly every batch has a long text
    tokens = torch.full((64, 10), -1, dtype=torch.int32)
    for row, length in enumerate(lengths):
        tokens[row, :length] = 7
    private = Labelled(tokens, torch.arange(64) % 2)
    public = tm.Public(tokens, classes=2)
    client = tm.Client("0", lambda: torch.nn.Linear(10, 2), private, private, public, training=Training(batch=8))
    assert estimate._padded_share(client) == pytest.approx((4 * 2 + 4 * 10) / (8 * 10), abs=0.06)
    pictures = Labelled(torch.rand(64, 3), torch.arange(64) % 2)
    other = tm.Client("0", lambda: torch.nn.Linear(3, 2), pictures, pictures, tm.Public(torch.rand(4, 3), classes=2))
    assert estimate._padded_share(other) == 1


@pytest.mark.parametrize(("load", "told"), [(5.0, True), (0.5, False)])
def test_a_busy_machine_is_named_beside_the_time(load: float, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trustmix.experiment.resources.machine_load", lambda: load)
    options = [part for change in [*SMALL, "engine.mode=sequential"] for part in ("--set", change)]
    result = CliRunner().invoke(app, ["plan", "demo", *options])
    assert ("The machine is busy, with 5 times the load of its cores" in result.output) == told


def test_methods_without_exchange_send_nothing_and_mixed_models_cannot_share_weights() -> None:
    assert estimate_cost(Recipe.load("demo", [*SMALL, "rule=alone", "engine.mode=sequential"])).messages == {}
    mixed = {**Recipe.load("demo", SMALL).model_dump(exclude_none=True), "model": [{"name": "mlp"}, {"name": "cnn"}]}
    cost = estimate_cost(Recipe.load(mixed, ["engine.mode=sequential"]))
    assert cost.weights == {}
    assert len(cost.parameters) == 2


def test_the_command_prints_time_memory_and_bytes_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = [part for change in [*SMALL, "engine.mode=sequential"] for part in ("--set", change)]
    result = CliRunner().invoke(app, ["plan", "demo", *options])
    assert result.exit_code == 0, result.output
    for word in ("4 clients, 3 rounds, parameters: 4,810", "time: about", "memory: up to 0.6 GB", "uint4", "SCAFFOLD"):
        assert word in result.output
    assert list(tmp_path.iterdir()) == []


def test_epochs_that_agreement_decides_are_counted_at_their_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [*SMALL, "engine.mode=sequential", "train.public_epochs=auto"]
    recipe = Recipe.load("demo", changes)
    clients = list(build_federation(recipe).clients)
    private, public = math.ceil(48 / 32) * (5 + 2 * 1), math.ceil(300 / 32) * (MAX_FIRST_EPOCHS + 2 * MAX_EPOCHS)
    assert estimate._steps(clients, recipe, exchanges=True) == 4 * (private + public)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["plan", "demo", *(part for change in changes for part in ("--set", change))])
    assert "time: up to" in result.output


def test_a_mixed_stage_goes_through_both_sets_for_the_public_epochs() -> None:
    recipe = Recipe.load("demo", [*SMALL, "engine.mode=sequential", "train.stages=mixed"])
    clients = list(build_federation(recipe).clients)
    private, public = math.ceil(48 / 32), math.ceil(300 / 32)
    assert estimate._steps(clients, recipe, exchanges=True) == 4 * (5 * private + 3 * 5 * (private + public))


def test_a_servers_recipe_is_estimated_for_one_node_before_any_node_is_there(tmp_path: Path) -> None:
    inputs = np.random.default_rng(0).normal(size=(300, 8)).astype("f4")
    np.savez(tmp_path / "public.npz", x_public=inputs)
    (tmp_path / "server.toml").write_text(
        f'clients = 7\nrounds = 3\n[data]\nname = "shared"\npath = "{tmp_path}/public.npz"\n'
        'classes = ["a", "b", "c"]\n[public]\nsamples = 300\n[split]\nsamples_per_client = 90\n'
    )
    recipe = Recipe.load(str(tmp_path / "server.toml"))
    cost = estimate_cost(recipe)
    assert (cost.clients, cost.rounds, cost.node_samples) == (7, 3, 90)
    assert cost.engine == "flower; each node: sequential, float32 (as set)"
    public = tm.Public(torch.from_numpy(inputs), classes=3)
    own = Labelled(torch.randn(90, 8), torch.arange(90) % 3)
    client = tm.Client("north", lambda: torch.nn.Linear(8, 3), own, own, public)
    sent = tm.Federation(clients=[client], public=public).run(3).summary()["bytes_up"]
    assert cost.messages["float32"][0] == pytest.approx(sent, rel=0.25)
    shown = CliRunner().invoke(app, ["plan", str(tmp_path / "server.toml")])
    assert shown.exit_code == 0, shown.output
    assert "one node with a machine like this one and 90 samples" in " ".join(shown.output.split())


def test_a_fleet_is_estimated_from_trial_runs_and_few_of_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    real = Client.__post_init__

    def counting(self: Client) -> None:
        nonlocal made
        made += 1
        real(self)

    monkeypatch.setattr(Client, "__post_init__", counting)
    monkeypatch.setattr(estimate, "estimate_run", lambda _: RunCost(12.0, 3e8))
    cost = estimate_cost(Recipe.load("crossdevice", ["engine.precision=float32"]))
    assert (cost.clients, cost.cpu_seconds, cost.memory) == (100_000, 12.0, 3e8)
    assert made < 5 * estimate.TRIAL_CLIENTS

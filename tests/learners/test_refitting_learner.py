"""Clients whose model is a classifier: what they learn, what they upload, and that it can be repeated."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from torch import nn

import trustmix as tm
from trustmix import TrustmixError
from trustmix.engines import ExecutionPlan
from trustmix.experiment.build import build_federation
from trustmix.federation import DiskStore, Request
from trustmix.learners import Lesson, RefittingLearner, Training, make_learner
from trustmix.learners.training import DeviceConfig
from trustmix.models import ClassifierModel
from trustmix.settings.recipe import Recipe
from trustmix.wire import encode_teacher

X, Y = (torch.as_tensor(part) for part in load_iris(return_X_y=True))
X = X.float()
PUBLIC = tm.Public(X[::2], 3)
TRUTH = torch.nn.functional.one_hot(Y[::2], 3).float()
SMALL = ["rounds=2", "split.samples_per_client=60", "public.samples=80", "train.first_epochs=2", "train.epochs=1"]


def forest() -> RandomForestClassifier:
    return RandomForestClassifier(n_estimators=8)


def client(name: str = "0", model: Any = forest, classes: tuple[int, ...] = (0, 1), **settings: Any) -> tm.Client:
    own = torch.isin(Y, torch.tensor(classes)) & (torch.arange(150) % 2 == 1)
    return tm.Client.from_arrays(name, model, X[own], Y[own], public=PUBLIC, **settings)


def teacher(round_: int = 1) -> bytes:
    return encode_teacher(TRUTH, PUBLIC.header("server", round_), "float32")


def test_a_forest_that_distils_learns_classes_it_has_not_seen_and_keeps_its_own() -> None:
    one = client(test=tm.Labelled(X, Y))
    one.step(Request(1))
    reply = one.step(Request(2, teacher(), train=False, upload=False))
    assert reply.accuracy is not None
    assert reply.accuracy > 0.9
    assert reply.agreement is not None
    assert reply.agreement > 0.9


def test_dataframes_give_the_client_that_tensors_give() -> None:
    frame, classes = pd.DataFrame(X.double().numpy(), columns=list("abcd")), pd.Series(Y.numpy())
    public = tm.Public(frame.iloc[::2], 3)
    own = (frame.iloc[1:100:2], classes.iloc[1:100:2])
    one = tm.Client.from_arrays("0", forest, *own, public=public, test=(frame, classes))
    two = tm.Client.from_arrays("0", forest, X[1:100:2], Y[1:100:2], public=PUBLIC, test=tm.Labelled(X, Y))
    assert one.step(Request(1)).payload == two.step(Request(1)).payload
    assert one.test is not None
    assert torch.equal(one.test.inputs, X)


@pytest.mark.parametrize(
    ("inputs", "labels", "sentence"),
    [
        (pd.DataFrame({"a": ["x", "y"]}), [0, 1], "inputs must be numbers"),
        (pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}), [0, 1], "inputs must be numbers .*encode texts"),
        ([[1.0], [2.0]], ["ham", "spam"], "labels must be whole numbers"),
        ([[1.0], [2.0]], [0.5, 1.0], "labels must be whole numbers"),
        ([[1.0], [2.0]], [float("inf"), 1.0], "labels must be whole numbers"),
        ([[1.0], [2.0]], [0, 1, 1], r"labels have the shape \(3,\); there must be one for each of 2"),
    ],
)
def test_arrays_that_are_no_samples_are_refused_in_a_sentence(inputs: Any, labels: Any, sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        tm.Client.from_arrays("0", forest, inputs, labels, public=PUBLIC)


def test_distilling_is_a_fit_to_own_samples_and_to_public_ones_by_their_probabilities() -> None:
    learner = make_learner(ClassifierModel(forest(), 3), Training(), DeviceConfig())
    assert isinstance(learner, RefittingLearner)
    own = tm.Labelled(X[:10], Y[:10])
    soft = torch.tensor([[0.6, 0.4, 0.0], [0.0, 0.0, 1.0]])
    job = learner.distil(Lesson(X[100:102], soft), own, epochs=9, generator=torch.Generator())
    assert torch.equal(job.samples.inputs, torch.cat([X[:10], X[[100, 100, 101]]]))
    assert job.samples.labels.tolist() == [0] * 10 + [0, 1, 2]
    torch.testing.assert_close(job.weights, torch.tensor([1.0] * 10 + [0.6, 0.4, 1.0]))
    assert job.epochs == 1, "a fit has no epochs"
    assert job.seed == int(torch.randint(2**31 - 1, (1,), generator=torch.Generator()))


def test_uploads_are_of_own_labels_alone_so_that_no_client_repeats_the_teacher() -> None:
    one = client()
    first = one.step(Request(1)).payload
    wrong = encode_teacher(TRUTH.roll(1, 1), PUBLIC.header("server", 1), "float32")
    second = one.step(Request(2, wrong)).payload
    assert first is not None
    assert second is not None
    upload = [
        tm.wire.decode_upload(data, PUBLIC.header("0", round_ + 1)) for round_, data in enumerate((first, second))
    ]
    assert (upload[0].predictions.argmax(1) == upload[1].predictions.argmax(1)).double().mean() > 0.95
    torch.testing.assert_close(upload[0].scores, upload[1].scores)


@pytest.mark.parametrize("round_", [2, 3])
def test_a_client_whose_process_is_gone_goes_on_with_the_same_uploads(round_: int, tmp_path: Path) -> None:
    whole = client()
    expected = [whole.step(Request(r, teacher(r - 1) if r > 1 else None)).payload for r in (1, 2, 3)]
    for r in range(1, round_):
        client(store=DiskStore(tmp_path)).step(Request(r, teacher(r - 1) if r > 1 else None))
    again = client(store=DiskStore(tmp_path)).step(Request(round_, teacher(round_ - 1)))
    assert again.payload == expected[round_ - 1]


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


@pytest.mark.parametrize("mode", ["sequential", "stacked", "processes"])
def test_classifiers_and_networks_share_a_federation_in_every_mode(mode: Any, tmp_path: Path) -> None:
    kinds = [forest, linear, linear, forest]
    members = [
        client(str(i), kind, ((0, 1), (1, 2))[i % 2], store=DiskStore(tmp_path / str(i)), test=tm.Labelled(X, Y))
        for i, kind in enumerate(kinds)
    ]
    engine = tm.LocalEngine(members, ExecutionPlan(mode, workers=2 if mode == "processes" else 1))
    try:
        lines = tm.Federation(clients=engine, public=PUBLIC, rule="trust").run(rounds=2).rounds
    finally:
        engine.close()
    assert lines[-1].participants == ["0", "1", "2", "3"]
    assert lines[-1].accuracy["0"] > 0.8


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["rule=fedavg"], "exchanges weights .*goes with networks alone"),
        (["privacy.epsilon=8"], "privacy.mechanism = training goes with networks alone"),
        (["density.kind=discriminator"], "density.kind = discriminator goes with networks alone"),
        (["train.stages=mixed"], "train.stages = mixed goes with networks alone"),
        (["train.augment=crop"], "train.augment = crop goes with networks alone"),
        (["theory.every=1"], "theory.every goes with networks alone"),
    ],
)
def test_what_only_networks_can_do_is_refused_before_the_first_fit(changes: list[str], sentence: str) -> None:
    forest_clients = ["model={ name = 'random-forest', n_estimators = 3 }", "rule=suwa"]
    with pytest.raises(TrustmixError, match=sentence):
        build_federation(Recipe.load("digits", [*SMALL, "clients=5", "guard.on=false", *forest_clients, *changes]))


RUN = """
import sys, trustmix as tm
tm.run(tm.Recipe.load(sys.argv[2], sys.argv[3:]), out=sys.argv[1])
"""
BOOSTING = str(Path(__file__).parents[2] / "examples" / "boosting.toml")


def run_killed(folder: Path, recipe: str, settings: list[str], after: int) -> None:
    """Run in a process of its own that is killed as soon as a round is recorded."""
    process = subprocess.Popen([sys.executable, "-c", RUN, str(folder), recipe, *settings])
    rounds = folder / "rounds.jsonl"
    while process.poll() is None:
        if rounds.exists() and rounds.read_text().count("\n") >= after:
            os.kill(process.pid, signal.SIGKILL)
            break
    process.wait()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(("name", "clients"), [("tabular", "012"), (BOOSTING, "0123")])
def test_several_kinds_of_learners_killed_and_resumed_end_in_the_same_numbers(
    name: str, clients: str, tmp_path: Path
) -> None:
    short = ["rounds=4", "engine.mode=sequential", "train.first_epochs=3", "train.public_epochs=2"]
    settings = [f"clients={len(clients)}", *short]
    recipe = Recipe.load(name, settings)
    whole = tm.run(recipe, out=tmp_path / "whole")
    run_killed(tmp_path / "killed", name, settings, after=2)
    resumed = tm.run(recipe, out=tmp_path / "killed", resume=True)
    assert [line.accuracy for line in resumed.rounds] == [line.accuracy for line in whole.rounds]
    assert [line.teacher_nll for line in resumed.rounds] == [line.teacher_nll for line in whole.rounds]
    assert [line.participants for line in resumed.rounds] == [list(clients)] * 4
    for client_id in clients:
        one, other = (tm.load_model(tmp_path / folder, client_id) for folder in ("whole", "killed"))
        inputs = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        assert torch.equal(one(inputs), other(inputs))


@pytest.mark.slow
def test_xgboost_lightgbm_a_network_and_a_regression_are_each_better_together_than_alone() -> None:
    changes = ["clients=4", "rounds=3", "public.samples=300", "engine.mode=sequential"]
    alone, together = (tm.run(Recipe.load(BOOSTING, [*changes, f"rule={rule}"])) for rule in ("alone", "trust"))
    for name in "0123":
        assert together[-1].accuracy[name] > alone[-1].accuracy[name] + 0.2

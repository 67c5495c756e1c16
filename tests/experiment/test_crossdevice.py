"""A fleet of devices: what a run makes and keeps depends on who takes part, not on how many are registered."""

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import trustmix as tm
from trustmix import Recipe
from trustmix.experiment import build, trial_run
from trustmix.experiment.build import build_federation
from trustmix.federation import Callback, Client, ProgressEvent
from trustmix.lazy import LazySequence

PARTICIPANTS = 20
FLEET = [
    "clients=100000",
    f"participation.fraction={PARTICIPANTS / 100_000}",
    "rounds=3",
    "train.first_epochs=1",
    "train.public_epochs=1",
    "public.samples=100",
    "split.test_samples=40",
    "engine.mode=sequential",
    "engine.precision=float32",
]


def fleet(*overrides: str) -> Recipe:
    return Recipe.load("crossdevice", [*FLEET, *overrides])


def numbers(folder: Path) -> list[dict[str, Any]]:
    """All of a run's record but its times."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet") / "run"
    tm.run(fleet(), out=folder)
    return folder


def test_the_recipe_asks_a_thousand_of_a_hundred_thousand_and_keeps_states_on_disk() -> None:
    recipe = Recipe.load("crossdevice")
    assert (recipe.clients, trial_run.participants(recipe)) == (100_000, 1000)
    assert (recipe.engine.store, recipe.participation.closing) == ("disk", "sample")


def test_only_participants_are_made_and_none_of_them_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Counter[str] = Counter()
    real = build.build_client

    def counting(recipe: Recipe, name: str, *rest: Any, **settings: Any) -> Client:
        made[name] += 1
        return real(recipe, name, *rest, **settings)

    monkeypatch.setattr(build, "build_client", counting)
    with build_federation(fleet()) as experiment:
        assert isinstance(experiment.clients, LazySequence)
        at_the_start = made.total()
        rounds = experiment.federation.run(3).rounds
    asked = Counter(client for line in rounds for client in line.participants)
    closing = set(rounds[-1].accuracy)
    assert at_the_start <= 2
    assert asked.total() == 3 * PARTICIPANTS
    assert len(closing) == PARTICIPANTS
    assert made.total() - at_the_start == 4 * PARTICIPANTS
    assert set(made) - {"0"} <= asked.keys() | closing


def test_the_record_has_the_figures_of_participants_alone(undisturbed: Path) -> None:
    for line in numbers(undisturbed):
        for figures in (line["accuracy"], line["client_bytes_down"], line["client_bytes_up"], line["participants"]):
            assert len(figures) == PARTICIPANTS
    states = json.loads((undisturbed / "checkpoint" / "server.json").read_text())["states"]
    folders = {folder.name for folder in (undisturbed / "checkpoint" / "clients").iterdir()}
    assert states.keys() == folders
    assert len(folders) <= 4 * PARTICIPANTS


@pytest.mark.slow
def test_a_client_is_the_same_whether_all_are_made_or_one(tmp_path: Path) -> None:
    """A federation of 1,500 clients in memory gives the numbers of one whose clients are made on demand."""
    few = ["clients=1500", f"participation.fraction={PARTICIPANTS / 1500}", "rounds=2"]
    tm.run(fleet(*few), out=tmp_path / "disk")
    tm.run(fleet(*few, "engine.store=memory"), out=tmp_path / "memory")
    assert numbers(tmp_path / "disk") == numbers(tmp_path / "memory")


@pytest.mark.slow
def test_worker_processes_give_the_numbers_of_one_process(undisturbed: Path, tmp_path: Path) -> None:
    tm.run(fleet("engine.mode=processes", "engine.workers=2"), out=tmp_path / "run")
    for one, other in zip(numbers(undisturbed), numbers(tmp_path / "run"), strict=True):
        assert one["participants"] == other["participants"]
        assert one["accuracy_mean"] == pytest.approx(other["accuracy_mean"], abs=0.01)


class _Kill(Callback):
    """Kills the process in the middle of an exchange."""

    def on_progress(self, event: ProgressEvent) -> None:
        if event.round == 2 and event.done == PARTICIPANTS // 2:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_run_that_is_resumed_ends_in_the_same_numbers(undisturbed: Path, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        tm.run(fleet(), out=tmp_path / "run", callbacks=[_Kill()])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(numbers(tmp_path / "run")) == 0
    tm.run(fleet(), out=tmp_path / "run", resume=True)
    assert numbers(tmp_path / "run") == numbers(undisturbed)
    with pytest.raises(tm.StorageError, match="lacks the state of round"):
        _resume_without_a_state(tmp_path)


def _resume_without_a_state(folder: Path) -> None:
    run = folder / "run"
    (run / "summary.json").unlink()
    name = next(iter(json.loads((run / "checkpoint" / "server.json").read_text())["states"]))
    for file in (run / "checkpoint" / "clients" / name).iterdir():
        file.unlink()
    tm.run(fleet(), out=run, resume=True)


def test_trial_runs_are_scaled_to_all_rounds_and_participants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of runs whose cost is start + rounds * (server + participants * client), the estimate finds that cost."""
    start, server, client = 3.0, 0.5, 0.02

    def trial(_: Recipe, asked: int, rounds: int) -> trial_run.RunCost:
        return trial_run.RunCost(start + rounds * (server + asked * client), 300e6)

    monkeypatch.setattr(trial_run, "_trial", trial)
    cost = trial_run.estimate_run(Recipe.load("crossdevice"))
    assert cost.cpu_seconds == pytest.approx(start + 10 * (server + 1000 * client))
    assert 300e6 <= cost.memory <= 330e6


@pytest.mark.slow
def test_a_trial_run_that_fails_says_why_and_one_that_ends_has_a_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("safetensors.py").write_text("a file of the current directory is no library")
    with pytest.raises(tm.TrustmixError, match=r"trial run with 32 participants failed: .*no/such/data"):
        trial_run._trial(Recipe.load("crossdevice", ["data.name=npz", "data.path=no/such/data.npz"]), 32, 1)
    cost = trial_run._trial(fleet(), 8, 1)
    assert cost.cpu_seconds > 0.5
    assert 50e6 < cost.memory < 5e9

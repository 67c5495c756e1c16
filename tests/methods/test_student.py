"""The server's student: one model in the end, under any rule, the same however often the run is interrupted."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import trustmix as tm
from trustmix import Recipe, TrustmixError
from trustmix.federation import ProgressEvent

SMALL = ["clients=4", "rounds=3", "split.samples_per_client=100", "split.classes_per_client=7", "public.samples=200"]
SMALL += ["student.name=mlp", "student.hidden=[32]", "student.epochs=30", "rule=suwa", "engine.mode=sequential"]


def lines(folder: Path) -> list[dict[str, Any]]:
    recorded = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in recorded]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("student") / "run"
    tm.run(Recipe.load("demo", SMALL), out=folder)
    return folder


def test_the_student_learns_and_the_saved_one_is_the_one_that_was_measured(undisturbed: Path) -> None:
    measured = [line["student_accuracy"] for line in lines(undisturbed)]
    assert measured[-1] > max(measured[0], 0.4)
    assert json.loads((undisturbed / "summary.json").read_text())["final_student_accuracy"] == measured[-1]
    data = tm.data.load("digits")
    model = tm.models.mlp(data.shape, data.classes, hidden=[32])
    model.load_state_dict(load_file(undisturbed / "models" / "student.safetensors"))
    accuracy = float((model(data.test.inputs).argmax(1) == data.test.labels).double().mean())
    assert accuracy == pytest.approx(measured[-1])


def test_the_student_changes_nothing_for_the_clients(undisturbed: Path) -> None:
    without = tm.run(Recipe.load("demo", [change for change in SMALL if not change.startswith("student")]))
    assert [line.accuracy for line in without.rounds] == [line["accuracy"] for line in lines(undisturbed)]
    assert {line.student_accuracy for line in without.rounds} == {None}


class InterruptAfter(tm.Callback):
    """Ctrl-C after so many events of progress."""

    def __init__(self, events: int) -> None:
        self.left = events

    def on_progress(self, event: ProgressEvent) -> None:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1


@pytest.mark.parametrize("point", [2, 7, 12])
def test_interrupted_at_any_client_it_ends_in_the_same_student(undisturbed: Path, tmp_path: Path, point: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        tm.run(Recipe.load("demo", SMALL), out=tmp_path / "cut", callbacks=[InterruptAfter(point)])
    tm.run(Recipe.load("demo", SMALL), out=tmp_path / "cut", resume=True)
    assert lines(tmp_path / "cut") == lines(undisturbed)
    files = [(folder / "models" / "student.safetensors").read_bytes() for folder in (tmp_path / "cut", undisturbed)]
    assert files[0] == files[1]


@pytest.mark.parametrize("rule", ["alone", "reference", "fedavg"])
def test_a_student_without_a_teacher_is_refused(rule: str) -> None:
    with pytest.raises(
        TrustmixError, match=rf"rule: student is not read by {rule}: it exchanges \w+; leave student out"
    ):
        Recipe.load("demo", [f"rule={rule}", "student.name=mlp"])


def test_a_student_that_cannot_be_built_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(TrustmixError, match='The model "mlp" could not be built'):
        tm.run(Recipe.load("demo", [*SMALL, "student.depth=3"]), out=tmp_path / "run")
    assert not (tmp_path / "run" / "rounds.jsonl").exists()
    with pytest.raises(TrustmixError, match='no model "mpl"'):
        Recipe.load("demo", ["student.name=mpl"])


def test_recipes_with_a_student_are_written_and_read_again() -> None:
    recipe = Recipe.load("demo", SMALL)
    assert "[student]" in recipe.toml()
    assert Recipe.load(recipe) == recipe
    assert Recipe.load("demo").student is None

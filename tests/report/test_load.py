"""Runs of run and sweep directories, grouped by task, method and seed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trustmix import TrustmixError
from trustmix.report.load import load_study
from trustmix.report.study import Study, Task

QUICK = ["clients=4", "rounds=2"]
Write = Callable[..., Any]


def test_a_sweep_has_a_cell_for_every_method_and_task_with_all_seeds(swept: Study) -> None:
    assert [task.name for task in swept.tasks] == ["k = 2", "k = 5"]
    assert [method.name for method in swept.methods] == ["alone", "AVG", "sUWA", "reference"]
    assert [[run.recipe.seed for run in cell.runs] for cell in swept.cells] == [[0, 1]] * 8


def test_runs_that_differ_in_method_share_a_task_and_are_named_by_what_differs(
    tmp_path: Path, run_directory: Write
) -> None:
    for name, change in {"one": "wire.up=uint8", "two": "wire.up=float32"}.items():
        run_directory(tmp_path / name, [*QUICK, change])
    study = load_study([tmp_path / "one", tmp_path / "two"])
    assert [cell.method.name for cell in study.cells] == ["sUWA, up uint8", "sUWA, up float32"]
    assert study.tasks == [Task({})]


def test_settings_that_differ_only_between_rules_are_not_in_a_methods_name(
    tmp_path: Path, run_directory: Write
) -> None:
    run_directory(tmp_path / "one", [*QUICK, "rule=avg"])
    run_directory(tmp_path / "two", [*QUICK, "rule=suwa", "wire.labels=set"])
    assert [cell.method.name for cell in load_study([tmp_path / "one", tmp_path / "two"]).cells] == ["AVG", "sUWA"]


def test_runs_that_are_alike_are_named_by_their_folders(tmp_path: Path, run_directory: Write) -> None:
    for name in ("one/suwa", "two/suwa"):
        run_directory(tmp_path / name, QUICK)
    study = load_study([tmp_path / "one/suwa", tmp_path / "two/suwa"])
    assert [cell.method.name for cell in study.cells] == [str(tmp_path / "one/suwa"), str(tmp_path / "two/suwa")]


def test_runs_of_a_sweep_without_a_round_are_listed_with_the_reason(tmp_path: Path, sweep_directory: Write) -> None:
    folder = sweep_directory(tmp_path / "sweep", {"rule": ["avg", "suwa"]}, 1, QUICK)
    (folder / "rule=avg" / "seed-0" / "rounds.jsonl").unlink()
    (folder / "rule=avg" / "seed-0.log").write_text("Traceback\nValueError: boom\n")
    assert load_study([folder]).missing == {"rule=avg/seed-0": "ValueError: boom"}
    (folder / "rule=suwa" / "seed-0" / "rounds.jsonl").unlink()
    with pytest.raises(TrustmixError, match="holds no finished round"):
        load_study([folder])
    (folder / "sweep.json").write_text("[]")
    with pytest.raises(TrustmixError, match=r"sweep\.json holds \[\] where an object"):
        load_study([folder])


def test_a_setting_may_have_braces_in_its_name() -> None:
    assert Task({"data.{x}": 1}).name == "{x} = 1"

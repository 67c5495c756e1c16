"""The model card and the page of how to repeat runs are made from run directories."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trustmix import storage
from trustmix.experiment.environment import append_environment, describe_environment, read_environments
from trustmix.report.load import load_study
from trustmix.report.page import write_report
from trustmix.report.record import model_cards, reproduction

Write = Callable[..., Any]


def test_the_card_states_figures_of_the_last_round_and_what_protects(tmp_path: Path, run_directory: Write) -> None:
    run = run_directory(tmp_path / "run", ["clients=4", "rounds=2", "rule=suwa"])
    (card,) = model_cards(load_study([run.path]))
    facts = dict(card.facts)
    last = run.rounds()[-1]
    assert facts["accuracy, all classes"].startswith(f"{100 * last.accuracy_mean:.1f} %")
    assert facts["accuracy, worst client"].startswith(f"{100 * min(last.accuracy.values()):.1f} %")
    assert facts["privacy"].startswith("no differential privacy")
    assert facts["guard"] == "off"  # as the demo's recipe has it
    assert "digits" in facts["trained on"]


def test_the_page_has_the_seeds_and_the_versions_of_each_run(tmp_path: Path, run_directory: Write) -> None:
    runs = [run_directory(tmp_path / f"run{seed}", ["clients=4", "rounds=2", f"seed={seed}"]).path for seed in (3, 5)]
    study = load_study(runs)
    (found,) = reproduction(study)
    facts = dict(found.facts)
    assert facts["seeds"] == "3, 5"
    assert f"torch {describe_environment()['torch']}" in facts["ran with"]
    page = write_report(study, tmp_path / "report.html").read_text()
    assert "Repeat these runs" in page
    assert facts["ran with"] in page


def test_a_run_that_goes_on_elsewhere_has_both_environments(tmp_path: Path) -> None:
    append_environment(tmp_path)
    append_environment(tmp_path)
    assert read_environments(tmp_path) == [describe_environment()]
    other = {**describe_environment(), "torch": "1.0"}
    storage.write_json(tmp_path / "environment.json", {"format": 1, "environments": [other]})
    append_environment(tmp_path)
    assert read_environments(tmp_path) == [other, describe_environment()]


def test_a_run_without_the_record_is_reported_without_it(tmp_path: Path, run_directory: Write) -> None:
    run = run_directory(tmp_path / "run", ["clients=4", "rounds=1"])
    (run.path / "environment.json").unlink()
    (found,) = reproduction(load_study([run.path]))
    assert dict(found.facts)["ran with"] == "versions and hardware were not recorded"

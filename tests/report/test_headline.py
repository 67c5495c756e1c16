"""The title of a report: a sentence made from the numbers, which claims no more than they show."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trustmix.experiment.run_directory import RunDirectory
from trustmix.report.headline import headline, subtitle, warnings
from trustmix.report.load import load_study
from trustmix.report.page import write_report
from trustmix.report.study import Cell, Study, Task

Write = Callable[..., Any]


def cells_named(study: Study, *names: str) -> Study:
    kept: list[Cell] = [c for c in study.cells if c.method.name in names and c.task == study.tasks[0]]
    return Study([Cell(Task({}), cell.method, cell.runs) for cell in kept])


def test_the_headline_is_made_from_the_numbers(swept: Study) -> None:
    best = {c.method.name: 100 * (c.best_accuracy.mean or 0) for c in swept.cells if c.task == swept.tasks[0]}
    both = headline(cells_named(swept, "alone", "AVG", "sUWA"))
    points = best["sUWA"] - best["AVG"]
    assert both == (
        f"sUWA brings 4 clients to {best['sUWA']:.1f} %, {points:.1f} points over AVG; "
        f"alone they reach {best['alone']:.1f} %."
    )
    assert headline(cells_named(swept, "sUWA")) == f"sUWA brings 4 clients to {best['sUWA']:.1f} % in 2 rounds."
    begins = f"With 2 classes per client, sUWA reaches {best['sUWA']:.1f} %, {points:.1f} points over AVG; with 5, "
    assert headline(swept).startswith(begins)
    assert subtitle(swept) == "digits · mlp · 4 clients · 2 rounds · 2 seeds"


def test_a_gain_within_the_deviation_over_seeds_is_not_claimed(swept: Study) -> None:
    suwa = next(cell for cell in swept.cells if cell.method.name == "sUWA")
    avg = next(cell for cell in swept.cells if cell.method.name == "AVG")
    alike = [Cell(Task({}), suwa.method, suwa.runs), Cell(Task({}), avg.method, suwa.runs)]
    assert "no further apart than seeds are" in headline(Study(alike))


def test_the_headline_of_a_sweep_over_sizes_names_the_smallest_and_the_largest(
    tmp_path: Path, sweep_directory: Write
) -> None:
    over = {"public.samples": [200, 100], "split.samples_per_client": [50, 80]}
    sweep = sweep_directory(tmp_path / "sweep", over, 1, ["clients=4", "rounds=1"])
    text = headline(load_study([sweep]))
    assert text.startswith("sUWA reaches ")
    assert "with 100 public and 50 private samples and " in text
    assert text.endswith("with 200 public and 80 private samples.")


def test_clients_that_take_in_less_than_half_of_the_teacher_are_a_warning(tmp_path: Path, run_directory: Write) -> None:
    runs = [run_directory(tmp_path / rule, ["clients=4", "rounds=3", f"rule={rule}"]) for rule in ("avg", "suwa")]
    study = load_study([run.path for run in runs])
    (sentence,) = warnings(study)
    assert sentence == "AVG: clients take in 35 % of the teacher; raise train.public_epochs, which is 5."
    report = write_report(study, tmp_path / "report.html").read_text()
    assert f'<p class="warning">{sentence}</p>' in report


def test_runs_without_an_agreement_are_no_warning(tmp_path: Path, run_directory: Write) -> None:
    assert warnings(load_study([run_directory(tmp_path / "alone", ["clients=4", "rounds=2", "rule=alone"]).path])) == []


def test_scores_near_chance_are_a_warning_for_rules_that_weigh_by_them(tmp_path: Path, run_directory: Write) -> None:
    rules = {"avg": "rule=avg", "suwa": "rule=suwa", "tau": "rule={ tau = 0.1 }", "trust": "rule=trust"}
    for name, rule in rules.items():
        run = run_directory(tmp_path / name, ["clients=4", "rounds=2", rule])
        lines = [replace(line, density_auc=0.52, agreement_mean=0.9) for line in run.rounds()]
        (run.path / "rounds.jsonl").write_text("".join(line.to_json() + "\n" for line in lines))
    found = {name: warnings(load_study([tmp_path / name])) for name in rules}
    assert found["avg"] == []
    chance = "the scores hardly tell a client's own classes from others (AUC 0.52, chance is 0.50)"
    for name in ("suwa", "tau"):
        (sentence,) = found[name]
        assert chance in sentence
        assert "density.kind = ratio is the better choice" in sentence
    (sentence,) = found["trust"]
    assert "density.kind = ratio" not in sentence  # it is the ratio already
    assert "more private samples" in sentence
    run = RunDirectory(tmp_path / "suwa")
    lines = [replace(line, density_auc=0.7) for line in run.rounds()]
    (run.path / "rounds.jsonl").write_text("".join(line.to_json() + "\n" for line in lines))
    assert warnings(load_study([run.path])) == []

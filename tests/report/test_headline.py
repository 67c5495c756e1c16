"""The title of a report: a sentence made from the numbers, which claims no more than they show."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from trustmix.experiment.run_directory import RunDirectory
from trustmix.federation import History
from trustmix.report.headline import headline, subtitle, warnings
from trustmix.report.load import load_study
from trustmix.report.page import write_report
from trustmix.report.study import Cell, Study, Task

Write = Callable[..., Any]


def cells_named(study: Study, *names: str) -> Study:
    kept: list[Cell] = [c for c in study.cells if c.method.name in names and c.task == study.tasks[0]]
    return Study([Cell(Task({}), cell.method, cell.runs) for cell in kept])


def with_accuracies(cell: Cell, accuracies: dict[int, float], name: str | None = None) -> Cell:
    """The cell with one run per seed, whose best round has that accuracy."""
    run = cell.runs[0]
    runs = [
        replace(
            run,
            recipe=run.recipe.model_copy(update={"seed": seed}),
            history=History([replace(run.last_round, accuracy_mean=accuracy)]),
        )
        for seed, accuracy in accuracies.items()
    ]
    return Cell(Task({}), replace(cell.method, name=name or cell.method.name), runs)


def pair(study: Study, ours: dict[int, float], theirs: dict[int, float]) -> Study:
    suwa = next(cell for cell in study.cells if cell.method.name == "sUWA")
    avg = next(cell for cell in study.cells if cell.method.name == "AVG")
    return Study([with_accuracies(suwa, ours), with_accuracies(avg, theirs)])


def test_a_gain_is_claimed_with_the_interval_of_the_paired_differences(swept: Study) -> None:
    study = pair(swept, {0: 0.60, 1: 0.80, 2: 0.70}, {0: 0.50, 1: 0.71, 2: 0.59})
    low, high = stats.ttest_rel([60, 80, 70], [50, 71, 59]).confidence_interval(0.95)
    assert (
        headline(study)
        == f"sUWA reaches 70.0 %, 10.0 points over AVG (95 % interval {low:.1f} to {high:.1f}, 3 seeds)."
    )


def test_a_gain_whose_interval_holds_zero_is_not_claimed(swept: Study) -> None:
    study = pair(swept, {0: 0.45, 1: 0.70, 2: 0.57}, {0: 0.49, 1: 0.40, 2: 0.42})
    text = headline(study)
    assert text.startswith("sUWA reaches 57.3 % and AVG 43.7 %; 3 seeds do not settle the difference of 13.7 points")
    assert " over AVG" not in text


def test_one_seed_is_stated_and_claims_nothing(swept: Study) -> None:
    assert (
        headline(pair(swept, {0: 0.6}, {0: 0.5}))
        == "sUWA reaches 60.0 % and AVG 50.0 %, 10.0 points apart with one seed."
    )


def test_only_seeds_that_both_have_are_compared(swept: Study) -> None:
    assert headline(pair(swept, {0: 0.6}, {1: 0.5})).endswith("and AVG 50.0 %, on different seeds.")
    text = headline(pair(swept, {0: 0.6, 1: 0.9}, {0: 0.5}))
    assert "10.0 points apart with one seed" in text


def test_label_sets_that_only_one_method_shares_are_stated(swept: Study) -> None:
    study = pair(swept, {0: 0.6}, {0: 0.5})
    run = study.cells[0].runs[0]
    wire = run.recipe.wire.model_copy(update={"labels": "set"})
    sharing = replace(run, recipe=run.recipe.model_copy(update={"wire": wire}))
    told = Study([replace(study.cells[0], runs=[sharing]), study.cells[1]])
    assert headline(told).endswith("with one seed; clients of sUWA also share their label sets.")


def test_the_headline_names_local_training_and_classes_per_client(swept: Study) -> None:
    best = {c.method.name: 100 * (c.best_accuracy.mean or 0) for c in swept.cells if c.task == swept.tasks[0]}
    both = headline(cells_named(swept, "alone", "AVG", "sUWA"))
    assert both.startswith(f"sUWA brings 4 clients to {best['sUWA']:.1f} %")
    assert both.endswith(f"; alone they reach {best['alone']:.1f} %.")
    assert headline(cells_named(swept, "sUWA")) == f"sUWA brings 4 clients to {best['sUWA']:.1f} % in 2 rounds."
    assert headline(swept).startswith(f"With 2 classes per client, sUWA reaches {best['sUWA']:.1f} %")
    assert subtitle(swept) == "digits · mlp · 4 clients · 2 rounds · 2 seeds"


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
    assert sentence == (
        "AVG: clients take in 35 % of the teacher; raise train.public_epochs, which is 5, or set train.stages = mixed, "
        "which forgets less from round to round."
    )
    report = write_report(study, tmp_path / "report.html").read_text()
    assert f'<p class="warning">{sentence}</p>' in report


@pytest.mark.parametrize("setting", ["train.stages=mixed", "privacy.epsilon=8"])
def test_mixed_stages_are_not_named_where_they_are_set_or_cannot_be(
    tmp_path: Path, run_directory: Write, setting: str
) -> None:
    run = run_directory(tmp_path / "run", ["clients=4", "rounds=2", "rule=avg", setting])
    lines = [replace(line, agreement_mean=0.2) for line in run.rounds()]
    (run.path / "rounds.jsonl").write_text("".join(line.to_json() + "\n" for line in lines))
    (sentence,) = warnings(load_study([run.path]))
    assert sentence == "AVG: clients take in 20 % of the teacher; raise train.public_epochs, which is 5."


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

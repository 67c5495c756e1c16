"""Runs sorted into tasks, methods and seeds, and the sentence made of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trustmix import TrustmixError
from trustmix.report.charts import Chart, Heatmap, Picture
from trustmix.report.headline import facts, headline
from trustmix.report.load import Cell, Study, Task, load_study
from trustmix.report.sections import sections

QUICK = ["clients=4", "rounds=2"]
Write = Callable[..., Any]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, sweep_directory: Write) -> Study:
    over = {"rule": ["alone", "avg", "suwa", "reference"], "split.classes_per_client": [2, 5]}
    return load_study([sweep_directory(tmp_path_factory.mktemp("sweep"), over, 2, QUICK)])


def pictures(study: Study) -> dict[str, list[tuple[int | None, Picture]]]:
    found: dict[str, list[tuple[int | None, Picture]]] = {}
    for section in sections(study):
        for task, picture in section.pictures:
            found.setdefault(picture.key, []).append((task, picture))
    return found


def chart(study: Study, key: str) -> Chart:
    picture = pictures(study)[key][0][1]
    assert isinstance(picture, Chart)
    return picture


def test_a_sweep_has_a_cell_for_every_method_and_task_with_all_seeds(swept: Study) -> None:
    assert [task.name for task in swept.tasks] == ["k = 2", "k = 5"]
    assert [method.name for method in swept.methods] == ["alone", "AVG", "sUWA", "reference"]
    assert [[run.recipe.seed for run in cell.runs] for cell in swept.cells] == [[0, 1]] * 8


def test_curves_are_means_over_seeds_with_their_deviation(swept: Study) -> None:
    curves = chart(swept, "accuracy_mean")
    cell = next(cell for cell in swept.cells if cell.method.name == "sUWA" and cell.task == swept.tasks[0])
    one, two = (run.history.rounds[1].accuracy_mean or 0 for run in cell.runs)
    point = next(series for series in curves.series if series.method.name == "sUWA").points[1]
    assert [point.x, point.y] == pytest.approx([2, (one + two) / 2])
    assert point.std == pytest.approx(abs(one - two) / 2**0.5)


def test_best_accuracy_is_drawn_against_k_with_the_reference_across(swept: Study) -> None:
    best = chart(swept, "best_against_k")
    assert [series.method.name for series in best.series] == ["alone", "AVG", "sUWA"]
    assert [[point.x for point in series.points] for series in best.series] == [[2, 5]] * 3
    ((method, level),) = best.levels
    runs = [run.history.best_accuracy or 0 for cell in swept.cells if cell.method == method for run in cell.runs]
    assert level.mean == pytest.approx(sum(runs) / 4)


def test_own_classes_are_compared_client_by_client_with_training_alone(swept: Study) -> None:
    cloud = chart(swept, "own_classes")
    assert [series.method.name for series in cloud.series] == ["AVG", "sUWA"]
    alone, suwa = (next(c for c in swept.cells if c.method.name == name) for name in ("alone", "sUWA"))
    first = cloud.series[1].points[0]
    assert first.x == alone.runs[0].last.local_accuracy["0"]
    assert (first.y, first.name) == (suwa.runs[0].last.local_accuracy["0"], "client 0, seed 0")
    gain = chart(swept, "own_classes_against_k").series[0].points
    assert [(point.x, point.y) for point in gain] == [(2, 0.0), (5, 0.0)]


def test_bytes_add_up_over_rounds_and_those_who_send_none_are_left_out(swept: Study) -> None:
    curve = chart(swept, "bytes")
    assert [series.method.name for series in curve.series] == ["AVG", "sUWA"]
    assert [point.x for point in curve.series[0].points] == [180_000, 360_000]


def test_the_sizes_of_both_sets_make_a_heat_map(tmp_path: Path, sweep_directory: Write) -> None:
    over = {"public.samples": [200, 100], "split.samples_per_client": [50, 80]}
    study = load_study([sweep_directory(tmp_path / "sweep", over, 1, [*QUICK, "rounds=1"])])
    ((_, heat),) = pictures(study)["ablation"]
    assert isinstance(heat, Heatmap)
    assert (heat.columns, heat.rows) == (["100", "200"], ["50", "80"])
    cell = next(c for c in study.cells if c.task.settings == {"public.samples": 200, "split.samples_per_client": 50})
    assert heat.figures[0][1].mean == cell.best.mean
    assert "50,200," in heat.csv()
    assert headline(study).startswith("sUWA reaches ")


def test_what_has_no_data_has_no_section(tmp_path: Path, run_directory: Write) -> None:
    run_directory(tmp_path / "run", [*QUICK, "rule=alone"])
    assert [section.key for section in sections(load_study([tmp_path / "run"]))] == ["rounds", "calibration"]


def test_runs_that_differ_in_method_share_a_task_and_are_named_by_what_differs(
    tmp_path: Path, run_directory: Write
) -> None:
    for name, change in {"one": "wire.up=uint8", "two": "wire.up=float32"}.items():
        run_directory(tmp_path / name, [*QUICK, change])
    study = load_study([tmp_path / "one", tmp_path / "two"])
    assert [cell.method.name for cell in study.cells] == ["sUWA, up uint8", "sUWA, up float32"]
    assert study.tasks == [Task({})]


def test_what_only_goes_with_a_rule_is_not_in_its_name(tmp_path: Path, run_directory: Write) -> None:
    run_directory(tmp_path / "one", [*QUICK, "rule=avg"])
    run_directory(tmp_path / "two", [*QUICK, "rule=suwa", "wire.labels=set"])
    assert [cell.method.name for cell in load_study([tmp_path / "one", tmp_path / "two"]).cells] == ["AVG", "sUWA"]


def test_runs_that_are_alike_are_told_apart_by_their_folders(tmp_path: Path, run_directory: Write) -> None:
    for name in ("one/suwa", "two/suwa"):
        run_directory(tmp_path / name, QUICK)
    study = load_study([tmp_path / "one/suwa", tmp_path / "two/suwa"])
    assert [cell.method.name for cell in study.cells] == [str(tmp_path / "one/suwa"), str(tmp_path / "two/suwa")]


def test_runs_of_a_sweep_that_never_came_to_a_round_are_told_with_the_reason(
    tmp_path: Path, sweep_directory: Write
) -> None:
    folder = sweep_directory(tmp_path / "sweep", {"rule": ["avg", "suwa"]}, 1, QUICK)
    (folder / "rule=avg" / "seed-0" / "rounds.jsonl").unlink()
    (folder / "rule=avg" / "seed-0.log").write_text("Traceback\nValueError: boom\n")
    assert load_study([folder]).missing == {"rule=avg/seed-0": "ValueError: boom"}
    (folder / "rule=suwa" / "seed-0" / "rounds.jsonl").write_text("")
    with pytest.raises(TrustmixError, match="holds no finished round"):
        load_study([folder])
    (folder / "sweep.json").write_text("[]")
    with pytest.raises(TrustmixError, match=r"sweep\.json holds \[\] where an object"):
        load_study([folder])


def cells_named(study: Study, *names: str) -> Study:
    kept: list[Cell] = [c for c in study.cells if c.method.name in names and c.task == study.tasks[0]]
    return Study([Cell(Task({}), cell.method, cell.runs) for cell in kept])


def test_the_headline_is_made_from_the_figures(swept: Study) -> None:
    best = {c.method.name: 100 * (c.best.mean or 0) for c in swept.cells if c.task == swept.tasks[0]}
    both = headline(cells_named(swept, "alone", "AVG", "sUWA"))
    points = best["sUWA"] - best["AVG"]
    assert both == (
        f"sUWA brings 4 clients to {best['sUWA']:.1f} %, {points:.1f} points over AVG; "
        f"alone they reach {best['alone']:.1f} %."
    )
    assert headline(cells_named(swept, "sUWA")) == f"sUWA brings 4 clients to {best['sUWA']:.1f} % in 2 rounds."
    begins = f"With 2 classes per client, sUWA reaches {best['sUWA']:.1f} %, {points:.1f} points over AVG; with 5, "
    assert headline(swept).startswith(begins)
    assert facts(swept) == "digits · mlp · 4 clients · 2 rounds · 2 seeds"


def test_a_gain_within_what_seeds_vary_is_not_claimed(swept: Study) -> None:
    suwa = next(cell for cell in swept.cells if cell.method.name == "sUWA")
    avg = next(cell for cell in swept.cells if cell.method.name == "AVG")
    alike = [Cell(Task({}), suwa.method, suwa.runs), Cell(Task({}), avg.method, suwa.runs)]
    assert "no further apart than seeds are" in headline(Study(alike))

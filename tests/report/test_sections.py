"""The figures of a report: their numbers, and which of them there are."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trustmix import Recipe
from trustmix.federation import History
from trustmix.report import write_report
from trustmix.report.charts import Chart, Heatmap, TaskFigure
from trustmix.report.load import load_study
from trustmix.report.sections import build_sections
from trustmix.report.study import Study

QUICK = ["clients=4", "rounds=2"]
Write = Callable[..., Any]


def figures(study: Study) -> dict[str, list[TaskFigure]]:
    found: dict[str, list[TaskFigure]] = {}
    for section in build_sections(study):
        for task, figure in section.figures:
            found.setdefault(figure.key, []).append((task, figure))
    return found


def chart(study: Study, key: str) -> Chart:
    figure = figures(study)[key][0][1]
    assert isinstance(figure, Chart)
    return figure


def test_curves_are_means_over_seeds_with_their_deviation(swept: Study) -> None:
    curves = chart(swept, "accuracy_mean")
    cell = next(cell for cell in swept.cells if cell.method.name == "sUWA" and cell.task == swept.tasks[0])
    one, two = (run.history.rounds[1].accuracy_mean or 0 for run in cell.runs)
    point = next(series for series in curves.series if series.method.name == "sUWA").points[1]
    assert [point.x, point.y] == pytest.approx([2, (one + two) / 2])
    assert point.std == pytest.approx(abs(one - two) / 2**0.5)


def test_best_accuracy_is_drawn_against_k_with_the_reference_as_a_level(swept: Study) -> None:
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
    assert first.x == alone.runs[0].last_round.local_accuracy["0"]
    assert (first.y, first.name) == (suwa.runs[0].last_round.local_accuracy["0"], "client 0, seed 0")
    gain = chart(swept, "own_classes_against_k").series[0].points
    assert [(point.x, point.y) for point in gain] == [(2, 0.0), (5, 0.0)]


def test_bytes_add_up_over_rounds_and_methods_that_send_none_are_left_out(swept: Study) -> None:
    curve = chart(swept, "bytes")
    assert [series.method.name for series in curve.series] == ["AVG", "sUWA"]
    assert [point.x for point in curve.series[0].points] == [180_000, 360_000]


def test_the_sizes_of_both_sets_make_a_heat_map(tmp_path: Path, sweep_directory: Write) -> None:
    over = {"public.samples": [200, 100], "split.samples_per_client": [50, 80]}
    study = load_study([sweep_directory(tmp_path / "sweep", over, 1, [*QUICK, "rounds=1"])])
    ((_, heat),) = figures(study)["ablation"]
    assert isinstance(heat, Heatmap)
    assert (heat.columns, heat.rows) == (["100", "200"], ["50", "80"])
    cell = next(c for c in study.cells if c.task.settings == {"public.samples": 200, "split.samples_per_client": 50})
    assert heat.values[0][1].mean == cell.best_accuracy.mean
    assert "50,200," in heat.to_csv()


def with_recalls(record: Any, clients: dict[str, list[float | None]], teacher: list[float | None]) -> Path:
    """A run whose last round has these recalls, and whose earlier rounds have others."""
    mean = [None if clients["0"][cls] is None else sum(r[cls] or 0 for r in clients.values()) / 2 for cls in range(10)]
    *earlier, last = record.rounds()
    lines = [replace(line, recall_mean=[0.125] * 10, teacher_recall=[0.125] * 10) for line in earlier]
    lines.append(replace(last, recall=clients, recall_mean=mean, teacher_recall=teacher))
    (record.path / "rounds.jsonl").write_text("".join(line.to_json() + "\n" for line in lines))
    return Path(record.path)


def test_recall_of_the_last_round_is_shown_by_the_names_of_classes(tmp_path: Path, run_directory: Write) -> None:
    first: list[float | None] = [0.9, 0.25, *[0.5] * 7, None]
    second: list[float | None] = [0.3, 0.75, *[0.5] * 7, None]
    teacher: list[float | None] = [1.0, *[0.5] * 9]
    suwa = with_recalls(run_directory(tmp_path / "suwa", [*QUICK, "rule=suwa"]), {"0": first, "1": second}, teacher)
    alone = with_recalls(run_directory(tmp_path / "alone", [*QUICK, "rule=alone"]), {"0": first, "1": first}, [])
    study = load_study([suwa, alone])
    maps = {figure.title: figure for _, figure in figures(study)["recall"] if isinstance(figure, Heatmap)}
    assert {title: heat.columns for title, heat in maps.items()} == {
        "Clients": ["alone", "sUWA"],
        "The worst client": ["alone", "sUWA"],
        "The teacher": ["sUWA"],
    }
    found = {
        title: {row: [value.mean for value in values] for row, values in zip(heat.rows, heat.values, strict=True)}
        for title, heat in maps.items()
    }
    assert list(found["Clients"]) == [f"class {cls}" for cls in reversed(range(10))], "the last row is drawn on top"
    assert found["Clients"]["class 0"] == pytest.approx([0.9, 0.6])
    assert found["The worst client"]["class 0"] == [0.9, 0.3]
    assert found["The worst client"]["class 1"] == [0.25, 0.25]
    assert found["Clients"]["class 9"] == found["The worst client"]["class 9"] == [None, None]
    assert found["The teacher"]["class 0"] == [1.0]
    assert maps["Clients"].to_csv().startswith("class,method,recall,std,n\n")
    page = (
        write_report(study, tmp_path / "report.html").read_text("utf-8").split('id="recall"')[1].split("</section")[0]
    )
    assert page.index(">class 0<") < page.index(">class 9<")
    assert "<b>60.0</b>" in page
    assert "<b>12.5</b>" not in page, "of an earlier round"


def test_recall_is_the_mean_over_seeds_and_classes_without_names_are_numbered(
    tmp_path: Path, run_directory: Write
) -> None:
    recalls: list[list[float | None]] = [[0.25 * (seed + 1)] * 10 for seed in range(2)]
    folders = [
        with_recalls(
            run_directory(tmp_path / str(seed), [*QUICK, "rule=alone", f"seed={seed}"]), {"0": one, "1": one}, []
        )
        for seed, one in enumerate(recalls)
    ]
    heat, worst = (figure for _, figure in figures(load_study(folders))["recall"])
    assert isinstance(heat, Heatmap)
    assert heat.rows == [str(cls) for cls in reversed(range(10))]
    assert [(value.mean, value.n) for (value,) in heat.values] == [(0.375, 2)] * 10
    assert worst.title == "The worst client"


def test_a_section_without_data_is_left_out(tmp_path: Path, run_directory: Write) -> None:
    run_directory(tmp_path / "run", [*QUICK, "rule=alone"])
    assert [section.key for section in build_sections(load_study([tmp_path / "run"]))] == ["rounds", "calibration"]


def test_a_run_whose_clients_send_no_accuracy_has_a_report_without_any(tmp_path: Path, run_directory: Write) -> None:
    record = run_directory(tmp_path / "run", QUICK)
    withheld = {"accuracy_mean": None, "local_accuracy_mean": None, "nll_mean": None, "ece_mean": None}
    lines = [replace(line, accuracy={}, local_accuracy={}, **withheld) for line in record.rounds()]
    (record.path / "rounds.jsonl").write_text("".join(line.to_json() + "\n" for line in lines))
    record.finish(History(lines), Recipe.load("demo").method)
    study = load_study([record.path])
    assert {"accuracy_mean", "local_accuracy_mean", "nll_mean"}.isdisjoint(figures(study))
    page = write_report(study, tmp_path / "report.html").read_text("utf-8")
    assert "None" not in page
    assert "nan" not in page.split("<main")[1].split("</main")[0].casefold()

"""Charts: places, ticks, names and colours in a page, and the files of figures for a paper."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from trustmix.cli import app
from trustmix.report.axes import Axis, make_axes
from trustmix.report.charts import Chart, Heatmap, Point, Series
from trustmix.report.figure_views import view_figure
from trustmix.report.figures import plot_figure
from trustmix.report.load import load_study
from trustmix.report.palette import PALETTE, assign_colours
from trustmix.report.rendering import render
from trustmix.report.study import MethodLabel
from trustmix.report.svg import LINE_HEIGHT, separate_labels
from trustmix.sweeps.tables import MeanStd

A, B = MethodLabel("avg", "AVG <1>", 2), MethodLabel("suwa", "sUWA", 4)
Write = Callable[..., Any]


def a_chart(**changes: Any) -> Chart:
    series = [
        Series(A, [Point(1, 0.2), Point(2, 0.4, 0.1)]),
        Series(B, [Point(1, 0.3), Point(2, 0.8, 0.05)]),
    ]
    return Chart(**{"key": "k", "title": "t", "x_label": "round", "y_label": "accuracy", "series": series, **changes})


def html_of(chart: Chart) -> str:
    return render("chart.html", view=view_figure(chart, {A: 2, B: 4}))


def svg_of(chart: Chart) -> ET.Element:
    found = re.search(r"<svg.*</svg>", html_of(chart))
    assert found
    return ET.fromstring(found[0])


def test_curves_lie_at_their_numbers_and_names_are_escaped() -> None:
    svg = svg_of(a_chart())
    _, y = make_axes(a_chart(), (46, 0), (240, 26))
    lines = [line.get("points", "").split() for line in svg.iter("polyline")]
    heights = [[float(place.split(",")[1]) for place in line] for line in lines]
    assert heights[0] == pytest.approx([y(0.2), y(0.4)], abs=0.1)
    assert heights[1] == pytest.approx([y(0.3), y(0.8)], abs=0.1)
    assert len(list(svg.iter("polygon"))) == 2
    assert {"AVG <1>", "sUWA"} <= {text.text for text in svg.iter("text")}
    assert [group.get("class") for group in svg.iter("g")] == ["curve c2", "curve c4"]


def test_the_numbers_of_a_chart_are_in_the_page() -> None:
    found = re.search(r'<script type="application/json">(.*?)</script>', html_of(a_chart()))
    assert found
    data = json.loads(found[1])
    assert [point[2:] for point in data["series"][1]["points"]] == [["1", "30.0 %"], ["2", "80.0 ± 5.0 %"]]
    assert data["series"][0]["name"] == "AVG <1>"


@given(st.lists(st.floats(0, 300), min_size=1, max_size=9))
def test_names_never_overlap_and_stay_in_order(places: list[float]) -> None:
    found = separate_labels(sorted(places), 12, 240)
    assert all(b - a >= LINE_HEIGHT - 1e-9 for a, b in pairwise(found))


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_and_inside(low: float, width: float) -> None:
    axis = Axis(low, low + width, 0, 1)
    assert len(axis.ticks) <= 11
    assert all(low - 1e-6 * width <= tick <= low + width * (1 + 1e-6) + 1e-9 for tick in axis.ticks)


def test_bytes_that_differ_much_are_drawn_on_a_logarithmic_axis() -> None:
    wide = [Series(A, [Point(1e5, 0.1), Point(1e8, 0.5)])]
    x, _ = make_axes(a_chart(series=wide, x_unit="megabytes"), (0, 300), (0, 1))
    assert x.log
    assert x(1e6) - x(1e5) == pytest.approx(100)


def test_every_method_has_a_colour_of_its_own_and_the_papers_rules_always_the_same() -> None:
    many = [
        MethodLabel("avg", "AVG", 2),
        *(MethodLabel("suwa", f"sUWA {n}", 4) for n in range(4)),
        MethodLabel("alone", "alone", 0),
    ]
    found = assign_colours(many)
    assert len(set(found.values())) == len(many)
    assert (found[many[0]], found[many[1]], found[many[-1]]) == (2, 4, 0)
    assert max(assign_colours([MethodLabel("x", str(n)) for n in range(30)]).values()) < len(PALETTE)


def test_a_colour_that_the_palette_does_not_have_counts_as_none() -> None:
    wrong, free = MethodLabel("x", "x", 99), MethodLabel("y", "y")
    assert assign_colours([wrong]) == {wrong: assign_colours([free])[free]}


@pytest.mark.slow
def test_figures_for_a_paper_are_the_same_bytes_every_time() -> None:
    heat = Heatmap("h", "title", "x", "y", ["1", "2"], ["3"], [[MeanStd(0.5, 0.1, 2), MeanStd.of([])]])
    for figure in (a_chart(levels=[(B, MeanStd(0.9, None, 1))]), heat):
        files = plot_figure(figure, {A: 2, B: 4})
        begins = {extension: data[:4] for extension, data in files.items()}
        assert begins == {"pdf": b"%PDF", "svg": b"<?xm", "png": b"\x89PNG"}
        assert plot_figure(figure, {A: 2, B: 4}) == files
    assert "sUWA" in plot_figure(a_chart(scatter=True), {A: 2, B: 4})["svg"].decode()


def test_figures_come_with_their_numbers(tmp_path: Path, run_directory: Write) -> None:
    run_directory(tmp_path / "run", ["clients=3", "rounds=1", "rule=alone"])
    options = ["--out", str(tmp_path / "r.html"), "--figures", str(tmp_path / "figures")]
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), *options])
    assert f"Figures: {tmp_path / 'figures'} (4, each as PDF, SVG, PNG and CSV)" in result.output.replace("\n", "")
    names = ("accuracy_mean", "local_accuracy_mean", "ece_mean", "nll_mean")
    wanted = {f"{name}.{extension}" for name in names for extension in ("pdf", "svg", "png", "csv")}
    assert {file.name for file in (tmp_path / "figures").iterdir()} == wanted
    head, line = (tmp_path / "figures" / "accuracy_mean.csv").read_text().splitlines()
    assert head == "method,name,round,accuracy,std"
    (cell,) = load_study([tmp_path / "run"]).cells
    assert line == f"alone,,1,{cell.best_accuracy.mean},"


def test_without_matplotlib_the_error_is_one_sentence(
    tmp_path: Path, run_directory: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_directory(tmp_path / "run", ["clients=3", "rounds=1", "rule=alone"])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--figures", str(tmp_path / "figures")])
    assert result.exit_code == 2
    assert result.stderr == 'Error: Drawing figures needs matplotlib: pip install "trustmix[figures]".\n'
    assert not (tmp_path / "figures").exists()

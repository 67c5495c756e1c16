"""Charts as SVG: places, ticks, names and colours; images and bytes as the page reads them."""

import base64
import io
import json
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from trustmix import storage
from trustmix.callbacks.trust_log import RoundTrust
from trustmix.cli import app
from trustmix.errors import TrustmixError
from trustmix.experiment.tables import MeanStd
from trustmix.report import trust_map
from trustmix.report.axes import Axis, make_axes
from trustmix.report.charts import Chart, Heatmap, Point, Series
from trustmix.report.figure_views import view_figure
from trustmix.report.figures import draw_chart
from trustmix.report.load import Method, load_study
from trustmix.report.palette import PALETTE, assign_colours
from trustmix.report.rendering import render
from trustmix.report.svg import LINE_HEIGHT, separate_labels

A, B = Method("avg", "AVG <1>", 2), Method("suwa", "sUWA", 4)
Write = Callable[..., Any]


def a_chart(**changes: Any) -> Chart:
    series = [
        Series(A, [Point(1, 0.2), Point(2, 0.4, 0.1)]),
        Series(B, [Point(1, 0.3), Point(2, 0.8, 0.05)]),
    ]
    return Chart(**{"key": "k", "title": "t", "x": "round", "y": "accuracy", "series": series, **changes})


def html_of(chart: Chart) -> str:
    return render("chart.html", view=view_figure(chart, {A: 2, B: 4}))


def svg_of(chart: Chart) -> ET.Element:
    found = re.search(r"<svg.*</svg>", html_of(chart))
    assert found
    return ET.fromstring(found[0])


def test_curves_lie_where_their_numbers_say_and_names_are_escaped() -> None:
    svg = svg_of(a_chart())
    _, y = make_axes(a_chart(), (46, 0), (240, 12))
    lines = [line.get("points", "").split() for line in svg.iter("polyline")]
    heights = [[float(place.split(",")[1]) for place in line] for line in lines]
    assert heights[0] == pytest.approx([y(0.2), y(0.4)], abs=0.1)
    assert heights[1] == pytest.approx([y(0.3), y(0.8)], abs=0.1)
    assert len(list(svg.iter("polygon"))) == 2
    assert {"AVG <1>", "sUWA"} <= {text.text for text in svg.iter("text")}
    assert [group.get("class") for group in svg.iter("g")] == ["curve c2", "curve c4"]


def test_the_numbers_stand_beside_the_drawing() -> None:
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
    scale = Axis(low, low + width, 0, 1)
    assert len(scale.ticks) <= 11
    assert all(low - 1e-6 * width <= tick <= low + width * (1 + 1e-6) + 1e-9 for tick in scale.ticks)


def test_bytes_that_differ_much_are_drawn_on_a_logarithmic_axis() -> None:
    wide = [Series(A, [Point(1e5, 0.1), Point(1e8, 0.5)])]
    x, _ = make_axes(a_chart(series=wide, x_unit="megabytes"), (0, 300), (0, 1))
    assert x.log
    assert x(1e6) - x(1e5) == pytest.approx(100)


def test_every_method_has_a_colour_of_its_own_and_the_papers_rules_always_the_same() -> None:
    many = [Method("avg", "AVG", 2), *(Method("suwa", f"sUWA {n}", 4) for n in range(4)), Method("alone", "alone", 0)]
    found = assign_colours(many)
    assert len(set(found.values())) == len(many)
    assert (found[many[0]], found[many[1]], found[many[-1]]) == (2, 4, 0)
    assert max(assign_colours([Method("x", str(n)) for n in range(30)]).values()) < len(PALETTE)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_png_files_that_others_read(channels: int) -> None:
    image = torch.randint(256, (channels, 5, 7), dtype=torch.uint8)
    read = np.asarray(Image.open(io.BytesIO(trust_map.png(image))))
    assert np.array_equal(read if channels == 3 else read[:, :, None], image.permute(1, 2, 0).numpy())


def unpacked(text: str, *shape: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(shape)


def test_the_page_gets_what_was_written_down(tmp_path: Path, run_directory: Write) -> None:
    run_directory(tmp_path / "run", ["clients=4", "rounds=3"])
    told = trust_map.trusted(load_study([tmp_path / "run"]))
    assert told is not None
    (run,) = told["runs"]
    wrote = RoundTrust.load(tmp_path / "run" / "trust" / "000002.safetensors")
    rows = [list(wrote.clients).index(client) for client in run["clients"]]
    assert run["rounds"] == [1, 2, 3]
    assert run["held"] == sorted(run["held"])
    trust = unpacked(run["trust"], 3, 4, 10)[1] / 255
    assert np.allclose(trust, wrote.trust[rows].float().numpy(), atol=0.003)
    assert np.array_equal(unpacked(run["votes"], 3, 4, 60)[1], wrote.votes[rows].numpy())
    assert np.array_equal(unpacked(run["top"], 3, 60, 3)[1][:, 0], wrote.teacher.argmax(1).numpy())
    truth = [sample["truth"] for sample in told["samples"][0]]
    sure = wrote.teacher[torch.arange(60), torch.tensor(truth)].float().numpy()
    assert np.allclose(unpacked(run["truth"], 3, 60)[1] / 255, sure, atol=0.003)


def test_what_would_be_too_much_is_thinned_evenly_and_then_left_out(
    tmp_path: Path, run_directory: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rule in ("avg", "suwa"):
        run_directory(tmp_path / rule, ["clients=4", "rounds=6", f"rule={rule}"])
    study = load_study([tmp_path / "avg", tmp_path / "suwa"])
    whole = trust_map.trusted(study)
    assert whole is not None
    pictures = sum(len(str(samples)) for samples in whole["samples"])
    size = sum(len(run[key]) for run in whole["runs"] for key in ("trust", "shares", "votes", "top", "chance", "truth"))
    monkeypatch.setattr(trust_map, "BUDGET", pictures + size // 2 + 100)
    thinned = trust_map.trusted(study)
    assert thinned is not None
    assert [run["rounds"] for run in thinned["runs"]] == [[2, 4, 6], [2, 4, 6]]
    monkeypatch.setattr(trust_map, "BUDGET", pictures + size // 12 + 100)
    fewer = trust_map.trusted(study)
    assert fewer is not None
    assert [run["rounds"] for run in fewer["runs"]] == [[6]]


def test_a_description_of_something_else_is_named(tmp_path: Path, run_directory: Write) -> None:
    run_directory(tmp_path / "run", ["clients=4", "rounds=1"])
    storage.write_tensors(tmp_path / "run" / "trust" / "samples.safetensors", {}, {})
    with pytest.raises(TrustmixError, match="does not describe public samples"):
        trust_map.trusted(load_study([tmp_path / "run"]))


def test_figures_for_a_paper_are_the_same_bytes_every_time() -> None:
    heat = Heatmap("h", "title", "x", "y", ["1", "2"], ["3"], [[MeanStd(0.5, 0.1, 2), MeanStd.of([])]])
    for picture in (a_chart(levels=[(B, MeanStd(0.9, None, 1))]), heat):
        files = draw_chart(picture, {A: 2, B: 4})
        assert {kind: data[:4] for kind, data in files.items()} == {"pdf": b"%PDF", "svg": b"<?xm", "png": b"\x89PNG"}
        assert draw_chart(picture, {A: 2, B: 4}) == files
    assert "sUWA" in draw_chart(a_chart(joined=False), {A: 2, B: 4})["svg"].decode()


def test_figures_come_with_their_numbers(tmp_path: Path, run_directory: Write) -> None:
    run_directory(tmp_path / "run", ["clients=3", "rounds=1", "rule=alone"])
    command = [
        "report",
        str(tmp_path / "run"),
        "--out",
        str(tmp_path / "r.html"),
        "--figures",
        str(tmp_path / "figures"),
    ]
    result = CliRunner().invoke(app, command)
    assert f"Figures: {tmp_path / 'figures'} (4, each as PDF, SVG, PNG and CSV)" in result.output.replace("\n", "")
    names = ("accuracy_mean", "local_accuracy_mean", "ece_mean", "nll_mean")
    wanted = {f"{name}.{kind}" for name in names for kind in ("pdf", "svg", "png", "csv")}
    assert {file.name for file in (tmp_path / "figures").iterdir()} == wanted
    head, line = (tmp_path / "figures" / "accuracy_mean.csv").read_text().splitlines()
    assert head == "method,name,round,accuracy,std"
    (cell,) = load_study([tmp_path / "run"]).cells
    assert line == f"alone,,1,{cell.best.mean},"


def test_without_matplotlib_figures_are_one_sentence(
    tmp_path: Path, run_directory: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_directory(tmp_path / "run", ["clients=3", "rounds=1", "rule=alone"])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--figures", str(tmp_path / "figures")])
    assert result.exit_code == 2
    assert result.stderr == 'Error: Figures need matplotlib: pip install "trustmix[figures]".\n'
    assert not (tmp_path / "figures").exists()

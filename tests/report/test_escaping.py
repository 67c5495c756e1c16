"""Texts from clients, recipes and data sets are shown as texts: none of them becomes part of a page's HTML."""

import json
from collections.abc import Callable
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from trustmix.experiment.theory import ROWS, Findings, MeasuredRun
from trustmix.report import load_study, theory_page, write_report
from trustmix.report.study import Cell, MethodLabel, Study, Task
from trustmix.theory.analysis import TAUS, Curve
from trustmix.theory.measurement import Measurement

Write = Callable[..., Any]
OpenPage = Callable[..., tuple[Page, list[str]]]

HOSTILE = "</script></style></title></pre><img src=x onerror=\"console.log('taken')\">&amp;'{{ 7 * 7 }}"


class Reader(HTMLParser):
    """Elements, texts and JSON data of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.data: list[Any] = []
        self.in_data = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.in_data = ("type", "application/json") in attrs

    def handle_endtag(self, tag: str) -> None:
        self.in_data = False

    def handle_data(self, data: str) -> None:
        if self.in_data:
            self.data.append(json.loads(data))
        else:
            self.text += data


@pytest.fixture(scope="module")
def study_page(tmp_path_factory: pytest.TempPathFactory, run_directory: Write) -> Path:
    """The page of a study in which every text that does not come from the program is hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    failed = {2: {f"{HOSTILE}1": HOSTILE}}
    for rule in ("alone", "suwa"):
        changes = ["clients=4", "rounds=2", f"rule={rule}", f"data.path={HOSTILE}"]
        run_directory(folder / rule, changes, failed=failed, hostile=HOSTILE)
    cells = load_study([folder / "alone", folder / "suwa"]).cells
    tasks = [Task({"data.path": f"{HOSTILE}{number}"}) for number in (1, 2)]
    methods = [MethodLabel(cell.method.rule, f"{HOSTILE}{cell.method.name}") for cell in cells]
    renamed = [Cell(task, method, c.runs) for task in tasks for method, c in zip(methods, cells, strict=True)]
    return write_report(Study(renamed, missing={HOSTILE: HOSTILE}), folder / "page.html")


@pytest.fixture(scope="module")
def hostile_theory_page(tmp_path_factory: pytest.TempPathFactory, run_directory: Write) -> Path:
    """The page about the theory on a run whose folder and setting have hostile names."""
    folder = tmp_path_factory.mktemp("theory")
    run_directory(folder / "run", ["clients=4", "rounds=1"])
    (run,) = load_study([folder / "run"]).runs
    numbers: dict[str, Any] = {field.name: 1 for field in fields(Measurement)}
    measurement = Measurement(**numbers)
    measured = MeasuredRun(Path(HOSTILE), run.recipe, run.history.rounds[-1], 0.5, measurement)
    findings = Findings([measured], [Curve(HOSTILE, 1, [0.1] * len(TAUS), [0.2] * len(TAUS))] * 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(theory_page, "read_measurements", lambda _: [measurement])
        return theory_page.write_theory_page(findings, folder / "page.html")


def is_injected(element: tuple[str, dict[str, str | None]]) -> bool:
    return element[0] == "img" or "onerror" in element[1]


def test_texts_of_a_study_stay_texts(study_page: Path) -> None:
    page = Reader(study_page.read_text())
    assert not any(map(is_injected, page.elements))
    failures = page.text[page.text.rindex("clients left out") :]
    assert failures.count(f"{HOSTILE}1{HOSTILE}") == 4  # a client and the reason beside it, in four runs
    recipe = load_study([study_page.parent / "suwa"]).runs[0].recipe
    assert recipe.data.path == HOSTILE
    assert recipe.toml() in page.text
    assert f"path = {HOSTILE}1" in page.text
    labels = [attributes["aria-label"] or "" for tag, attributes in page.elements if tag == "svg"]
    assert any(f"{HOSTILE}sUWA ends at" in label for label in labels)


def test_texts_for_the_script_of_a_study_stay_texts(study_page: Path) -> None:
    *charts, trust = Reader(study_page.read_text()).data
    names = {series["name"] for chart in charts for series in chart["series"]}
    assert names == {f"{HOSTILE}alone", f"{HOSTILE}sUWA"}
    assert trust["samples"][0][0]["text"] == HOSTILE
    assert trust["runs"][0]["classes"][3] == f"{HOSTILE}class 3"
    assert trust["runs"][0]["clients"][0] == f"{HOSTILE}0"


def test_texts_of_the_theory_stay_texts(hostile_theory_page: Path) -> None:
    page = Reader(hostile_theory_page.read_text())
    assert not any(map(is_injected, page.elements))
    assert page.text.count(f"{HOSTILE}: From AVG to UWA") == 2
    assert page.text.count(HOSTILE) == 4  # in the sentence about each of two curves, and above its charts
    *_, rounds, trust = page.data
    assert rounds["series"][0]["name"] == Path(HOSTILE).name
    assert trust is None


def test_every_figure_of_the_theory_is_explained_where_it_stands(hostile_theory_page: Path) -> None:
    heads = [head for head, _ in ROWS]
    assert sorted(theory_page.MEANINGS) == sorted(heads)
    text = " ".join(Reader(hostile_theory_page.read_text()).text.split())
    for head in heads:
        assert " ".join(theory_page.MEANINGS[head].split()) in text.partition(head)[2]


@pytest.mark.parametrize("name", ["study_page", "hostile_theory_page"])
def test_a_browser_shows_hostile_texts_and_runs_nothing(
    open_page: OpenPage, request: pytest.FixtureRequest, name: str
) -> None:
    page, faults = open_page(request.getfixturevalue(name))
    assert page.locator("[onerror]").count() == 0
    assert "onerror" in page.locator("main").inner_text()
    assert faults == []


def test_a_browser_shows_hostile_names_in_the_trust_map_and_in_the_samples(
    open_page: OpenPage, study_page: Path
) -> None:
    page, faults = open_page(study_page)
    assert page.locator("#cards blockquote").first.inner_text() == HOSTILE
    assert HOSTILE in page.locator("#cards .voters li").first.inner_text()
    page.locator("#map .cell").first.hover(force=True)  # a frame may lie over the cell
    assert HOSTILE in page.locator(".tip").inner_text()
    assert faults == []

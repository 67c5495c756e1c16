"""The page in a real browser: a sweep of 20 clients and 50 rounds, and a run with failures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from trustmix.report import load_study, write_report

Write = Callable[..., Any]
OpenPage = Callable[..., tuple[Page, list[str]]]


@pytest.fixture(scope="module")
def report_file(tmp_path_factory: pytest.TempPathFactory, sweep_directory: Write) -> Path:
    folder = tmp_path_factory.mktemp("page")
    over = {"rule": ["alone", "avg", "suwa", "reference"], "split.classes_per_client": [2, 5]}
    sweep = sweep_directory(folder / "sweep", over, 1, ["clients=20", "rounds=50"])
    return write_report(load_study([sweep]), folder / "report.html")


@pytest.fixture(scope="module")
def shown(open_page: OpenPage, report_file: Path) -> tuple[Page, list[str]]:
    return open_page(report_file, viewport={"width": 1200, "height": 900})


def texts(page: Page, selector: str) -> list[str]:
    return [text.strip() for text in page.locator(selector).all_text_contents()]


def test_a_sweep_of_twenty_clients_and_fifty_rounds_is_one_light_file(report_file: Path) -> None:
    assert report_file.stat().st_size < 10_000_000
    assert [file.name for file in report_file.parent.iterdir() if file.is_file()] == ["report.html"]


def test_every_section_is_there_and_every_figure_is_drawn(shown: tuple[Page, list[str]]) -> None:
    page, faults = shown
    keys = ["classes", "rounds", "own", "recall", "bytes", "concentration", "trust", "samples", "calibration"]
    keys += ["card", "reproduce", "recipe"]
    assert page.evaluate("[...document.querySelectorAll('main > section')].map(s => s.id)") == keys
    for svg in page.locator("figure:visible svg").all():
        assert svg.locator("polyline, circle, rect").count() > 1
        box = svg.bounding_box()
        assert box
        assert box["height"] > 100
    assert texts(page, "h1")[0].startswith("With 2 classes per client, sUWA reaches ")
    assert faults == []


def test_another_setting_shows_other_figures(shown: tuple[Page, list[str]]) -> None:
    page, faults = shown
    curve = "figure.accuracy_mean:visible polyline >> nth=0"
    before = page.locator(curve).get_attribute("points")
    page.get_by_label("Show the setting").select_option("k = 5")
    assert page.locator(curve).get_attribute("points") != before
    assert page.locator("figure.accuracy_mean:visible").count() == 1
    page.get_by_label("Show the setting").select_option("k = 2")
    assert faults == []


def test_the_slider_moves_the_trust_map_and_the_samples_by_keyboard(shown: tuple[Page, list[str]]) -> None:
    page, faults = shown
    slider = page.locator("#trust").get_by_label("Round")
    depth = "[...document.querySelectorAll('#map .cell')].map(cell => cell.getAttribute('fill-opacity')).join()"
    summary = page.locator("#trust-summary")
    assert "In round 50, " in summary.inner_text()
    last, votes = page.evaluate(depth), texts(page, "#cards")
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    assert "In round 47, " in summary.inner_text()
    assert page.evaluate(depth) != last
    assert texts(page, "#cards") != votes
    assert page.locator("#samples").get_by_label("Round").input_value() == slider.input_value()
    assert page.locator("#map .cell").count() == 20 * 10
    assert page.locator("#map .held").count() == 20 * 2
    assert faults == []


def test_samples_are_sorted_by_disagreement_and_by_the_teachers_error(shown: tuple[Page, list[str]]) -> None:
    page, faults = shown

    def values(name: str) -> list[float]:
        return [float(value) for value in page.evaluate(f"[...cards.children].map(card => card.dataset.{name})")]

    page.get_by_role("button", name="Show all 60").click()
    disputed = values("disputed")
    assert disputed == sorted(disputed, reverse=True)
    button = page.get_by_role("button", name="teacher error")
    button.focus()
    page.keyboard.press("Enter")
    wrongest = values("wrong")
    assert wrongest == sorted(wrongest, reverse=True)
    assert button.get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="draw").click()
    assert values("sample") == list(range(60))
    assert page.locator("#cards img").count() == 60
    assert all(
        page.evaluate("[...document.querySelectorAll('#cards img')].slice(0, 3).map(i => i.naturalWidth === 32)")
    )
    assert faults == []


def test_another_run_is_chosen_for_map_and_samples_together(shown: tuple[Page, list[str]]) -> None:
    page, _ = shown
    choices = texts(page, "#trust select option")
    assert choices == ["sUWA, k = 2", "AVG, k = 2", "sUWA, k = 5", "AVG, k = 5"]
    page.locator("#samples").get_by_label("Run").select_option("AVG, k = 5")
    assert page.locator("#trust select").evaluate("select => select.selectedOptions[0].text") == "AVG, k = 5"


def test_every_control_is_reached_by_the_tabulator_and_has_a_name(shown: tuple[Page, list[str]]) -> None:
    page, _ = shown
    page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
    controls = page.evaluate(
        "[...document.querySelectorAll('select, input, button')].filter(node => node.offsetParent)"
        ".map(node => [[...document.querySelectorAll('*')].indexOf(node), (node.labels?.[0] ?? node).textContent])"
    )
    assert len(controls) >= 9
    assert all(place in reached and name.strip() for place, name in controls)


def test_numbers_of_a_chart_open_as_a_table_and_are_shown_under_the_pointer(shown: tuple[Page, list[str]]) -> None:
    page, faults = shown
    chart = page.locator("figure.best_against_k")
    chart.locator("summary").click()
    chart.locator("tr").last.wait_for()  # the table is made when it is opened
    head, *rows = chart.locator("tr").all()
    assert head.inner_text().split("\t") == ["classes per client, k", "alone", "AVG", "sUWA"]
    assert [row.inner_text().split("\t")[0] for row in rows] == ["2", "5"]
    chart.locator("svg").hover(position={"x": 70, "y": 100})
    assert page.locator(".tip").inner_text().startswith("classes per client, k 2")
    assert rows[0].inner_text().split("\t")[3] in page.locator(".tip").inner_text()
    assert faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_the_screen_and_colours_follow_the_system(
    open_page: OpenPage, report_file: Path, scheme: str
) -> None:
    page, faults = open_page(report_file, viewport={"width": 375, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    paper, ink = page.evaluate(
        "['background-color', 'color'].map(n => getComputedStyle(document.body).getPropertyValue(n))"
    )
    light = [sum(map(int, colour[4:-1].split(","))) for colour in (paper, ink)]
    assert (light[0] > light[1]) == (scheme == "light")
    assert faults == []


def test_failures_are_listed_with_the_reason_and_a_reason_is_no_html(
    open_page: OpenPage, tmp_path: Path, run_directory: Write
) -> None:
    reason = "<script>console.log('taken')</script> late & lost"
    run_directory(tmp_path / "run", ["clients=4", "rounds=2"], failed={2: {"1": reason, "3": reason}})
    page, faults = open_page(write_report(load_study([tmp_path / "run"]), tmp_path / "report.html"))
    (row,) = page.locator("#failures tr").all()[1:]
    assert row.inner_text().split("\t") == ["sUWA", "2", "1, 3", reason]
    page.get_by_text("sUWA", exact=True).last.click()
    assert 'rule = "suwa"' in page.locator("#recipe pre").inner_text()
    assert faults == []


def test_every_chart_has_labels_on_both_axes_and_a_tick_at_the_first_round(shown: tuple[Page, list[str]]) -> None:
    page, _ = shown
    for svg in page.locator("figure > svg").all():
        labels = svg.locator("text.axis").all_text_contents()
        assert len(labels) == 2
        assert labels[0].endswith(" →")
        assert labels[1].startswith("↑ ")
    ticks = page.locator("figure.accuracy_mean:visible svg text[text-anchor=middle]").all_text_contents()
    assert ticks[0] == "1"
    assert ticks[-1] == "50"


def test_bars_of_trust_have_one_scale_and_shares_are_not_called_probabilities(shown: tuple[Page, list[str]]) -> None:
    page, _ = shown
    for voter in page.locator(".voters li").all()[:12]:
        share = float(voter.inner_text().split("%")[0].split()[-1])
        bar, whole = (voter.locator(part).bounding_box() for part in ("i", ".bar"))
        assert bar
        assert whole
        assert bar["width"] / whole["width"] == pytest.approx(share / 100, abs=0.02)
    card = page.locator(".card").first.inner_text()
    assert "probability" in card
    assert "shares of trust" in card


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen_and_axe_finds_nothing_serious(
    scheme: str, width: int, open_page: OpenPage, report_file: Path
) -> None:
    page, faults = open_page(
        report_file, viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for details in page.locator("details").all():
        details.evaluate("node => { node.open = true; }")
    found = Axe().run(page).response["violations"]
    serious = [
        (one["id"], one["nodes"][0]["html"], one["nodes"][0]["failureSummary"])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert faults == []


def test_all_that_can_be_operated_or_scrolled_is_reached_by_the_tab_key(shown: tuple[Page, list[str]]) -> None:
    page, _ = shown
    wanted = page.evaluate(
        "() => [...document.querySelectorAll('a[href], button, select, input, summary, .scroll')]"
        ".filter(node => node.checkVisibility()).length"
    )
    page.evaluate("document.body.focus()")
    reached = set()
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "() => { const all = [...document.querySelectorAll('*')]; return all.indexOf(document.activeElement); }"
            )
        )
    assert len(reached) >= wanted

"""The page of a deployment: who was there in each round, and accuracies called what they are."""

from dataclasses import replace
from pathlib import Path

from trustmix.experiment.run_directory import RunDirectory
from trustmix.federation import History, Round
from trustmix.report import load_study, write_report
from trustmix.report.timeline import build_timeline
from trustmix.settings.recipe import Recipe

FIRST = Round(1, "trust", participants=["north"], accuracy={"north": 0.75}, accuracy_mean=0.75, own_test=["north"])
ROUNDS = [
    replace(FIRST, failed={"south": "not connected"}, absence={"south": "absent"}, refused={"<b>east": "wrong class"}),
    replace(FIRST, round=2, failed={"south": "no answer within 5 s"}, absence={"south": "late"}),
    replace(FIRST, round=3, participants=["north", "south"], late={"south": 1}),
]


def write_served_run(folder: Path, data: dict[str, object], lines: list[Round] = ROUNDS) -> RunDirectory:
    recipe = Recipe.load({"data": data, "clients": 2, "rounds": 3, "engine": {"name": "flower"}})
    record = RunDirectory(folder)
    with record.begin(recipe, overwrite=False):
        for line in lines:
            record.append(line)
        record.finish(History(lines), recipe.method)
    return record


def test_a_timeline_shows_who_took_part_was_late_absent_or_refused_by_round(tmp_path: Path) -> None:
    record = write_served_run(tmp_path / "run", {"name": "shared", "classes": ["healthy", "ill"]})
    timeline = build_timeline(load_study([record.path]).runs[0])
    found = {row.client: "".join(symbol for symbol, _ in row.cells) for row in timeline.rows}
    assert found == {"north": "●●●", "south": "–◌◐", "<b>east": "⊘"}
    assert timeline.rows[2].cells[1][1] == "south, round 2: late: no answer within 5 s"
    assert [row.accuracy for row in timeline.rows] == ["–", "75.0 % on its own test data", "–"]


def test_a_client_that_ends_below_what_it_had_alone_is_named(
    tmp_path: Path,
) -> None:
    lines = [replace(ROUNDS[0], local_accuracy={"north": 0.9}), *ROUNDS[1:]]
    record = write_served_run(tmp_path / "run", {"name": "shared", "classes": ["healthy", "ill"]}, lines)
    rows = {row.client: row.accuracy for row in build_timeline(load_study([record.path]).runs[0]).rows}
    assert rows["north"] == "75.0 % on its own test data, below the 90.0 % it had alone in round 1"


def test_a_report_of_a_deployment_invents_no_split_and_names_whose_test_data_it_measured(tmp_path: Path) -> None:
    record = write_served_run(tmp_path / "run", {"name": "shared", "classes": ["healthy", "ill"]})
    text = write_report(load_study([record.path]), tmp_path / "page.html").read_text()
    assert "Who was there" in text
    assert 'aria-label="south, round 2: late: no answer within 5 s"' in text
    for symbol, words in (("◌", "no answer in time"), ("–", "not connected")):
        assert f'<span class="whole">{symbol} {words}</span>' in text
    assert "&lt;b&gt;east" in text
    assert "On each node&#39;s own test data" in text or "On each node's own test data" in text
    assert "classes each" not in text
    assert "2 clients" in text

"""The examples run, and show what they say they show."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def output(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [name])
    entries = {rule: RULES.get(rule) for rule in RULES.names()}
    monkeypatch.setattr(RULES, "_entries", entries)  # a rule that an example registers goes with it
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def percents(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+) %", text)]


def test_mixing_arrays_by_density_beats_averaging_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    average, suwa, _ = percents(output("mix_arrays.py", tmp_path, monkeypatch, capsys))
    assert suwa > average


def test_a_federation_of_own_models_and_data_learns_all_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = output("own_model_and_data.py", tmp_path, monkeypatch, capsys).splitlines()
    assert percents(lines[-1])[0] > percents(lines[0])[0] + 20


def test_an_own_rule_is_run_by_its_name_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = output("own_rule.py", tmp_path, monkeypatch, capsys)
    assert [line.split()[0] for line in text.splitlines()] == ["avg", "believe-the-sure", "suwa"]
    assert len(percents(text)) == 3


def test_clients_of_mixed_architectures_learn_from_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [percents(line) for line in output("mixed_architectures.py", tmp_path, monkeypatch, capsys).splitlines()[1:]]
    assert len(rows) == 3
    assert sum(row[1] for row in rows) > sum(row[0] for row in rows)


def test_a_run_directory_becomes_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output("read_a_run.py", tmp_path, monkeypatch, capsys)
    lines = (tmp_path / "rounds.csv").read_text().splitlines()
    assert lines[0].startswith("round,mean,teacher,kB_up,client 0")
    assert [line.split(",")[0] for line in lines[1:]] == ["1", "2", "3", "4"]


def test_no_example_is_left_out() -> None:
    told = re.findall(r'output\("(\w+\.py)"', Path(__file__).read_text())
    assert sorted(told) == sorted(file.name for file in EXAMPLES.glob("*.py"))

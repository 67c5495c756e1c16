"""Every example runs as a script, and shows what it promises."""

import io
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def output(name: str, folder: Path) -> str:
    """What an example prints when it is run as a script in a folder of its own, without errors and warnings."""
    printed, complaints = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(complaints):
        patch.chdir(folder)
        patch.setattr(sys, "argv", [name])
        patch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
        patch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert complaints.getvalue() == ""
    return printed.getvalue()


def test_an_example_is_a_script(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "mix_arrays.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == output("mix_arrays.py", tmp_path)


def percents(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+) %", text)]


def test_mixing_arrays_by_density_beats_averaging_them(tmp_path: Path) -> None:
    average, suwa, _ = percents(output("mix_arrays.py", tmp_path))
    assert suwa > average


def test_a_federation_of_own_models_and_data_learns_all_classes(tmp_path: Path) -> None:
    lines = output("own_model_and_data.py", tmp_path).splitlines()
    assert percents(lines[-1])[0] > percents(lines[0])[0] + 20


def test_an_own_rule_is_run_by_its_reference_beside_the_others(tmp_path: Path) -> None:
    text = output("own_rule.py", tmp_path)
    assert [line.split()[0] for line in text.splitlines()] == ["avg", "own_rule:BelieveTheSure", "suwa"]
    _, own, suwa = percents(text)
    assert suwa > own > 10


def test_an_own_density_is_run_by_its_reference_and_separates_own_classes(tmp_path: Path) -> None:
    lines = output("own_density.py", tmp_path).splitlines()
    assert [line.split()[0] for line in lines] == ["gaussians", "own_density:NearestNeighbours"]
    for line in lines:
        assert percents(line)[0] > 10
        assert float(line.split()[-2]) > 0.8


def test_clients_of_mixed_architectures_learn_from_each_other(tmp_path: Path) -> None:
    rows = [percents(line) for line in output("mixed_architectures.py", tmp_path).splitlines()[1:]]
    assert len(rows) == 3
    assert sum(row[1] for row in rows) > sum(row[0] for row in rows)


def test_a_run_directory_becomes_a_table(tmp_path: Path) -> None:
    output("read_a_run.py", tmp_path)
    lines = (tmp_path / "rounds.csv").read_text().splitlines()
    assert lines[0].startswith("round,mean,teacher,kB_up,client 0")
    assert [line.split(",")[0] for line in lines[1:]] == ["1", "2", "3", "4"]


def test_a_tree_of_servers_gives_the_teacher_of_one_and_its_bytes_do_not_grow_with_clients(tmp_path: Path) -> None:
    first, second = output("tree_of_servers.py", tmp_path).splitlines()
    assert first.startswith("100 clients below 4 edges")
    assert float(first.split()[-1]) < 1e-6
    many, few = re.findall(r"\d+", second)
    assert many == few


@pytest.mark.parametrize("name", ["own_rule.py", "own_density.py"])
def test_something_of_ones_own_takes_one_file_of_at_most_forty_lines(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) <= 40


def test_no_example_is_left_out() -> None:
    tested = set(re.findall(r'output\("(\w+\.py)"', Path(__file__).read_text()))
    assert sorted(tested) == sorted(file.name for file in EXAMPLES.glob("*.py"))

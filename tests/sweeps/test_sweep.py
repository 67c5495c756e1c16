"""Sweeps as real processes: resumable after any death, careful with what is there, honest about what failed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

import trustmix as tm
from trustmix import Recipe, TrustmixError, storage
from trustmix.cli import app
from trustmix.experiment.run_directory import RunDirectory
from trustmix.federation import ProgressCallback, ProgressEvent
from trustmix.sweeps import worker as sweep_worker
from trustmix.sweeps.grid import expand_grid, parse_over, parse_seeds, slug
from trustmix.sweeps.schedule import order_runs

FIXED = ["clients=5", "rounds=2", "split.samples_per_client=40", "public.samples=200"]
ENGINE = ["engine.mode=sequential", "engine.precision=float32", "engine.device=cpu"]
SETS = [part for setting in [*FIXED, *ENGINE] for part in ("--set", setting)]
RULES = ["--over", "rule=avg,suwa"]


def command(out: Path, *arguments: str) -> list[str]:
    return ["sweep", "demo", *SETS, "--out", str(out), *arguments]


def call(out: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, command(out, *arguments))


def start(out: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "trustmix.cli", *command(out, *arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore it
    )


def processes_in(folder: Path) -> list[str]:
    """The command lines of all processes that mention the folder."""
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(folder) in line]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A sweep of two rules and two seeds that nothing disturbed."""
    folder = tmp_path_factory.mktemp("sweeps") / "finished"
    return folder, call(folder, *RULES, "--seeds", "2")


def test_a_sweep_leaves_ordinary_runs_and_a_table(finished: tuple[Path, Any]) -> None:
    folder, answer = finished
    assert answer.exit_code == 0, answer.output
    means = {}
    for rule in ("avg", "suwa"):
        best = []
        for seed in (0, 1):
            record = folder / f"rule={rule}" / f"seed-{seed}"
            written = Recipe.load(record / "recipe.toml")
            assert (written.rule, written.seed, written.clients) == (rule, seed, 5)
            best.append(json.loads((record / "summary.json").read_text())["best_accuracy"])
        mean, std = sum(best) / 2, abs(best[0] - best[1]) / 2**0.5
        means[rule] = (mean, f"{100 * mean:.1f} ± {100 * std:.1f}")
    winner = max(means, key=lambda rule: means[rule][0])
    shown = {rule: f"**{text}**" if rule == winner else text for rule, (_, text) in means.items()}
    table = f"| rule | accuracy |\n| --- | ---: |\n| AVG | {shown['avg']} |\n| sUWA | {shown['suwa']} |\n"
    assert (folder / "table.md").read_text().startswith(table)
    assert table in answer.stdout
    assert "\\textbf{" + means[winner][1].replace("±", "$\\pm$") + "}" in (folder / "table.tex").read_text()
    assert len((folder / "table.csv").read_text().splitlines()) == 3
    assert len((folder / "runs.csv").read_text().splitlines()) == 5
    assert not list(folder.glob("*/*.log"))


def test_runs_that_begin_alike_play_the_first_stage_once_and_leave_it_to_none(finished: tuple[Path, Any]) -> None:
    folder, _ = finished
    trained = {
        f"{cell.name}/seed-{seed}": "train" in RunDirectory(cell / f"seed-{seed}").rounds()[0].seconds
        for cell in folder.glob("rule=*")
        for seed in (0, 1)
    }
    assert trained == {
        "rule=avg/seed-0": True,
        "rule=suwa/seed-0": False,
        "rule=avg/seed-1": True,
        "rule=suwa/seed-1": False,
    }
    assert list((folder / "first-stages").iterdir()) == []  # models are not kept longer than they are needed


def test_every_run_that_ends_is_a_line(finished: tuple[Path, Any]) -> None:
    lines = re.findall(r"^(\d)/4 rule=(avg|suwa) seed (\d): \d+\.\d %, \d+ s$", finished[1].stdout, re.MULTILINE)
    assert [line[0] for line in lines] == ["1", "2", "3", "4"]
    assert {line[1:] for line in lines} == {("avg", "0"), ("avg", "1"), ("suwa", "0"), ("suwa", "1")}


def test_the_same_sweep_again_only_tells_its_table(finished: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)  # nothing may be started
    answer = call(finished[0], *RULES, "--seeds", "2")
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.startswith("| rule | accuracy |")
    assert call(finished[0], *RULES, "--seeds", "2", "--quiet").output == ""


def test_a_seed_and_a_value_can_be_added_and_old_results_are_kept(finished: tuple[Path, Any], tmp_path: Path) -> None:
    folder = tmp_path / "more"
    shutil.copytree(finished[0], folder)
    before = {file: file.stat().st_mtime_ns for file in folder.glob("*/*/summary.json")}
    answer = call(folder, "--over", "rule=uwa,avg,suwa", "--seeds", "1,0")
    assert answer.exit_code == 0, answer.output
    assert re.findall(r"^(\d/\d) rule=(\w+) seed", answer.stdout, re.MULTILINE) == [("5/6", "uwa"), ("6/6", "uwa")]
    assert all(file.stat().st_mtime_ns == then for file, then in before.items())
    assert [line.split(" | ")[0] for line in answer.stdout.splitlines() if "±" in line][:3] == [
        "| UWA",
        "| AVG",
        "| sUWA",
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([*RULES, "--seeds", "1"], r"holds a sweep with rule=avg/seed-1, which this one leaves out; keep it in"),
        (["--over", "rule=avg,uwa", "--seeds", "2"], r"holds a sweep with rule=suwa/seed-0, which this one leaves out"),
        (
            [*RULES, "--seeds", "2", "--set", "rounds=3"],
            r"seed-0 was begun with rounds = 2, and this recipe has rounds = 3",
        ),
        (
            ["--over", "train.lr=0.1,0.2", "--seeds", "2"],
            r"holds a sweep with rule=avg/seed-0, which this one leaves out",
        ),
    ],
)
def test_another_sweep_in_the_same_directory_is_refused(
    finished: tuple[Path, Any], arguments: list[str], sentence: str
) -> None:
    before = (finished[0] / "sweep.json").read_text()
    answer = call(finished[0], *arguments)
    assert answer.exit_code == 2
    assert re.search(sentence, answer.stderr)
    assert answer.stderr.count("\n") == 1
    assert (finished[0] / "sweep.json").read_text() == before


GATED = """
import os, time
from pathlib import Path
import torch

def build(shape, classes):
    Path(f"building-{os.getpid()}").touch()
    while Path("hold").exists():
        time.sleep(0.01)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))
"""


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until something is so; the ceiling is for a machine on which it will never be."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_with_its_runs_a_sweep_resumes_to_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of the sweep alone, with two runs under way: they die with it, and the same command goes on."""
    monkeypatch.chdir(tmp_path)
    Path("gated.py").write_text(GATED)
    arguments = ["--set", "model={source='gated:build'}", *RULES, "--seeds", "2", "--jobs", "2"]
    assert call(tmp_path / "whole", *arguments).exit_code == 0
    for file in tmp_path.glob("building-*"):
        file.unlink()
    Path("hold").touch()
    process = start(tmp_path / "killed", *arguments)
    wait_for(lambda: len(list(tmp_path.glob("building-*"))) >= 2, "the start of two runs")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_for(lambda: processes_in(tmp_path / "killed") == [], "the end of its runs")
    assert list((tmp_path / "killed").glob("**/summary.json")) == []
    Path("hold").unlink()
    answer = call(tmp_path / "killed", *arguments)
    assert answer.exit_code == 0, answer.output
    for name in ("table.md", "table.tex", "table.csv"):
        assert (tmp_path / "killed" / name).read_text() == (tmp_path / "whole" / name).read_text()


@pytest.mark.slow
def test_ctrl_c_ends_all_runs_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    process = start(folder, *RULES, "--jobs", "1")
    wait_for(lambda: bool(list(folder.glob("*/*.log"))), "the start of a run")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors == "Stopped. The same command goes on where it stopped.\n"
    wait_for(lambda: processes_in(folder) == [], "the end of its runs")


FRAGILE = """
from pathlib import Path
import torch

def build(shape, classes, hidden):
    if hidden == 9 and Path("broken").exists():
        raise ArithmeticError("nine is broken today")
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, hidden), torch.nn.Linear(hidden, classes))
"""


def test_a_run_that_fails_is_reported_hurts_no_other_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fragile.py").write_text(FRAGILE)
    Path("broken").touch()
    arguments = ["--set", "model={source='fragile:build'}", "--over", "model.hidden=9,8"]
    answer = call(Path("out"), *arguments)
    assert answer.exit_code == 1
    assert answer.stderr == (
        "Failed: 1. The same command tries again.\nmodel.hidden=9 seed 0: ArithmeticError: nine is broken today\n"
    )
    assert re.search(r"^\d/2 model.hidden=8 seed 0: \d+\.\d %, \d+ s$", answer.stdout, re.MULTILINE)
    assert "| 9 | - |" in answer.stdout
    assert "Traceback" in Path("out/model.hidden=9/seed-0.log").read_text()
    Path("broken").unlink()
    again = call(Path("out"), *arguments)
    assert again.exit_code == 0, again.output
    assert "model.hidden=8 seed" not in again.stdout
    assert "2/2 model.hidden=9 seed 0: " in again.stdout
    assert not Path("out/model.hidden=9/seed-0.log").exists()


def test_a_run_that_has_begun_keeps_its_workers_whatever_the_share_is_now(tmp_path: Path) -> None:
    (run,) = expand_grid("demo", {"rule": ["suwa"]}, 1, [*FIXED, *ENGINE])
    recipes = {run.name: run.recipe.model_dump(mode="json", exclude_none=True)}
    storage.write_json(tmp_path / "sweep.json", {"runs": recipes})

    def interrupt(moment: ProgressEvent) -> None:
        if moment.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tm.run(
            Recipe.load(run.recipe, ["engine.workers=3"]),
            out=tmp_path / run.name,
            callbacks=[ProgressCallback(interrupt)],
        )
    sweep_worker.run_cell(tmp_path, run.name, workers=1)
    assert Recipe.load(tmp_path / run.name / "recipe.toml").engine.workers == 3
    assert len(RunDirectory(tmp_path / run.name).rounds()) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--over", "rule=avg,suva"], 'rule: there is no rule "suva". Did you mean "suwa"?'),
        (["--over", "rule"], '--over takes key=value,value, such as rule=avg,uwa,suwa, not "rule".'),
        (["--over", "rule=avg,,uwa"], 'not "rule=avg,,uwa".'),
        (["--over", "rule=avg,avg"], "The sweep over rule has avg twice"),
        (["--over", 'train.epochs=1,"1"'], "The sweep has train.epochs=1 seed 0 twice, written in two ways"),
        (["--over", "split={kind='homogeneous'}", "--over", "split.alpha=1,2"], "over split sets split.alpha too"),
        (["--over", "model.nothing=1", "--jobs", "1"], "could not be built"),
        (["--over", "rule=avg", "--seeds", "999999999999"], "10000 is the most"),
        (["--over", "rule=avg", "--over", "rule=uwa"], "--over rule is given twice"),
        (["--over", "seed=1,2"], "Seeds are swept by --seeds"),
        (["--over", "clients=5,6"], '"clients=5" sets what the sweep varies'),
        (["--over", "rule=avg", "--set", "seed=4"], '"seed=4" sets what the sweep varies'),
        (["--over", "rule=avg", "--seeds", "many"], "--seeds takes a number of seeds, such as 3, or a list"),
        (["--over", "rule=avg", "--seeds", "0"], 'not "0".'),
        (["--over", "rule=avg", "--seeds", "3,3"], "The sweep over seed has 3 twice"),
        (["--over", "splt.kind=classes"], 'there is no setting "splt"'),
    ],
)
def test_a_bad_sweep_is_one_sentence_and_nothing_runs(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    answer = call(tmp_path / "out", *arguments)
    assert answer.exit_code == 2
    assert sentence in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_library_call_is_refused_in_a_sentence_too(tmp_path: Path) -> None:
    for over, seeds, jobs, sentence in (
        ({}, 1, None, "needs a setting to sweep over"),
        ({"rule": ["avg"]}, 0, None, "at least one seed"),
        ({"rule": []}, 1, None, "sweep over rule has no values"),
        ({"rule": [object()]}, 1, None, "rule cannot be <object .*; a recipe holds text"),
        ({"rule": ["avg"]}, 1, 0, "at least one run at a time; jobs is 0"),
    ):
        with pytest.raises(TrustmixError, match=sentence):
            tm.sweep("demo", over, seeds, tmp_path / "out", jobs=jobs)
    assert list(tmp_path.iterdir()) == []


def test_other_peoples_files_and_other_processes_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(TrustmixError, match="holds other files"):
        tm.sweep("demo", {"rule": ["avg"]}, 1, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]
    storage.write_json(tmp_path / "theirs" / "sweep.json", {"method": "grid"})
    with pytest.raises(TrustmixError, match=r"sweep\.json is no record of a sweep"):
        tm.sweep("demo", {"rule": ["avg"]}, 1, tmp_path / "theirs")
    with storage.lock_directory(tmp_path / "busy"), pytest.raises(TrustmixError, match="Another process is running"):
        tm.sweep("demo", {"rule": ["avg"]}, 1, tmp_path / "busy")


def test_a_file_of_the_current_directory_is_no_library_of_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that all users share, any of them can put a file with the name of a library."""
    monkeypatch.chdir(tmp_path)
    Path("safetensors.py").write_text("open('imported', 'w')")
    answer = call(tmp_path / "out", "--over", "rule=avg", "--set", "rounds=1")
    assert not Path("imported").exists()
    assert answer.exit_code == 0, answer.output


def test_values_may_be_tables_lists_and_quoted_text() -> None:
    over = parse_over(["rule=avg, {tau = 0.4}", "model.hidden=[64],[64, [32, 16]]", "data.path='a,b',c/d.npz"])
    assert over == {
        "rule": ["avg", {"tau": 0.4}],
        "model.hidden": [[64], [64, [32, 16]]],
        "data.path": ["a,b", "c/d.npz"],
    }
    assert (parse_seeds("3"), parse_seeds("3, 4"), parse_seeds("5,")) == ([0, 1, 2], [3, 4], [5])


def test_set_applies_to_all_cells_and_a_swept_name_leaves_the_old_models_options_behind() -> None:
    runs = expand_grid("demo", {"model.name": ["mlp", "cnn"]}, [4], ["rounds=3", "model.width=8"])
    assert [run.recipe.models[0].model_extra for run in runs] == [{"hidden": [64], "width": 8}, {"width": 8}]
    assert {(run.recipe.rounds, run.recipe.seed) for run in runs} == {(3, 4)}


def test_directory_names_are_safe_short_and_told_apart() -> None:
    values: list[Any] = ["a/b", "a-b", "../x", "a b", [1, 2], {"tau": 0.4}, "x" * 300, "x" * 301, 1e-3, True]
    names = [slug({"data.path": value}) for value in values]
    assert len(set(names)) == len(values)
    assert all(re.fullmatch(r"data\.path=[A-Za-z0-9.=+_-]+", name) and len(name) < 130 for name in names)
    assert slug({"rule": "avg", "clients": 5}) == slug({"clients": 5, "rule": "avg"})


def test_cores_are_shared_out_evenly(finished: tuple[Path, Any]) -> None:
    side_by_side = min(len(os.sched_getaffinity(0)), 4)
    written = Recipe.load(finished[0] / "rule=avg" / "seed-0" / "recipe.toml")
    assert written.engine.workers == max(1, len(os.sched_getaffinity(0)) // side_by_side)


def test_one_seed_of_everything_comes_before_the_second_seed_of_anything() -> None:
    over: dict[str, list[object]] = {"rule": ["avg", "suwa", "fedavg"], "split.classes_per_client": [2, 3]}
    runs = order_runs(expand_grid("demo", over, seeds=[7, 3]))
    names = [(run.seed, run.settings["split.classes_per_client"], run.settings["rule"]) for run in runs]
    assert [seed for seed, _, _ in names] == [7] * 6 + [3] * 6
    for seed in (7, 3):  # runs with the same first stage follow each other; weights of fedavg begin otherwise
        within = [(held, rule) for found, held, rule in names if found == seed]
        assert within[:4] == [(2, "avg"), (2, "suwa"), (3, "avg"), (3, "suwa")]
        assert set(within[4:]) == {(2, "fedavg"), (3, "fedavg")}


def test_when_the_time_is_over_the_rest_is_named_and_the_same_command_goes_on(tmp_path: Path) -> None:
    answer = call(tmp_path / "s", *RULES, "--hours", "1e-9")
    assert answer.exit_code == 0, answer.output
    assert "Left: 2 runs; the same command goes on with them." in answer.output
    assert "rule=avg seed 0\n" in answer.output
    assert "rule=suwa seed 0\n" in answer.output
    assert not (tmp_path / "s" / "rule=avg" / "seed-0" / "summary.json").exists()
    found = tm.sweep("demo", {"rule": ["avg"]}, 1, tmp_path / "t", [*FIXED, *ENGINE], hours=10)
    assert found.left == []
    assert len(found.results) == 1
    with pytest.raises(TrustmixError, match="The hours of a sweep must be more than 0; they are 0"):
        tm.sweep("demo", {"rule": ["avg"]}, 1, tmp_path / "u", hours=0)

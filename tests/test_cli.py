"""The command line as a user meets it: what it prints, and its exit codes."""

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

import trustmix as tm
from trustmix import Recipe
from trustmix.cli import app
from trustmix.cli.app import handle_errors, log_to_console, make_console, wrap_text
from trustmix.cli.progress import Display
from trustmix.errors import TrustmixError
from trustmix.federation import ProgressEvent
from trustmix.settings.builtin import builtin_recipes
from trustmix.settings.recipe import setting_names

QUICK = ["clients=5", "rounds=2", "split.samples_per_client=30", "public.samples=50", "train.public_epochs=1"]
SETS = [part for setting in QUICK for part in ("--set", setting)]


@pytest.mark.slow
def test_the_demo_shows_that_density_beats_averaging_and_leaves_a_report(tmp_path: Path) -> None:
    """The main job itself, as a process, at its full size."""
    command = [sys.executable, "-m", "trustmix.cli", "demo", "--out", str(tmp_path / "demo")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    text = " ".join(result.stdout.split())
    found = re.search(
        r"clients reach ([\d.]+) % alone, with AVG ([\d.]+) %, UWA ([\d.]+) %, sUWA ([\d.]+) % and Trust ([\d.]+) %\. "
        r"Points over averaging: UWA \+([\d.]+), sUWA \+[\d.]+, Trust \+([\d.]+)\. This is one seed;",
        text,
    )
    assert found, result.stdout
    alone, avg, uwa, suwa, trust, gain, lead = map(float, found.groups())
    assert trust > max(uwa, suwa) > min(uwa, suwa) > avg + 15
    assert avg > alone
    for rule in ("uwa", "suwa", "trust"):
        last = json.loads((tmp_path / "demo" / rule / "rounds.jsonl").read_text().splitlines()[-1])
        assert last["ece_mean"] < 0.1, f"{rule}: its clients are not as sure as they are right"
    assert (gain, lead) == pytest.approx((uwa - avg, trust - avg), abs=0.11)
    assert "method 2 of 5, AVG: round 1/10" in text
    assert re.search(r"All five took \d+ seconds", text)
    page = (tmp_path / "demo" / "report.html").read_text()
    title = re.search(
        r"<h1>Trust brings 20 clients to ([\d.]+)\s% and AVG to ([\d.]+)\s%, [\d.]+ points apart with one seed", page
    )
    assert title
    assert tuple(map(float, title.groups())) == (trust, avg)


def test_run_prints_rounds_and_a_table_and_names_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run", "demo", *SETS])
    assert result.exit_code == 0, result.output
    assert "closing: asking 5 clients, accuracy so far" in result.output
    folder = Path("runs") / ",".join(["demo", *QUICK])
    assert f"Run: {folder}" in result.output
    assert (folder / "report.html").exists()
    assert CliRunner().invoke(app, ["run", "demo", *SETS]).exit_code == 2
    assert CliRunner().invoke(app, ["run", "demo", *SETS, "--resume"]).exit_code == 0


HOSTILE = "left out north: [/x] [bold]:smiley: \x1b[2J"
"""Text that rich would take for markup, and a terminal for a command."""


def test_what_others_wrote_is_printed_as_it_is_and_cannot_end_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    console = make_console()
    with log_to_console(console):
        logging.getLogger("trustmix.deploy.server").info("round 1: %s", HOSTILE)
    console.print("[/x]")
    assert capsys.readouterr().out == "round 1: left out north: [/x] [bold]:smiley: ?[2J\n[/x]\n"


def test_a_text_of_others_cannot_pass_for_a_record_of_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = "2026-11-18T00:00:00Z INFO client south has joined"
    with log_to_console(make_console(), file=tmp_path / "log"):
        logging.getLogger("trustmix.deploy.server").info("north cannot join: %s", f"x\n{forged}\r\n{forged}")
    for text in (capsys.readouterr().out, (tmp_path / "log").read_text()):
        lines = [line for line in text.splitlines() if "has joined" in line]
        assert len(lines) == 2
        assert all(line.startswith("    ") for line in lines)


def test_an_error_that_quotes_others_cannot_control_the_terminal() -> None:
    @handle_errors
    def command() -> None:
        raise TrustmixError(HOSTILE)

    hostile = typer.Typer()
    hostile.command()(command)
    result = CliRunner().invoke(hostile, [])
    assert result.exit_code == 2
    assert result.stderr == "Error: left out north: [/x] [bold]:smiley: ?[2J\n"


def test_runs_of_the_same_name_are_distinguished_in_a_report(tmp_path: Path) -> None:
    for folder in ("one/suwa", "two/suwa"):
        CliRunner().invoke(app, ["run", "demo", *SETS, "--quiet", "--out", str(tmp_path / folder)])
    folders = [str(tmp_path / "one" / "suwa"), str(tmp_path / "two" / "suwa")]
    result = CliRunner().invoke(app, ["report", *folders, "--out", str(tmp_path / "both.html")])
    assert result.exit_code == 0
    page = (tmp_path / "both.html").read_text()
    assert all(f">{folder}</span></td>" in page for folder in folders)


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["run", "demo", *SETS, "--quiet", "--out", str(tmp_path / "run")])
    assert (result.exit_code, result.output) == (0, "")


def test_a_mistyped_command_is_answered_with_the_nearest_one_once() -> None:
    result = CliRunner().invoke(app, ["runn"])
    assert result.exit_code == 2
    assert result.output.count("Did you mean 'run'?") == 1


def test_failures_are_counted_at_the_end(tmp_path: Path) -> None:
    faults = ["--set", "faults.crash=0.5", "--set", "participation.quorum=0.1"]
    result = CliRunner().invoke(app, ["run", "demo", *SETS, *faults, "--out", str(tmp_path / "run")])
    assert re.search(r"\d answers? (was|were) left out; rounds\.jsonl and the report state why", result.output), (
        result.output
    )
    assert "fault on purpose" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("command", ["demo", "run", "sweep", "recipes", "report"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Example: trustmix {command}" in result.output


def test_help_explains_every_argument() -> None:
    for name, command in vars(typer.main.get_command(app))["commands"].items():
        text = " ".join(CliRunner().invoke(app, [name, "--help"]).output.split())
        for argument in command.params:
            assert argument.help, f"{name} {argument.name}"
            assert " ".join(argument.help.split()) in text


def test_recipes_lists_the_built_in_ones_within_80_columns() -> None:
    output = CliRunner().invoke(app, ["recipes"]).output
    assert max(map(len, output.splitlines())) <= 80
    for name, text in builtin_recipes().items():
        assert f"{name} {text}" in " ".join(output.split())
    assert "the guard is on in each that does not state guard.on = false" in " ".join(output.split())


@given(
    st.lists(st.sampled_from(["90.5 %", "random-forest", "split.samples_per_client=600", "a", "of it."]), min_size=1)
)
def test_sentences_break_neither_inside_words_nor_before_a_per_cent_sign(parts: list[str]) -> None:
    lines = wrap_text(" ".join(parts), 30, first="- ", indent="  ").splitlines()
    assert " ".join(line[2:] for line in lines) == " ".join(parts)
    assert all(len(line) <= 30 for line in lines)
    assert not any(line.startswith("  %") for line in lines)


@pytest.mark.parametrize("words", ["trustmix run cifar100-", "trustmix recipes cifar100-", "trustmix plan cifar100-"])
def test_a_shell_completes_names_of_recipes(words: str) -> None:
    asked = {"_TRUSTMIX_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "2"}
    result = CliRunner().invoke(app, [], env=asked, prog_name="trustmix")
    assert result.output.split() == ["cifar100-small"]


def test_a_recipe_is_printed_with_its_comments_and_runs_as_a_file(tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["recipes", "digits"]).output
    assert printed.startswith("# Handwritten digits")
    (tmp_path / "mine.toml").write_text(printed)
    assert Recipe.load(tmp_path / "mine.toml") == Recipe.load("digits")


def test_settings_lists_every_setting_within_80_columns() -> None:
    output = CliRunner().invoke(app, ["settings"]).output
    sections = [name for name in setting_names() if any(other.startswith(f"{name}.") for other in setting_names())]
    for name in set(setting_names()) - set(sections):
        assert f"  {name} = " in output, name
    assert max(map(len, output.splitlines())) <= 80
    one = CliRunner().invoke(app, ["settings", "split"]).output
    assert one.startswith("[split]")
    assert one.count("\n[") == 0


def test_a_pipe_that_ends_early_is_no_error() -> None:
    writing = [sys.executable, "-m", "trustmix.cli", "settings"]
    with subprocess.Popen(writing, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, errors = process.communicate(timeout=300)
    assert errors == b""


def test_resume_goes_on_by_the_recipe_of_the_directory(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    whole = CliRunner().invoke(app, ["run", "demo", *SETS, "--out", str(tmp_path / "whole"), "-q"])
    assert whole.exit_code == 0, whole.output
    with pytest.raises(KeyboardInterrupt):
        tm.run("demo", out=folder, callbacks=[StopAfterOneRound()], **keywords(QUICK))
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 1
    result = CliRunner().invoke(app, ["resume", str(folder)])
    assert result.exit_code == 0, result.output
    assert accuracies(folder) == accuracies(tmp_path / "whole")
    assert CliRunner().invoke(app, ["resume", str(folder), "-q"]).exit_code == 0  # there is nothing left to do


class StopAfterOneRound(tm.Callback):
    def on_round_end(self, line: tm.Round) -> None:
        raise KeyboardInterrupt


def keywords(changes: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for change in changes:
        key, _, value = change.partition("=")
        section, _, name = key.partition(".")
        if name:
            found.setdefault(section, {})[name] = int(value)
        else:
            found[section] = int(value)
    return found


def accuracies(folder: Path) -> list[float]:
    return [json.loads(line)["accuracy_mean"] for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_no_summary_of_a_command_is_cut() -> None:
    output = CliRunner().invoke(app, ["-h"], env={"COLUMNS": "80"}).output
    commands = output.partition("Commands:")[2].splitlines()[1:]
    assert len(commands) >= 15
    assert [line for line in commands if line.endswith("...")] == []


def test_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", CliRunner().invoke(app, ["--version"]).output)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "nothing"], 'There is no recipe "nothing"'),
        (["run", "demo", "--set", "split.classes_per_client=12"], "split.classes_per_client is 12"),
        (["report", "nowhere"], "nowhere holds no finished round"),
        (["recipes", "digts"], 'No recipe "digts" is built in. Did you mean "digits"?'),
        (["settings", "splt"], 'A recipe has no section "splt". Did you mean "split"?'),
        (["resume", "nowhere"], "nowhere holds no run"),
        (["audit", "nowhere", "--out", "audit.txt"], "audit.txt (--out) must end in .csv"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("width", "place"), [(80, "round 20/40"), (120, "round 20/40, client 10/20")])
def test_a_terminal_gets_a_live_bar_that_fits(width: int, place: str) -> None:
    console = Console(force_terminal=True, width=width, record=True, force_interactive=True)
    with Display(console, "method 2 of 5, sUWA:") as display:
        display.show(ProgressEvent(20, 40, "clients", 10, 20, 0.5))
        assert display._live is not None
        console.print(display._live.get_renderable())
    shown = console.export_text()
    assert re.search(rf"method 2 of 5, sUWA: {place} [━╸╺]{{4,}} +48% accuracy 50\.0 % -:--:-- left\n", shown), shown

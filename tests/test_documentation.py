"""What the README, CONTRIBUTING.md and the documentation state is true: every block of code in them is executed.

The blocks of a page are taken in order, in one empty folder a page, as a reader would. A block whose first line is a
comment with a file's name (`# photos.toml`) is also saved under that name. A block that cannot be run here has a line
`<!-- not run: the reason -->` above it, and there are few of those. Runs are made small by `SMALL`, for time's sake:
otherwise commands are executed as they are written.
"""

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import typer
from pydantic import BaseModel
from typer.testing import CliRunner

import trustmix
from trustmix import Recipe
from trustmix.cli import app
from trustmix.settings.config import ModelConfig, StudentConfig

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"(?:<!-- not run: (?P<reason>[^>]+) -->\n\n?)?^```(?P<kind>\w+)\n(?P<text>.*?)^```", re.M | re.S)
SMALL = {
    "rounds": "1",
    "split.samples_per_client": "40",
    "public.samples": "40",
    "train.first_epochs": "1",
    "train.public_epochs": "1",
    "engine.mode": "sequential",
}


class Block(NamedTuple):
    kind: str
    text: str
    reason: str | None


def blocks(page: Path) -> Iterator[Block]:
    for found in FENCE.finditer(page.read_text()):
        yield Block(found["kind"], found["text"], found["reason"])


WITH_BLOCKS = [page for page in PAGES if any(block.kind != "text" for block in blocks(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: page.name)
def test_every_block_of_a_page_runs_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for block in blocks(page):
        name = re.match(r"# (\S+\.(?:toml|py))\n", block.text)
        if name:
            Path(name[1]).write_text(block.text)
        if block.reason is None:
            RUN[block.kind](block.text)


def run_python(text: str) -> None:
    exec(compile(text, "<documentation>", "exec"), {"__name__": "__main__"})


def check_toml(text: str) -> None:
    """A recipe, or a part of one, whose settings all exist."""
    fields = tomllib.loads(text)
    Recipe.load({"data": {"name": "digits"}, **fields})


def run_shell(text: str) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            run_command(words)


def run_command(words: list[str]) -> None:
    if words[0] == "make":
        subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)
    elif words[:3] == [".venv/bin/python", "-m", "pytest"]:  # the tests themselves run elsewhere
        assert all((ROOT / word).exists() for word in words if "/" in word and word != words[0]), words
    elif words[:2] == [".venv/bin/python", "-m"]:
        assert (ROOT / words[2].replace(".", "/")).with_suffix(".py").exists(), words
    elif words[0] == "python":
        assert (ROOT / words[1]) in (ROOT / "examples").glob("*.py")  # which a test of their own runs
    else:
        assert words[0] == "trustmix", f"How is {words[0]} to be run?"
        result = CliRunner().invoke(app, made_small(words[1:]))
        assert result.exit_code == 0, f"{shlex.join(words)}: {result.output} {result.stderr}"


def made_small(words: list[str]) -> list[str]:
    """The command with fewer rounds and samples, where it leaves them open; of sweeps, one value of each list."""
    if words[0] not in ("run", "sweep", "plan"):
        return words
    given = [word.partition("=")[0] for word in words]
    small = [part for key, value in SMALL.items() if key not in given for part in ("--set", f"{key}={value}")]
    if words[0] == "sweep":
        words = [re.sub(r"^([\w.]+=)([^,{]+),.*", r"\1\2", word) for word in words]
        words = ["1" if before == "--seeds" else word for before, word in pairwise(["", *words])]
    return [*words, *small]


def ignore(_: str) -> None:
    """Text is no code: what is printed, what lies in a folder."""


RUN = {"python": run_python, "toml": check_toml, "sh": run_shell, "bash": run_shell, "text": ignore, "nginx": ignore}
"""Every kind of block there may be; another one fails the test."""


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    reasons = [block.reason for page in PAGES for block in blocks(page) if block.reason]
    assert len(reasons) <= 14, reasons


def test_every_setting_says_what_it_means() -> None:
    """The page of settings is made from these descriptions."""
    for name, info in Recipe.model_fields.items():
        section = {"model": ModelConfig, "student": StudentConfig}.get(name, info.annotation)
        fields = section.model_fields if isinstance(section, type) and issubclass(section, BaseModel) else {name: info}
        for key, setting in fields.items():
            assert setting.description, f"{name}.{key} has no description"


def test_links_lead_somewhere() -> None:
    results = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
    for page in [*PAGES, *(ROOT / f"{name}.md" for name in ("RESULTS", "CHANGELOG", "SECURITY")), *results]:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
            assert link.startswith("https://") or (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_citation_names_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    for key in ("version", "license"):
        assert re.search(rf"^{key}: {re.escape(project[key])}$", citation, re.M), key


def test_hosted_ci_calls_targets_of_the_makefile() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    commands = re.findall(r"run: (.+)", workflow)
    assert {"make lint", "make test", "make docs"} <= set(commands)
    for command in commands:
        run_command(shlex.split(command))


def load_reference() -> ModuleType:
    """The module that generates parts of pages; it is no part of the package."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_results_lead_somewhere_in_the_documentation_too() -> None:
    reference = load_reference()
    details = ROOT / "benchmarks" / "results"
    pages = {"results.md": reference.results()}
    pages |= {f"results/{page.name}": reference.result_page(page.read_text("utf-8")) for page in details.glob("*.md")}
    generated = {*pages, *(f"images/{picture.name}" for picture in details.glob("*.svg"))}
    for name, text in pages.items():
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            target = os.path.normpath(Path(name).parent / link)
            assert link.startswith("https://") or target in generated or (ROOT / "docs" / target).exists(), (name, link)


def test_the_pages_of_settings_and_commands_are_what_the_code_generates_now(tmp_path: Path) -> None:
    """In a process of its own: blocks of other pages register names in this one."""
    names = ("settings.md", "cli.md")
    for name in names:
        shutil.copy(ROOT / "docs" / name, tmp_path)
    subprocess.run([sys.executable, ROOT / "docs/reference.py", tmp_path], check=True)
    for name in names:
        committed = (ROOT / "docs" / name).read_text("utf-8")
        assert committed == (tmp_path / name).read_text("utf-8"), f"docs/{name} is old: python docs/reference.py"


def test_the_page_of_settings_names_every_setting_and_that_of_commands_every_command() -> None:
    settings, commands = ((ROOT / "docs" / name).read_text("utf-8") for name in ("settings.md", "cli.md"))
    for setting in ("clients", "split.classes_per_client", "student.epochs", "track.mlflow"):
        assert f"| `{setting}` |" in settings
    for command in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert f"## {command}" in commands.splitlines()


def test_the_page_of_the_api_names_every_public_name_of_every_room() -> None:
    page = load_reference().api()
    for name in trustmix.__all__:
        assert f"[`tm.{name}`]" in page, name
    for file in (ROOT / "src/trustmix").glob("*/__init__.py"):
        if file.parent.name != "cli":  # the commands have a page of their own
            room = importlib.import_module(f"trustmix.{file.parent.name}")
            assert f"## {room.__name__}" in page.splitlines()
            for name in getattr(room, "__all__", []):
                assert f"::: {room.__name__}.{name}" in page.splitlines(), name


def test_names_that_pages_link_to_exist() -> None:
    pages = [page.read_text() for page in PAGES] + [load_reference().api()]
    names = {name for page in pages for name in re.findall(r"\]\[(trustmix\.[\w.]+)\]", page)}
    assert names
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name

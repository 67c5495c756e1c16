"""The wheel installs into an empty environment and runs from any directory."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_wheel_with_its_own_libraries_runs_the_demo_from_any_directory_without_the_repository(tmp_path: Path) -> None:
    """The environment begins empty; pip installs the wheel and its libraries, in the versions of this repository."""
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("trustmix-*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    binaries = tmp_path / "env" / "bin"
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    install = [str(binaries / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    installed = subprocess.run(
        [*install, "--constraint", str(ROOT / "constraints.txt"), str(wheel)],
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert installed.returncode == 0, installed.stderr[-2000:]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = "import torch, sklearn, trustmix; print(torch.__file__, sklearn.__file__, trustmix.__file__, sep='\\n')"
    found = subprocess.run(
        [str(binaries / "python"), "-c", where], cwd=elsewhere, env=clean, check=True, capture_output=True, text=True
    )
    for file in found.stdout.split():
        assert Path(file).is_relative_to(tmp_path / "env")
    demo = [str(binaries / "trustmix"), "demo", "--out", "out"]
    result = subprocess.run(demo, cwd=elsewhere, env=clean, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (elsewhere / "out" / "report.html").exists()

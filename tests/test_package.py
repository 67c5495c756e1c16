"""The wheel installs into an empty environment and runs from any directory."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_wheel_runs_the_demo_command_from_any_directory_without_the_repository(tmp_path: Path) -> None:
    """Libraries are borrowed from this environment; trustmix is in the new one alone, installed from the wheel."""
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("trustmix-*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, env=clean)
    site = next((tmp_path / "env" / "lib").glob("python*/site-packages"))
    borrowed = [path for path in sys.path if path.endswith("site-packages") and not (Path(path) / "trustmix").exists()]
    (site / "zz_borrowed.pth").write_text("\n".join(borrowed) + "\n")
    (tmp_path / "elsewhere").mkdir()
    where = "import trustmix; print(trustmix.__file__)"
    found = subprocess.run(
        [python, "-c", where], cwd=tmp_path / "elsewhere", env=clean, check=True, capture_output=True, text=True
    )
    assert Path(found.stdout.strip()).is_relative_to(tmp_path / "env")
    demo = [str(tmp_path / "env" / "bin" / "trustmix"), "demo", "--out", "out"]
    result = subprocess.run(demo, cwd=tmp_path / "elsewhere", env=clean, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "elsewhere" / "out" / "report.html").exists()

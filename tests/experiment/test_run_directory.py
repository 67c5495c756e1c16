"""The run directory: what it accepts, what it refuses, and what it reads of records that others wrote."""

from pathlib import Path

import pytest

from trustmix import TrustmixError
from trustmix.experiment.run_directory import ensure_empty
from trustmix.storage import lock_directory


def test_what_a_killed_process_leaves_behind_does_not_make_a_directory_full(tmp_path: Path) -> None:
    ensure_empty(tmp_path / "missing")
    with lock_directory(tmp_path):
        ensure_empty(tmp_path)
    (tmp_path / "recipe.toml.tmp").write_text("half a file")
    ensure_empty(tmp_path)
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(TrustmixError, match="holds other files"):
        ensure_empty(tmp_path)

"""The run directory: what it accepts, what it refuses, and what it reads of records that others wrote."""

import stat
from pathlib import Path

import pytest

from trustmix import Recipe, TrustmixError
from trustmix.experiment.run_directory import RunDirectory, ensure_empty, ensure_same_recipe
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


def test_another_recipe_is_refused_by_the_settings_that_differ(tmp_path: Path) -> None:
    begun = Recipe.load("demo", ["model.hidden=[64, 32]", "train.lr=0.1"])
    other = Recipe.load("demo", ["model.hidden=[64]", "train.lr=0.2"])
    expected = r"begun with model\.hidden = \[64, 32\], train\.lr = 0\.1, and this recipe has model\.hidden = \[64\], "
    with pytest.raises(TrustmixError, match=expected + r"train\.lr = 0\.2; resume with the same recipe"):
        ensure_same_recipe(tmp_path, begun, other)


def test_others_cannot_enter_a_run_directory_or_read_the_states_of_clients(tmp_path: Path) -> None:
    recipe, users = Recipe.load("demo"), tmp_path / "users"
    users.mkdir(mode=0o755)
    for folder in (tmp_path / "new", users):
        with RunDirectory(folder).begin(recipe, overwrite=False):
            assert stat.S_IMODE((folder / "checkpoint").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE(users.stat().st_mode) == 0o755, "what the user has made stays as it is"

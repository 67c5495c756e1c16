"""Recipes and run directories from elsewhere run no code that the user has not allowed; the user's own ask nothing."""

import os
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import trustmix as tm
from trustmix.cli import app
from trustmix.errors import StorageError, TrustmixError
from trustmix.experiment.saved_models import load_model, read_inputs
from trustmix.settings.own_code import foreign_code, is_own_file
from trustmix.settings.recipe import Recipe

CODE = """
from pathlib import Path
import torch

Path(__file__).with_name("was_run").touch()

def build(shape, classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))
"""
SMALL = {
    "data": {"name": "digits"},
    "clients": 5,
    "rounds": 1,
    "split": {"samples_per_client": 40},
    "engine": {"mode": "sequential"},
}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe, a finished run and their code; the current directory is another one."""
    folder, here = tmp_path / "elsewhere", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    module = f"foreign_{tmp_path.name.replace('-', '_')}"
    (folder / f"{module}.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(here)
    tm.run(SMALL, out=folder / "run")
    for file in (folder / "recipe.toml", folder / "run" / "recipe.toml"):
        text = (folder / "run" / "recipe.toml").read_text()
        begin, end = text.index("[model]"), text.index("[", text.index("[model]") + 1)
        file.write_text(f'{text[:begin]}[model]\nsource = "{module}:build"\n\n{text[end:]}')
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ["run", "recipe.toml"],
        ["plan", "recipe.toml"],
        ["sweep", "recipe.toml", "--over", "rule=avg,uwa"],
        ["serve", "recipe.toml", "--insecure"],
        ["predict", "run", "digits"],
        ["audit", "run"],
        ["resume", "run"],
        ["theory", "run"],
    ],
)
def test_code_of_a_recipe_or_a_run_from_elsewhere_is_not_run_unless_it_is_allowed(
    elsewhere: Path, command: list[str]
) -> None:
    name, file, *rest = command
    result = CliRunner().invoke(app, [name, str(elsewhere / file), *rest])
    assert result.exit_code == 2, result.output
    assert "names code, model.source = " in result.output
    assert "add --allow-code" in result.output
    assert not (elsewhere / "was_run").exists()


def test_functions_of_python_refuse_a_run_from_elsewhere_too(elsewhere: Path) -> None:
    with pytest.raises(TrustmixError, match="allow_code=True"):
        load_model(elsewhere / "run", 3)
    assert not (elsewhere / "was_run").exists()


def test_allowed_code_is_run(elsewhere: Path) -> None:
    result = CliRunner().invoke(app, ["plan", str(elsewhere / "recipe.toml"), "--allow-code"])
    assert result.exit_code == 0, result.output
    assert (elsewhere / "was_run").exists()


def test_the_user_is_asked_at_a_terminal(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["trustmix.cli.app"]  # the package has an attribute of the same name
    monkeypatch.setattr(module, "sys", _Terminal)
    asked: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        asked.append(question)
        return len(asked) > 1

    monkeypatch.setattr(typer, "confirm", confirm)
    arguments = ["plan", str(elsewhere / "recipe.toml")]
    assert CliRunner().invoke(app, arguments).exit_code == 2
    assert not (elsewhere / "was_run").exists()
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert "runs code: model.source = foreign_" in asked[0]


class _Terminal:
    """The part of `sys` that tells whether there is a terminal."""

    class stdin:  # noqa: N801 - its name in sys
        @staticmethod
        def isatty() -> bool:
            return True


def test_code_that_the_user_replaces_or_a_recipe_of_the_users_own_asks_nothing(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = elsewhere / "recipe.toml"
    assert list(foreign_code(file)) == ["model.source"]
    assert foreign_code(file, Recipe.load(file, ["model.name=mlp"])) == {}
    monkeypatch.chdir(elsewhere)
    assert foreign_code(file) == {}


def test_below_the_home_directory_only_files_right_there_are_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert is_own_file(tmp_path / "recipe.toml")
    assert not is_own_file(tmp_path / "Downloads" / "run" / "recipe.toml")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert is_own_file(tmp_path / "work" / "runs" / "one" / "recipe.toml")
    (tmp_path / "work" / "link.toml").symlink_to(tmp_path / "Downloads" / "recipe.toml")
    assert not is_own_file(tmp_path / "work" / "link.toml")


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners by number on this system")
def test_a_file_of_another_user_is_not_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text('[data]\nsource = "evil:data"\n')
    assert is_own_file(Path("recipe.toml"))
    found = Path("recipe.toml").stat()
    theirs = os.stat_result([*found[:4], os.geteuid() + 1, *found[5:]])
    monkeypatch.setattr(Path, "stat", lambda self, **_: theirs)
    assert not is_own_file(Path("recipe.toml"))


@pytest.mark.parametrize(
    "record",
    [
        '{"shape": [1, 8, 8], "dtype": "load", "classes": ["a"], "scale": null}',
        '{"shape": [100000000], "dtype": "float32", "classes": ["a"], "scale": null}',
        '{"shape": "8", "dtype": "float32", "classes": ["a"], "scale": null}',
        '{"shape": [8], "dtype": "float32", "classes": [1], "scale": null}',
        '{"shape": [8], "dtype": "uint8", "classes": ["a"], "scale": [[0.5]]}',
        '{"shape": [8]}',
    ],
)
def test_what_a_run_directory_states_about_its_inputs_is_validated(tmp_path: Path, record: str) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "inputs.json").write_text(record)
    with pytest.raises(StorageError, match="does not describe the inputs of models"):
        read_inputs(tmp_path)

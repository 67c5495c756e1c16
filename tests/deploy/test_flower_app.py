"""The apps for Flower's own commands: the names in the app folder exist, and both sides play a run together."""

import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from flwr.app import Context, Message, RecordDict, UserConfig

import trustmix as tm
from trustmix.deploy import flower_app
from trustmix.deploy.superlink import app_folder
from trustmix.errors import TrustmixError
from trustmix.experiment.run_directory import RunDirectory

from ..transport.flower_messages import make_message
from .flower_link import FlowerLink

SETTINGS = ["clients=2", "rounds=1", "split.classes_per_client=5", "train.first_epochs=1"]


def test_the_app_folder_names_both_apps() -> None:
    settings = tomllib.loads((app_folder() / "pyproject.toml").read_text())
    components = settings["tool"]["flwr"]["app"]["components"]
    assert resolve_name(components["serverapp"]) is flower_app.server_app
    assert resolve_name(components["clientapp"]) is flower_app.client_app


def test_a_server_app_and_two_client_apps_give_the_numbers_of_one_machine(
    link: FlowerLink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trustmix")  # restored afterwards; the app sets it too
    for number in range(2):
        file = tmp_path / f"node-{number}.toml"
        file.write_text(f"share = {number}\n")
        context = Context(link.run_id, number, {"node": str(file)}, RecordDict(), {})

        def handle(message: Message, context: Context = context) -> Message:
            return flower_app.client_app(message, context)

        link.add_node(handle)
    recipe = tm.Recipe.load("demo", SETTINGS)
    (tmp_path / "recipe.toml").write_text(recipe.toml())
    config: UserConfig = {"recipe": str(tmp_path / "recipe.toml"), "out": str(tmp_path / "run"), "nodes": 0}
    flower_app.server_app(link.grid, Context(link.run_id, 0, {}, RecordDict(), config))
    (ours,) = RunDirectory(tmp_path / "run").rounds()
    (local,) = tm.run(tm.Recipe.load("demo", [*SETTINGS, "engine.mode=sequential"])).rounds
    assert ours.accuracy == pytest.approx(local.accuracy)


def test_a_node_without_a_file_is_refused() -> None:
    with pytest.raises(TrustmixError, match="--node-config"):
        flower_app.handle_message(make_message("train", {}), Context(1, 1, {}, RecordDict(), {}))

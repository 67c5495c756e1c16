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


def server_context(link: FlowerLink, recipe: str, out: Path, settings: str = "") -> Context:
    config: UserConfig = {"recipe": recipe, "settings": settings, "out": str(out), "nodes": 0}
    return Context(link.run_id, 0, {}, RecordDict(), config)


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
    flower_app.server_app(link.grid, server_context(link, str(tmp_path / "recipe.toml"), tmp_path / "run"))
    (ours,) = RunDirectory(tmp_path / "run").rounds()
    (local,) = tm.run(tm.Recipe.load("demo", [*SETTINGS, "engine.mode=sequential"])).rounds
    assert ours.accuracy == pytest.approx(local.accuracy)


@pytest.mark.parametrize("config", [{}, {"partition-id": 0, "num-partitions": 2}, {"folder": "here"}])
def test_a_node_without_a_file_and_without_a_folder_of_its_own_is_refused(config: UserConfig) -> None:
    with pytest.raises(TrustmixError, match="--node-config"):
        flower_app.handle_message(
            make_message("train", {}), Context(1, 1, config, RecordDict(), {"out": "server/path"})
        )


def test_a_partition_id_and_a_folder_are_a_share_of_the_recipes_split(tmp_path: Path) -> None:
    config: UserConfig = {"partition-id": 1, "num-partitions": 2, "folder": str(tmp_path)}
    node = flower_app._node_config(Context(1, 1, config, RecordDict(), {"out": "server/path"}))
    assert (node.id, node.share, node.state_folder) == ("1", 1, tmp_path.resolve() / "1-state")


def test_a_simulation_with_too_few_nodes_ends_with_a_sentence(
    link: FlowerLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trustmix")
    monkeypatch.setattr(flower_app, "SETTLED", 0.2)
    link.add_node(lambda message: message)
    with pytest.raises(TrustmixError, match=r"has 1 SuperNodes and the recipe 2 clients; add .*num-supernodes=2"):
        flower_app.server_app(link.grid, server_context(link, "demo", tmp_path / "run", " ".join(SETTINGS)))

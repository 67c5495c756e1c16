"""A recipe across machines: what the server does with a grid, and what a node does with a message.

`run_server` plays the rounds of a recipe with clients that come from elsewhere. `server` and `client` are the two sides
as Flower's own commands load them (see the app folder, `trustmix/flower`); `trustmix serve` and `join` need them not.
"""

import logging
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trustmix import storage
from trustmix.data import Dataset, Labelled
from trustmix.data.tabular import features_of
from trustmix.deploy.flower_engine import FlowerEngine, server_app
from trustmix.deploy.membership import Membership, RunInfo
from trustmix.deploy.message_handler import MessageHandler, client_app
from trustmix.deploy.node import NodeConfig, build_node_client
from trustmix.engines.fault_injection import FaultInjectionEngine
from trustmix.errors import TrustmixError
from trustmix.experiment.build import build_client, build_server, build_student, client_model_factory
from trustmix.experiment.config import EngineConfig
from trustmix.experiment.data import load_data, load_public, select_test_set, validate_augmentation
from trustmix.experiment.recipe import Recipe
from trustmix.experiment.run_directory import RunDirectory
from trustmix.federation import Client, Engine, History, Public, Round
from trustmix.wire import encode_public_set

log = logging.getLogger(__name__)

GRACE = 30.0
"""Seconds that a run which goes on waits for the clients beyond its quorum."""


def as_deployment(recipe: Recipe) -> Recipe:
    """The recipe as a deployment runs it: the same, but for the engine."""
    if recipe.method.exchanges == "nothing":
        raise TrustmixError(f"{recipe.rule} exchanges nothing; there is nothing to serve. Use `trustmix run`.")
    if recipe.attack.kind is not None:
        raise TrustmixError("[attack] makes liars of simulated clients; a deployment has its own. Use `trustmix run`.")
    return recipe.model_copy(update={"engine": EngineConfig(name="flower", store="disk")})


@dataclass(frozen=True)
class ServerSetup:
    """All that a server has before the first client comes."""

    recipe: Recipe
    record: RunDirectory
    data: Dataset
    public: Labelled
    shared: Public


def prepare_server(recipe: Recipe, out: Path) -> ServerSetup:
    """What the server needs, checked before anybody is let in; a run that is in the directory already goes on."""
    record = RunDirectory(out)
    recipe = record.check(as_deployment(recipe), resume=(out / "recipe.toml").exists(), overwrite=False)
    data = load_data(recipe)
    validate_augmentation(recipe, data)
    public = load_public(recipe, data)
    return ServerSetup(recipe, record, data, public, Public(public.inputs, data.classes))


def run_server(stage: ServerSetup, grid: Any, *, nodes: int | None = None) -> History:
    """All rounds with the clients behind a grid, into the run directory."""
    recipe, record, data, shared = stage.recipe, stage.record, stage.data, stage.shared
    with record.begin(recipe, overwrite=False):
        folder = record.path / "checkpoint"
        (folder / "clients").mkdir(parents=True, exist_ok=True)
        mark, sealed = _mark(folder / "run.json"), encode_public_set(shared.inputs)
        welcome = RunInfo(mark, _settings(recipe, data), shared.fingerprint, sealed)
        asked = recipe.participation
        reception = Membership(grid, welcome, folder / "nodes.json")
        links = FlowerEngine(reception, nodes or recipe.clients, asked.quorum, asked.deadline)
        engine: Engine = links
        if recipe.faults.crash or recipe.faults.late:
            engine = FaultInjectionEngine(links, recipe.faults.crash, recipe.faults.late, recipe.seed)
        federation = build_server(recipe, engine, shared, stage.public.labels, {}, _student(stage, folder / "clients"))
        links.gather(asked.deadline or GRACE, begun=record.checkpoint.load().exchange > 0)
        for line in federation.iter_rounds(recipe.rounds, checkpoint=record.checkpoint):
            record.append(line)
            log.info(_told(line))
        history = History(record.rounds())
        record.finish(history, recipe.method)
    return history


def _student(stage: ServerSetup, folder: Path) -> Client | None:
    """The server's own model, if the recipe wants one."""
    recipe, data, nothing = stage.recipe, stage.data, (stage.public, stage.public)
    model = client_model_factory(recipe, data, recipe.models[0], "server")
    like = build_client(recipe, "server", model, nothing, stage.shared, select_test_set(recipe, data), None)
    return build_student(recipe, data, like, folder)


def _told(line: Round) -> str:
    """A round in one line, for whoever looks after the server."""
    accuracy = "" if line.accuracy_mean is None else f", accuracy {100 * line.accuracy_mean:.1f} %"
    left_out = "".join(f"; left out {client}: {reason}" for client, reason in line.failed.items())
    return f"round {line.round}: {len(line.participants)} clients{accuracy}{left_out}"


def _settings(recipe: Recipe, data: Dataset) -> dict[str, Any]:
    """What a client must know: how to train and to send, what the classes are, how images are scaled."""
    columns = None
    if recipe.data.name == "shared":
        columns = features_of(Path(str(recipe.data.path)), (recipe.data.model_extra or {}).get("columns"))
    return {
        "recipe": recipe.client_toml(),
        "client": recipe.method.client,
        "classes": list(data.class_names),
        "mean": list(data.mean),
        "std": list(data.std),
        "columns": columns,
    }


def _mark(file: Path) -> str:
    """The run's own mark, made when it begins."""
    if not file.exists():
        storage.write_json(file, secrets.token_hex(8))
    return str(storage.read_json(file))


def make_handler(node: NodeConfig) -> MessageHandler:
    """Where the messages to a node are answered."""
    return MessageHandler(
        node.id, node.state, lambda settings, public, folder: build_node_client(node, settings, public, folder)
    )


def _serve(grid: Any, config: dict[str, Any]) -> None:
    """What Flower's ServerApp does: the recipe of the run's configuration, into the directory it names."""
    stage = prepare_server(Recipe.load(str(config["recipe"])), Path(str(config["out"])))
    if not stage.record.finished:
        run_server(stage, grid, nodes=int(config["nodes"]) or None)


def _desk(config: dict[str, Any]) -> MessageHandler:
    """The desk of the node whose file the SuperNode's configuration names."""
    if "node" not in config:
        raise TrustmixError("Start the SuperNode with --node-config 'node=\"/path/to/node.toml\"'.")
    return make_handler(NodeConfig.load(str(config["node"])))


server = server_app(_serve)
client = client_app(_desk)

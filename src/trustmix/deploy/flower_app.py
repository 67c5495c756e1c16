"""Both sides of a run as apps for Flower's own commands; the app folder `trustmix/flower` names them.

`flwr run` starts them in a simulation, where a client is a share of the recipe's split by its `partition-id`, and in a
deployment, where each SuperNode names a node's file. `trustmix serve` and `trustmix join` do not use them.
"""

import logging
import shlex
import sys
import time

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from trustmix.deploy.node import NodeConfig
from trustmix.deploy.server import prepare_server, run_server, server_folder
from trustmix.deploy.supernode import make_handler
from trustmix.errors import TrustmixError
from trustmix.paths import expand_user
from trustmix.settings.recipe import Recipe
from trustmix.transport.flower_internals import InMemoryGrid

log = logging.getLogger(__name__)

SETTLED = 5.0
"""Seconds after which a simulation has no further nodes."""

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def run_server_app(grid: Grid, context: Context) -> None:
    """Run the recipe that the run's configuration names, into the directory that it names.

    Parameters
    ----------
    grid : Grid
        The connection to the nodes.
    context : Context
        Its run configuration has `recipe`, `settings` (settings of the recipe, such as "rounds=5 clients=2"), `out` and
        `nodes` (0 for the recipe's number of clients).

    Raises
    ------
    TrustmixError
        If the recipe cannot be run, or a simulation has fewer nodes than the recipe has clients.
    """
    logging.basicConfig(format="%(message)s")
    logging.getLogger("trustmix").setLevel(logging.INFO)
    config = context.run_config
    recipe = Recipe.load(str(config["recipe"]), shlex.split(str(config["settings"])))
    setup = prepare_server(recipe, expand_user(str(config["out"])))
    log.info("the run directory is %s", setup.run_directory.path.resolve())
    if not setup.run_directory.finished:
        nodes = int(config["nodes"]) or setup.recipe.clients
        if isinstance(grid, InMemoryGrid):
            _validate_simulation(grid, nodes)
        run_server(setup, grid, nodes=nodes)


@client_app.train()
@client_app.query("hello")
@client_app.query("public")
@client_app.query("refused")
def handle_message(message: Message, context: Context) -> Message:
    """Handle one message to a node.

    Parameters
    ----------
    message : Message
        A message of the server.
    context : Context
        Its node configuration has `node`, the path of a node's file, or `partition-id` and, outside a simulation,
        `folder`, where the node keeps its state.

    Returns
    -------
    Message

    Raises
    ------
    TrustmixError
        If the configuration names neither.
    """
    return make_handler(_node_config(context)).handle(message)


def _node_config(context: Context) -> NodeConfig:
    """The node's file; without one, the share of the recipe's split whose number is `partition-id`."""
    config = context.node_config
    if "node" in config:
        return NodeConfig.load(str(config["node"]))
    folder = config.get("folder")
    if folder is None and _is_simulated():
        # the run directory is the user's own; a real node follows no path of a server
        folder = str(server_folder(expand_user(str(context.run_config["out"]))) / "nodes")
    if "partition-id" not in config or folder is None:
        raise TrustmixError(
            "Start the SuperNode with --node-config 'node=\"/path/to/node.toml\"', or, to try the recipe's own split, "
            "with --node-config 'partition-id=0 folder=\"/path/for/its/state\"'."
        )
    share = int(config["partition-id"])
    return NodeConfig(id=str(share), share=share, folder=expand_user(str(folder)).resolve())


def _is_simulated() -> bool:
    """Whether this process runs a simulation's clients: those are actors of Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _validate_simulation(grid: Grid, nodes: int) -> None:
    """Raise if the simulation has fewer nodes than the run waits for; all of them are there from the beginning."""
    count, since = 0, time.monotonic()
    while count < nodes and time.monotonic() - since < SETTLED:
        time.sleep(0.1)
        found = len(list(grid.get_node_ids()))
        if found != count:
            count, since = found, time.monotonic()
    if count < nodes:
        raise TrustmixError(
            f"The simulation has {count} SuperNodes and the recipe {nodes} clients; add "
            f"--federation-config 'num-supernodes={nodes}' to flwr run, or clients={count} to the run's settings."
        )

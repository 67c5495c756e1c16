"""Both sides of a run as apps for Flower's own commands; the app folder `trustmix/flower` names them.

`trustmix serve` and `trustmix join` do not use them.
"""

import logging
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from trustmix.deploy.node import NodeConfig
from trustmix.deploy.server import prepare_server, run_server
from trustmix.deploy.supernode import make_handler
from trustmix.errors import TrustmixError
from trustmix.settings.recipe import Recipe

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
        Its run configuration has `recipe`, `out` and `nodes` (0 for the recipe's number of clients).
    """
    logging.basicConfig(format="%(message)s")
    logging.getLogger("trustmix").setLevel(logging.INFO)
    config = context.run_config
    setup = prepare_server(Recipe.load(str(config["recipe"])), Path(str(config["out"])))
    if not setup.run_directory.finished:
        run_server(setup, grid, nodes=int(config["nodes"]) or None)


@client_app.train()
@client_app.query("hello")
@client_app.query("public")
@client_app.query("refused")
def handle_message(message: Message, context: Context) -> Message:
    """Handle one message to the node whose file the SuperNode's configuration names.

    Parameters
    ----------
    message : Message
        A message of the server.
    context : Context
        Its node configuration has `node`, the path of a node's file.

    Returns
    -------
    Message

    Raises
    ------
    TrustmixError
        If the configuration names no file.
    """
    if "node" not in context.node_config:
        raise TrustmixError("Start the SuperNode with --node-config 'node=\"/path/to/node.toml\"'.")
    return make_handler(NodeConfig.load(str(context.node_config["node"]))).handle(message)

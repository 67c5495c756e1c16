"""A node that takes part in runs (`trustmix join`): a SuperNode, started again whenever it ends, and its messages."""

import logging
import time
from pathlib import Path

from trustmix import storage
from trustmix.deploy.flower_processes import SuperNode
from trustmix.deploy.keys import NodeKeys
from trustmix.deploy.message_handler import MessageHandler
from trustmix.deploy.node import NodeConfig, build_node_client
from trustmix.deploy.superlink import NODE_ID_FILE, ReplyNotDelivered, deactivate_node, handle_next_message
from trustmix.errors import TrustmixError

log = logging.getLogger(__name__)

POLL_INTERVAL = 0.5
"""Seconds between two queries for a message."""
RESTART_DELAY = 3.0
"""Seconds before a SuperNode is started again."""


def join(node: NodeConfig, server: str, keys: NodeKeys | None) -> None:
    """Take part in the server's runs until interrupted.

    Parameters
    ----------
    node : NodeConfig
        The node's settings.
    server : str
        The server's address, HOST:PORT.
    keys : NodeKeys, optional
        The node's keys; without them there is no TLS.

    Raises
    ------
    TrustmixError
        If the server refuses the node.
    """
    storage.make_private_directory(node.state_folder)
    supernode = SuperNode(node.state_folder / "flower", server, keys)
    handler = make_handler(node)
    log.info("client %s joins %s", handler.client_id, server)
    try:
        serve_node(supernode, handler)
    finally:
        supernode.stop()


def make_handler(node: NodeConfig) -> MessageHandler:
    """The handler of the messages to a node.

    Parameters
    ----------
    node : NodeConfig
        The node's settings.

    Returns
    -------
    MessageHandler
    """
    return MessageHandler(
        node.id,
        node.state_folder,
        lambda run_info, public, folder: build_node_client(node, run_info, public, folder),
        1e9 * node.allow.disk,
    )


def serve_node(supernode: SuperNode, handler: MessageHandler) -> None:
    """Handle the messages that the SuperNode fetches, without end; start it again whenever it ends.

    Parameters
    ----------
    supernode : SuperNode
        The SuperNode, not started.
    handler : MessageHandler
        Answers the messages.

    Raises
    ------
    TrustmixError
        If the server never accepted the node's key. A node that it accepted before tries again.
    """
    supernode.launch()
    while True:
        if not supernode.is_running:
            _restart(supernode, handler.folder)
        try:
            if not handle_next_message(supernode, handler):
                time.sleep(POLL_INTERVAL)
        except ReplyNotDelivered as error:
            # a SuperNode with a part of a reply would wait for the rest without end
            log.info("%s", error)
            supernode.stop()


def _restart(supernode: SuperNode, folder: Path) -> None:
    """Start a SuperNode that has ended, if the server accepted the node before."""
    node_id_file = folder / NODE_ID_FILE
    if not node_id_file.exists():
        raise TrustmixError(
            f"The server at {supernode.server} does not let this node in: its key is not registered there, another "
            f"node uses it, or the certificate is not the server's. flower-supernode printed: {supernode.log_tail()}"
        )
    log.info("the connection to the server was lost; trying again (%s)", supernode.log_tail())
    if supernode.keys is not None:
        deactivate_node(supernode.server, supernode.keys, int(storage.read_json(node_id_file)))
    time.sleep(RESTART_DELAY)
    supernode.launch()

"""A node that takes part in runs (`trustmix join`): a SuperNode, started again whenever it ends, and its messages."""

import logging
import time
from datetime import UTC, datetime

from trustmix import storage
from trustmix.deploy.export import describe_card, export_model
from trustmix.deploy.message_handler import RUN_OVER, MessageHandler
from trustmix.deploy.node import NodeConfig, build_node_client
from trustmix.deploy.superlink import NODE_ID_FILE, ReplyNotDelivered, deactivate_node, handle_next_message
from trustmix.errors import TrustmixError
from trustmix.transport.flower_processes import SuperNode
from trustmix.transport.keys import NodeKeys, warn_of_expiry
from trustmix.transport.node_auth import UNKNOWN_KEY, WRONG_CLOCK

log = logging.getLogger(__name__)

POLL_INTERVAL = 0.2
"""Seconds between two queries for a message."""
RESTART_DELAY = 3.0
"""Seconds before a SuperNode is started again."""
DISCONNECT_TIMEOUT = 120.0
"""Seconds for which a server may count a node as connected that was killed; Flower does so for one minute."""
KEY_IN_USE = "Failed to activate SuperNode"
"""What flower-supernode prints if a node with the same key counts as connected."""
CLOCK_ADVICE = "the clock of this machine and that of the server differ by minutes; set it, for example with NTP."
"""What is printed if the server refuses the node's signature because of the time."""


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
    if keys is not None:
        warn_of_expiry(keys.ca_certificate)
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
        lambda folder: log.info("%s", describe_card(export_model(node, folder), node.model_folder)),
        own_test=node.share is None and node.test > 0,
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
        If the server does not know the node's key, or another node uses it. A node that the server accepted before
        tries again.
    """
    supernode.launch()
    begin, logged = time.monotonic(), ""
    while True:
        if not supernode.is_running:
            logged = _restart(supernode, handler, time.monotonic() - begin, logged)
        try:
            if handle_next_message(supernode, handler):
                begin, logged = time.monotonic(), ""
            elif supernode.has_lost_reply():
                # a new connection shows the server that no answer to its request will come
                log.info("an answer of client %s was lost on its way; connecting again", handler.client_id)
                supernode.stop()
            else:
                time.sleep(POLL_INTERVAL)
        except ReplyNotDelivered as error:
            # a SuperNode with a part of a reply would wait for the rest without end
            log.info("%s", error)
            supernode.stop()


def _restart(supernode: SuperNode, handler: MessageHandler, elapsed: float, logged: str) -> str:
    """Start a SuperNode that has ended, unless the server does not let the node in; what it logs, it logs once."""
    node_id_file, reason = handler.folder / NODE_ID_FILE, supernode.log_tail()
    client = handler.client_id
    if f"'{UNKNOWN_KEY} " in reason:
        raise TrustmixError(
            f"The server at {supernode.server} does not let this node in: the key of client {client} in "
            f"{supernode.keys and supernode.keys.folder} is not registered there."
        )
    wrong_clock = f"'{WRONG_CLOCK} " in reason
    if wrong_clock and not node_id_file.exists():
        raise TrustmixError(
            f"The server at {supernode.server} does not let this node in: {CLOCK_ADVICE} It is {_utc_now()} UTC here."
        )
    is_waiting = KEY_IN_USE in reason and elapsed < DISCONNECT_TIMEOUT
    if not node_id_file.exists() and not is_waiting:
        raise TrustmixError(
            f"The server at {supernode.server} does not let this node in: another node uses the key of client "
            f"{client}, or the certificate is not the server's. flower-supernode printed: {reason}"
        )
    if KEY_IN_USE in reason:
        text = f"client {client}: the server still counts an earlier connection as open; trying again"
    elif wrong_clock:
        text = f"client {client} is refused, and tries again: {CLOCK_ADVICE}"
    elif handler.finished:
        text = RUN_OVER % client
    else:
        text = f"client {client} has lost the connection to the server; trying again"
    if text != logged:
        log.info("%s", text)
    log.debug("flower-supernode printed: %s", reason)
    if supernode.keys is not None and node_id_file.exists():
        deactivate_node(supernode.server, supernode.keys, int(storage.read_json(node_id_file)))
    time.sleep(RESTART_DELAY)
    supernode.launch()
    return text


def _utc_now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M}"

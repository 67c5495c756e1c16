"""Which clients take part in a run, and how a node becomes one: a handshake of one or two messages.

The first message describes the run; the node replies with its client id. The second carries the public set and is sent
only if the node lacks it. Handshakes go on while a round goes on, so no round waits for a node that joins late.

A client id belongs to the key that it first joined with. The file of the clients keeps the key's fingerprint, so that a
restarted server knows it.
"""

import hashlib
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from trustmix import storage
from trustmix.deploy.run_info import RunInfo
from trustmix.errors import StorageError, TrustmixError
from trustmix.federation.reply_validation import to_valid_utf8
from trustmix.transport.flower_records import MAX_REASON, error_reason, pack_record, unpack_record
from trustmix.transport.quota import UploadQuota
from trustmix.transport.run_grid import MAX_REPLY_BYTES

log = logging.getLogger(__name__)

NODE_POLL_INTERVAL = 2.0
"""Seconds between two queries for the connected nodes."""
HANDSHAKE_RETRY = 30.0
"""Seconds after which a handshake that was lost on its way is begun again."""
MAX_HANDSHAKE_BYTES = 2**20
"""More bytes than a node's answer in a handshake has."""
ATTEMPTS = 3
"""Times that a node may send its answer: a connection that is lost costs a part of one."""
MAX_ID = 64
"""Characters of the longest client id."""
SUPERLINK = 1
"""The node id of Flower's SuperLink itself."""


@dataclass(frozen=True)
class _Node:
    """A connected node, as the SuperLink describes it."""

    name: str
    """The client id for which the node's key is registered; "" without keys."""
    key: str
    """The fingerprint of the registered key; "" without keys."""
    activated_at: str


@dataclass(frozen=True)
class _Handshake:
    """A message of a handshake that the node has not answered yet."""

    node: int
    name: str
    """The client id for which the node's key is registered; "" without keys."""
    step: str
    """Either "hello" (the description of the run), "public" (the public set) or "refused" (why it cannot join)."""


@dataclass
class Membership:
    """The clients of a run, connected or not, and the nodes that are about to join.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the nodes.
    run_info : RunInfo
        The description of the run for nodes that join.
    public_set : bytes
        The public set as a message of `wire`.
    file : Path
        The JSON file with all clients that ever joined and the fingerprints of their keys; a resumed run reads it.
    has_keys : bool
        Whether every node has a registered key. A node without one is then refused.
    quota : UploadQuota
        Gets the bytes that a node needs for its answer to each message.
    max_reply_bytes : int
        The size of the largest reply to a request of a round.
    """

    grid: Grid
    run_info: RunInfo
    public_set: bytes
    file: Path
    has_keys: bool = False
    quota: UploadQuota = field(default_factory=UploadQuota)
    max_reply_bytes: int = MAX_REPLY_BYTES
    own_test: set[str] = field(default_factory=set, init=False)
    """The clients that measure their accuracy on test samples of their own."""
    last_heard: dict[str, float] = field(default_factory=dict, init=False)
    """When each client was connected for the last time, in seconds since 1970."""
    refusals: dict[str, str] = field(default_factory=dict, init=False)
    """Nodes that were refused, with the reason, since `take_refusals` was called."""
    handshakes: dict[str, _Handshake] = field(default_factory=dict, init=False)
    """Messages to nodes that are joining, by message id."""
    _keys: dict[str, str] = field(default_factory=dict, init=False)
    """The fingerprint of the key of each client that ever joined; "" for one that joined without a key."""
    _nodes: dict[int, _Node] = field(default_factory=dict, init=False)
    _node_of: dict[str, int] = field(default_factory=dict, init=False)
    _contacted: dict[int, str] = field(default_factory=dict, init=False)
    """When each node with a handshake was activated; a later activation is a new attempt to join."""
    _retry_at: dict[int, float] = field(default_factory=dict, init=False)
    """When a handshake that was lost on its way is begun again, by node."""
    _last_poll: float = field(default=-math.inf, init=False)

    def __post_init__(self) -> None:
        if self.file.exists():
            self._keys = _parse_clients(storage.read_json(self.file), self.file)

    @property
    def clients(self) -> list[str]:
        """All clients that ever joined, connected or not, in a fixed order."""
        return sorted(self._keys, key=client_sort_key)

    @property
    def connected(self) -> set[str]:
        """The clients whose nodes are connected now."""
        return {client for client, node in self._node_of.items() if node in self._nodes}

    def connected_since(self, client: str) -> str:
        """When a client's node connected.

        Parameters
        ----------
        client : str
            The client id.

        Returns
        -------
        str
            The time as text, or "" for a client that is not connected.
        """
        node = self._nodes.get(self._node_of.get(client, 0))
        return "" if node is None else node.activated_at

    def node_of(self, client: str) -> int:
        """The id of the node of a client that has joined.

        Parameters
        ----------
        client : str
            The client id.

        Returns
        -------
        int
        """
        return self._node_of[client]

    def poll_nodes(self) -> None:
        """Query the connected nodes, and begin a handshake with those that are new."""
        if time.monotonic() - self._last_poll < NODE_POLL_INTERVAL:
            return
        self._last_poll = time.monotonic()
        self._nodes = {
            node.node_id: _Node(node.name, _fingerprint(node.public_key) if node.name else "", node.last_activated_at)
            for node in self.grid.get_nodes()
        }
        self.last_heard |= dict.fromkeys(self.connected, time.time())
        joined = set(self._node_of.values())
        for node, info in self._nodes.items():
            is_new = self._contacted.get(node) != info.activated_at
            if node not in joined and (is_new or self._retry_at.get(node, math.inf) <= time.monotonic()):
                self._begin_handshake(node)

    def handle_reply(self, message: Message) -> None:
        """Continue or end a handshake.

        Parameters
        ----------
        message : Message
            The reply to a message in `handshakes`.
        """
        handshake = self.handshakes.pop(message.metadata.reply_to_message_id)
        node, facts = handshake.node, dict[str, object]()
        if handshake.step == "refused":
            return
        try:
            validate_source(message, node)
            if message.has_error():
                self._retry_at[node] = time.monotonic() + HANDSHAKE_RETRY
                raise TrustmixError(error_reason(message))
            facts, _ = unpack_record(message.content)
            if "failure" not in facts:
                self._continue_handshake(handshake, facts)
                return
            reason = str(facts["failure"])[:MAX_REASON]
        except TrustmixError as error:
            reason = str(error)
            if not message.has_error():
                self._send_handshake(replace(handshake, step="refused"), self._pack_refusal(reason))
        name = handshake.name or str(facts.get("client", handshake.node))[:MAX_ID]
        self.refusals[to_valid_utf8(name)] = to_valid_utf8(reason)
        log.info("%s %s cannot join: %s", "node" if handshake.name else "a node that calls itself", name, reason)

    def take_refusals(self) -> dict[str, str]:
        """The nodes that were refused since the last call.

        Returns
        -------
        dict of str to str
            The reason, by the name of the node's key, or by the name that it claims.
        """
        taken, self.refusals = self.refusals, {}
        return taken

    def _pack_refusal(self, reason: str) -> RecordDict:
        """The message by which a node gets to know why its answer was refused."""
        return pack_record({"run": self.run_info.run, "reason": reason[:MAX_REASON]})

    def send(self, client: str, content: RecordDict, group: str, ttl: float | None) -> str | None:
        """Send a request to a connected client.

        Parameters
        ----------
        client : str
            The client id.
        content : RecordDict
            The content of the message.
        group : str
            Flower's group of the message: the round.
        ttl : float, optional
            Seconds after which the request is void.

        Returns
        -------
        str or None
            The message id, or None if Flower did not accept the message.
        """
        return self._send(self._node_of[client], content, "train", group, ttl)

    def reset(self, client: str) -> None:
        """Disconnect a client, so that its node gets another handshake.

        Parameters
        ----------
        client : str
            The client id.
        """
        self._contacted.pop(self._node_of.pop(client, 0), None)

    def _begin_handshake(self, node: int) -> None:
        """Send the description of the run; an earlier handshake with the same node is void."""
        self.handshakes = {key: handshake for key, handshake in self.handshakes.items() if handshake.node != node}
        self._contacted[node] = self._nodes[node].activated_at
        self._retry_at.pop(node, None)
        handshake = _Handshake(node, self._nodes[node].name, "hello")
        self._send_handshake(handshake, pack_record(self.run_info.model_dump()))

    def _continue_handshake(self, handshake: _Handshake, facts: Mapping[str, object]) -> None:
        """Add the client of a node that has the public set; send the public set to a node that lacks it."""
        client = str(facts.get("client", ""))
        self._validate_identity(client, handshake.node)
        if facts.get("own_test") is True:
            self.own_test.add(client)
        if facts.get("public") is True:
            self._add_client(client, handshake.node)
        elif handshake.step == "hello":
            content = pack_record({"run": self.run_info.run}, self.public_set)
            self._send_handshake(replace(handshake, step="public"), content)
        else:
            raise TrustmixError("it has no public set although it was sent one")

    def _send_handshake(self, handshake: _Handshake, content: RecordDict) -> None:
        """Send a message of a handshake; if Flower does not accept it, the next poll begins the handshake again."""
        message_id = self._send(handshake.node, content, f"query.{handshake.step}", handshake.step)
        if message_id is not None:
            self.handshakes[message_id] = handshake
        elif handshake.step != "refused":
            self._contacted.pop(handshake.node, None)

    def _send(self, node: int, content: RecordDict, kind: str, group: str, ttl: float | None = None) -> str | None:
        size = self.max_reply_bytes if kind == "train" else MAX_HANDSHAKE_BYTES
        self.quota.grant(self._nodes[node].name if node in self._nodes else "", ATTEMPTS * size)
        message = Message(content, dst_node_id=node, message_type=kind, group_id=group, ttl=ttl)
        message_ids = list(self.grid.push_messages([message]))
        return message_ids[0] if message_ids and message_ids[0] else None

    def _validate_identity(self, client: str, node: int) -> None:
        """Refuse a client id that is not that of the node's key; without keys, any valid id is accepted."""
        validate_client_id(client)
        info = self._nodes.get(node)
        if info is None:
            self._contacted.pop(node, None)  # when it is connected again it gets another handshake
            raise TrustmixError("it was not connected any more when its answer came, so its key is not known")
        if self.has_keys and not info.name:
            raise TrustmixError(f'it claims to be client "{client}", but no client is registered for its key')
        if info.name and info.name != client:
            raise TrustmixError(
                f'it claims to be client "{client}", but its key is registered for client "{info.name}"'
            )
        known = self._keys.get(client, "")
        if known and known != info.key:
            raise TrustmixError(
                f'client "{client}" has joined this run with another key; if the key was replaced on purpose, remove '
                f"the client from {self.file.name} in the folder checkpoint of the run and start the server again"
            )

    def _add_client(self, client: str, node: int) -> None:
        self._node_of[client], self.last_heard[client] = node, time.time()
        log.info("client %s %s", client, "is back" if client in self._keys else "has joined")
        key = self._nodes[node].key
        if self._keys.get(client) != key:
            self._keys[client] = key
            storage.write_json(self.file, {name: self._keys[name] for name in self.clients})


def validate_source(message: Message, node: int) -> None:
    """Refuse a reply that does not come from the node that was sent the request.

    Parameters
    ----------
    message : Message
        A reply. One that the SuperLink makes, as for a node that is gone, has an error and no content.
    node : int
        The id of the node that was sent the request.

    Raises
    ------
    TrustmixError
        If the reply comes from another node.
    """
    source = message.metadata.src_node_id
    if source != node and not (message.has_error() and source == SUPERLINK):
        raise TrustmixError(f"the reply came from node {source}, the request went to node {node}")


def _fingerprint(public_key: bytes) -> str:
    return hashlib.sha256(public_key).hexdigest()


def _parse_clients(found: object, file: Path) -> dict[str, str]:
    """The clients and the fingerprints of their keys; a list of an earlier version has no fingerprints."""
    if isinstance(found, list) and all(isinstance(client, str) for client in found):
        return dict.fromkeys(found, "")
    if isinstance(found, dict) and all(isinstance(key, str) for key in found.values()):
        return found
    raise StorageError(f"{file} is not the list of a run's clients; restore it or start the run anew.")


def client_sort_key(client: str) -> tuple[bool, int, str]:
    """Sorts ids that are numbers first, by value, and then the others, by name.

    Parameters
    ----------
    client : str
        The client id.

    Returns
    -------
    tuple of (bool, int, str)

    Examples
    --------
    >>> sorted(["10", "north", "9"], key=client_sort_key)
    ['9', '10', 'north']
    """
    return (False, int(client), "") if client.isdecimal() and client.isascii() else (True, 0, client)


def validate_client_id(client: str) -> str:
    """Refuse an id that cannot be the name of a file or a column.

    Parameters
    ----------
    client : str
        At most 64 letters, digits and . - _, beginning with a letter or digit.

    Returns
    -------
    str
        The id.

    Raises
    ------
    TrustmixError
        If the id has another form.

    Examples
    --------
    >>> validate_client_id("north-2")
    'north-2'
    """
    plain = client.replace("-", "").replace("_", "").replace(".", "")
    if not (plain.isascii() and plain.isalnum() and client[0].isalnum() and len(client) <= MAX_ID):
        raise TrustmixError(
            f'"{client[:80]}" is no client id; use letters, digits, ".", "-" and "_", at most {MAX_ID}.'
        )
    return client

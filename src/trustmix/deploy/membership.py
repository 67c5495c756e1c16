"""How a node becomes a client of a run: greeted when it appears, asked who it is, given the public set if it lacks it.

All of that happens while a round goes on, so nobody waits for a node that comes late or comes back.
"""

import logging
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from trustmix import storage
from trustmix.deploy.records import error_reason, pack_record, unpack_record
from trustmix.errors import TrustmixError

log = logging.getLogger(__name__)

LOOK = 2.0
"""Seconds between two looks at which nodes are there."""
FORGOTTEN = "it does not know this run"
"""What a client answers whose folder was lost."""


@dataclass(frozen=True)
class RunInfo:
    """What every node is told when it joins."""

    run: str
    """The run's own mark; clients keep their state by it."""
    settings: dict[str, Any]
    """What a client needs to know to take part, JSON-able."""
    fingerprint: str
    """Of the public set."""
    public: bytes
    """The public set as a message."""


@dataclass(frozen=True)
class _Introduction:
    """A node that has not finished joining, and the message it has yet to answer."""

    node: int
    step: str


@dataclass
class Membership:
    """Who is there. `register` is the file that names all clients that ever joined, for a run that goes on."""

    grid: Grid
    welcome: RunInfo
    register: Path
    known: list[str] = field(default_factory=list, init=False)
    """All clients that ever joined, connected or not, in a fixed order."""
    introductions: dict[str, _Introduction] = field(default_factory=dict, init=False)
    """What was sent to nodes that are joining, by the message's mark."""
    _nodes: dict[int, NodeInfo] = field(default_factory=dict, init=False)
    _node_of: dict[str, int] = field(default_factory=dict, init=False)
    _met: dict[int, str] = field(default_factory=dict, init=False)
    """When each node was activated that was sent a handshake; a later activation is a new attempt to join."""
    _looked: float = field(default=-math.inf, init=False)

    def __post_init__(self) -> None:
        if self.register.exists():
            self.known = list(storage.read_json(self.register))

    @property
    def connected(self) -> set[str]:
        """The clients whose nodes are there now."""
        return {client for client, node in self._node_of.items() if node in self._nodes}

    def since(self, client: str) -> str:
        """Since when a client's node has been there; "" if it is not."""
        node = self._nodes.get(self._node_of.get(client, 0))
        return "" if node is None else str(node.last_activated_at)

    def look(self) -> None:
        """See which nodes are there, and greet those that are new."""
        if time.monotonic() - self._looked < LOOK:
            return
        self._looked = time.monotonic()
        self._nodes = {node.node_id: node for node in self.grid.get_nodes()}
        joined = set(self._node_of.values())
        for node, info in self._nodes.items():
            if node not in joined and self._met.get(node) != info.last_activated_at:
                self._greet(node)

    def hear(self, message: Message) -> None:
        """Take one step on with a node that is joining."""
        introduction = self.introductions.pop(message.metadata.reply_to_message_id)
        try:
            if message.has_error():
                raise TrustmixError(error_reason(message))
            facts, _ = unpack_record(message.content)
            if "failure" in facts:
                raise TrustmixError(str(facts["failure"])[:500])
            client = str(facts.get("client", ""))
            self._check_identity(client, introduction.node)
            if facts.get("public") is True:
                self._join(client, introduction.node)
            elif introduction.step == "hello":
                content = pack_record({"run": self.welcome.run}, self.welcome.public)
                self._introduce(_Introduction(introduction.node, "public"), content)
            else:
                raise TrustmixError("it has no public set although it was sent one")
        except TrustmixError as error:
            log.info("a node cannot join: %s", error)

    def send(self, client: str, content: RecordDict, group: str, lasting: float | None) -> str | None:
        """Send a request to a connected client, good for some seconds; its mark, or None if that fails."""
        return self._send(self._node_of[client], content, "train", group, lasting)

    def forget(self, client: str) -> None:
        """Introduce a client's node once more."""
        self._met.pop(self._node_of.pop(client), None)

    def _send(self, node: int, content: RecordDict, kind: str, group: str, lasting: float | None = None) -> str | None:
        message = Message(content, dst_node_id=node, message_type=kind, group_id=group, ttl=lasting)
        sent = list(self.grid.push_messages([message]))
        return sent[0] if sent and sent[0] else None

    def _greet(self, node: int) -> None:
        """Begin a handshake; an earlier one with the same node is void."""
        self.introductions = {mark: entry for mark, entry in self.introductions.items() if entry.node != node}
        facts = {"run": self.welcome.run, "fingerprint": self.welcome.fingerprint, **self.welcome.settings}
        self._met[node] = self._nodes[node].last_activated_at
        self._introduce(_Introduction(node, "hello"), pack_record(facts))

    def _introduce(self, introduction: _Introduction, content: RecordDict) -> None:
        """Send a message of a handshake; one that Flower does not take begins again at the next look."""
        mark = self._send(introduction.node, content, f"query.{introduction.step}", introduction.step)
        if mark is None:
            self._met.pop(introduction.node, None)
        else:
            self.introductions[mark] = introduction

    def _check_identity(self, client: str, node: int) -> None:
        """A client is who its key says; without keys, who it says itself."""
        validate_client_id(client)
        name = self._nodes[node].name if node in self._nodes else ""
        if name and name != client:
            raise TrustmixError(f'it says it is client "{client}", but its key is registered for "{name}"')

    def _join(self, client: str, node: int) -> None:
        self._node_of[client] = node
        log.info("client %s %s", client, "is back" if client in self.known else "has joined")
        if client not in self.known:
            self.known = sorted([*self.known, client], key=in_order)
            storage.write_json(self.register, self.known)


def in_order(client: str) -> tuple[bool, int, str]:
    """Clients named by numbers come first, by size; others by name.

    >>> sorted(["10", "north", "9"], key=in_order)
    ['9', '10', 'north']
    """
    return (False, int(client), "") if client.isdecimal() and client.isascii() else (True, 0, client)


def validate_client_id(client: str) -> str:
    """A client's id becomes a name of files and of columns: letters, digits and . - _ only, and not too long.

    >>> validate_client_id("north-2")
    'north-2'
    """
    plain = client.replace("-", "").replace("_", "").replace(".", "")
    if not (plain.isascii() and plain.isalnum() and client[0].isalnum() and len(client) <= 64):
        raise TrustmixError(f'"{client[:80]}" is no client id; use letters, digits, ".", "-" and "_", at most 64.')
    return client

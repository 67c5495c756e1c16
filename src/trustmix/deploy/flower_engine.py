"""The engine whose clients are behind a Flower grid: one request per client and round, replies until the deadline.

A client that is not connected, does not reply in time or has not answered an earlier request is left out of the round.
It gets the request of the next round, with the newest teacher. An answer that arrives after its round is handed over in
the round in which it arrives; what becomes of it is participation.late.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flwr.app import Message

from trustmix.deploy.membership import Membership, client_sort_key, validate_source
from trustmix.errors import TrustmixError
from trustmix.federation import Failure, Reply, Request
from trustmix.transport.flower_records import pack_request, parse_reply
from trustmix.transport.refusal import UNKNOWN_RUN

log = logging.getLogger(__name__)

POLL_INTERVAL = 0.5
"""Seconds between two queries for replies."""
TTL_IN_DEADLINES = 3
"""The time to live of a request, in deadlines; a client that has not replied by then can be sent another."""
MIN_TTL = 60.0
"""The shortest time to live of a request, in seconds."""


@dataclass(frozen=True)
class _PendingRequest:
    """A request without a reply."""

    client: str
    request: Request
    node: int
    connected_since: str
    """When the client's node had connected; a node that reconnects has lost the request."""


@dataclass
class FlowerEngine:
    """An engine for clients behind a Flower grid.

    Parameters
    ----------
    membership : Membership
        The clients of the run.
    expected_clients : int
        Clients to wait for before the first round.
    quorum : float
        Fraction of the clients of a round that must be available before requests are sent.
    deadline : float, optional
        Seconds to wait for replies. Without it, a round waits as long as the nodes are connected.
    clock : callable
        Seconds since any fixed moment, by which the deadline is measured.
    on_poll : callable
        Called whenever the nodes were polled, with the clients whose answers are awaited.
    """

    membership: Membership
    expected_clients: int
    quorum: float = 0.5
    deadline: float | None = None
    clock: Callable[[], float] = time.monotonic
    on_poll: Callable[[Collection[str]], None] = lambda _: None
    _waiting: dict[str, str] = field(default_factory=dict, init=False)
    """The clients whose answers the round waits for, by message id."""
    _late: dict[str, Reply] = field(default_factory=dict, init=False)
    """Answers that arrived after their rounds, by client."""
    _pending: dict[str, _PendingRequest] = field(default_factory=dict, init=False)
    """Requests without a reply, by message id; those of earlier rounds included."""

    @property
    def clients(self) -> Sequence[str]:
        """All clients that ever joined, connected or not, in a fixed order."""
        return list(self.membership.clients)

    def wait_for_clients(self, grace: float, *, resumed: bool) -> None:
        """Wait until a run can begin or continue.

        Parameters
        ----------
        grace : float
            Seconds that a resumed run waits for its other clients once the quorum is connected.
        resumed : bool
            Whether the run has begun before. A new run waits for `expected_clients`, a resumed one for the quorum.
        """
        known = len(self.clients)
        needed = self._quorum_size(known) if resumed else self.expected_clients
        log.info("waiting for %d clients", needed)
        self.membership.poll_nodes()
        self.on_poll([])
        while len(self._available) < needed:
            self._poll()
        end = self.clock() + grace
        while resumed and len(self.membership.connected) < known and self.clock() < end:
            self._poll()
        log.info("clients: %s", ", ".join(sorted(self.membership.connected, key=client_sort_key)))

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        """Send the requests to the clients that are available, and yield their replies until the deadline.

        Parameters
        ----------
        requests : mapping of client id to Request
            The request to each client.

        Yields
        ------
        Reply or Failure
            One for each request.
        """
        self._wait_for_quorum(requests)
        end = math.inf if self.deadline is None else self.clock() + self.deadline
        self._waiting, left_out = {}, list[Failure]()
        for client, request in requests.items():
            sent = self._send(client, request)
            if isinstance(sent, Failure):
                left_out.append(sent)
            else:
                self._waiting[sent] = client
        while self._waiting and self.clock() < end:
            for message_id, message in self._poll():
                client = self._waiting.pop(message_id)
                self._late.pop(client, None)
                yield self._parse(client, requests[client], message)
        left_out += [
            Failure(client, f"no answer within {self.deadline:g} s", kind="late") for client in self._waiting.values()
        ]
        self._waiting = {}
        for failure in left_out:
            yield replace(failure, late=self._late.pop(failure.client, None))

    def close(self) -> None:
        """Do nothing: the caller that opened the grid closes it."""

    def _quorum_size(self, clients: int) -> int:
        return max(1, math.ceil(self.quorum * clients))

    def _wait_for_quorum(self, clients: Collection[str]) -> None:
        """Wait until a quorum of these clients is available: with fewer, the round could only fail."""
        needed = self._quorum_size(len(clients))
        self.membership.poll_nodes()
        logged = False
        while len(available := self._available & set(clients)) < needed:
            if not logged:
                log.info(
                    "waiting: %d of %d clients are available, the quorum is %d", len(available), len(clients), needed
                )
                logged = True
            self._poll()

    @property
    def _available(self) -> set[str]:
        """Connected clients without a pending request of an earlier round."""
        return self.membership.connected - {pending.client for pending in self._pending.values()}

    def _send(self, client: str, request: Request) -> str | Failure:
        """Send a request; its message id, or the reason why it was not sent."""
        if client not in self.membership.connected:
            return Failure(client, "not connected", sent=False, kind="absent")
        earlier = [pending.request.round for pending in self._pending.values() if pending.client == client]
        if earlier:
            reason = f"it has not answered the request of round {max(earlier)} yet"
            return Failure(client, reason, sent=False, kind="late")
        content = pack_request(self.membership.run_info.run, request)
        ttl = None if self.deadline is None else max(TTL_IN_DEADLINES * self.deadline, MIN_TTL)
        message_id = self.membership.send(client, content, str(request.round), ttl)
        if message_id is None:
            return Failure(client, "the request could not be sent", sent=False)
        self._pending[message_id] = _PendingRequest(
            client, request, self.membership.node_of(client), self.membership.connected_since(client)
        )
        return message_id

    def _parse(self, client: str, request: Request, message: Message | None) -> Reply | Failure:
        """A client's reply; a client that has lost its folder is reset."""
        if message is None:
            return Failure(client, "its node reconnected and had lost the request", kind="absent")
        reply = parse_reply(client, request, message)
        if isinstance(reply, Failure) and reply.reason == UNKNOWN_RUN:
            self.membership.reset(client)
        return reply

    def _accept(self, message_id: str, message: Message) -> list[tuple[str, Message | None]]:
        """The reply, if it comes from the node that was sent the request; the request stays pending otherwise.

        A reply that no round waits for any more is kept.
        """
        pending = self._pending[message_id]
        try:
            validate_source(message, pending.node)
        except TrustmixError as error:
            log.info("a reply for client %s is refused: %s", pending.client, error)
            return []
        del self._pending[message_id]
        if message_id in self._waiting:
            return [(message_id, message)]
        reply = self._parse(pending.client, pending.request, message)
        if isinstance(reply, Reply):
            self._late[pending.client] = reply
        log.info("client %s has answered the request of round %d late", pending.client, pending.request.round)
        return []

    def _poll(self) -> list[tuple[str, Message | None]]:
        """Replies that have arrived, by message id, None for those that never will; handshakes are continued."""
        time.sleep(POLL_INTERVAL)
        self.membership.poll_nodes()
        message_ids = {*self._pending, *self.membership.handshakes}
        replies: list[tuple[str, Message | None]] = []
        for message in self.membership.grid.pull_messages(message_ids) if message_ids else []:
            message_id = message.metadata.reply_to_message_id
            if message_id in self.membership.handshakes:
                self.membership.handle_reply(message)
            elif message_id in self._pending:
                replies += self._accept(message_id, message)
        for message_id, pending in list(self._pending.items()):
            if self.membership.connected_since(pending.client) not in ("", pending.connected_since):
                del self._pending[message_id]
                replies += [(message_id, None)] if message_id in self._waiting else []
        answered = {message_id for message_id, _ in replies}
        self.on_poll([client for message_id, client in self._waiting.items() if message_id not in answered])
        return replies

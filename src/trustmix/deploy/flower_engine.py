"""The engine that asks clients over a Flower grid: one request a round, answers until the deadline.

Whoever is not connected, does not answer in time or is still busy with an earlier request is left out of the round and
asked again in the next, with the newest teacher.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from trustmix.deploy.membership import FORGOTTEN, Membership, in_order
from trustmix.deploy.records import pack_request, parse_reply
from trustmix.federation import Failure, Reply, Request

log = logging.getLogger(__name__)

POLL = 0.5
"""Seconds between two looks at what has arrived."""


LASTING = 3
"""Deadlines after which a request is void: a client that has not answered it by then may be asked again."""


@dataclass(frozen=True)
class _Sent:
    """A request that has not been answered."""

    client: str
    since: str
    """Since when the client's node had been there: a node that has come anew knows nothing of it."""


@dataclass
class FlowerEngine:
    """Clients behind a grid, as the reception lets them in."""

    reception: Membership
    expected: int
    """Clients to wait for before the first round."""
    quorum: float = 0.5
    """Part of the asked clients that must be there before they are asked."""
    deadline: float | None = None
    """Seconds to wait for answers; without it, as long as the nodes are there."""
    _sent: dict[str, _Sent] = field(default_factory=dict, init=False)

    @property
    def clients(self) -> Sequence[str]:
        """All clients that ever joined, connected or not, in a fixed order."""
        return list(self.reception.known)

    def gather(self, grace: float, *, begun: bool) -> None:
        """Wait for the expected clients; of a run that goes on, for a quorum, and `grace` seconds for the others."""
        known = len(self.clients)
        needed = self._needed(known) if begun else self.expected
        log.info("waiting for %d clients", needed)
        self._wait_for(needed)
        end = time.monotonic() + grace
        while begun and len(self.reception.connected) < known and time.monotonic() < end:
            self._listen()
        log.info("clients: %s", ", ".join(sorted(self.reception.connected, key=in_order)))

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        """Ask the clients that can be asked and pass on what they answer before the deadline."""
        self._wait_for(self._needed(len(requests)), requests)
        end = math.inf if self.deadline is None else time.monotonic() + self.deadline
        waiting: dict[str, str] = {}
        for client, request in requests.items():
            sent = self._ask(client, request)
            if isinstance(sent, Failure):
                yield sent
            else:
                waiting[sent] = client
        while waiting and time.monotonic() < end:
            for mark, message in self._listen():
                client = waiting.pop(mark, "")
                if client:
                    yield self._checked(client, requests[client], message)
        for client in waiting.values():
            yield Failure(client, f"no answer within {self.deadline:g} s")

    def close(self) -> None:
        """Nothing is held: the grid is its maker's."""

    def _needed(self, asked: int) -> int:
        return max(1, math.ceil(self.quorum * asked))

    def _wait_for(self, needed: int, among: Mapping[str, Request] | None = None) -> None:
        """Go on when that many clients can be asked: asking fewer could only fail."""
        self.reception.look()
        told = among is None
        while len(free := self._free if among is None else self._free & set(among)) < needed:
            if not told:
                log.info(
                    "waiting: of %d clients %d can be asked, the quorum is %d", len(among or []), len(free), needed
                )
                told = True
            self._listen()

    @property
    def _free(self) -> set[str]:
        """Connected clients that are not busy with a request they did not answer in time."""
        return self.reception.connected - {sent.client for sent in self._sent.values()}

    def _ask(self, client: str, request: Request) -> str | Failure:
        """Send a request; its mark, or why it cannot be sent."""
        if client not in self.reception.connected:
            return Failure(client, "not connected", sent=False)
        if client not in self._free:
            return Failure(client, "still busy with an earlier round", sent=False)
        content = pack_request(self.reception.welcome.run, request)
        lasting = None if self.deadline is None else max(LASTING * self.deadline, 60.0)
        mark = self.reception.send(client, content, str(request.round), lasting)
        if mark is None:
            return Failure(client, "the request could not be sent", sent=False)
        self._sent[mark] = _Sent(client, self.reception.since(client))
        return mark

    def _checked(self, client: str, request: Request, message: Message | None) -> Reply | Failure:
        """A client's answer; one that has lost what it was told is introduced again."""
        if message is None:
            return Failure(client, "its link was lost and taken up again; the request went with it")
        answer = parse_reply(client, request, message)
        if isinstance(answer, Failure) and answer.reason == FORGOTTEN:
            self.reception.forget(client)
        return answer

    def _listen(self) -> list[tuple[str, Message | None]]:
        """The answers that have arrived, None for those that never will; introductions go on by the way."""
        time.sleep(POLL)
        self.reception.look()
        marks = {*self._sent, *self.reception.introductions}
        found: list[tuple[str, Message | None]] = []
        for message in self.reception.grid.pull_messages(marks) if marks else []:
            mark = message.metadata.reply_to_message_id
            if mark in self.reception.introductions:
                self.reception.hear(message)
            elif self._sent.pop(mark, None):
                found.append((mark, message))
        for mark, sent in list(self._sent.items()):
            if self.reception.since(sent.client) not in ("", sent.since):
                del self._sent[mark]
                found.append((mark, None))
        return found


def server_app(serve: Callable[[Grid, dict[str, Any]], None]) -> ServerApp:
    """The ServerApp for a SuperLink that starts one process a run; its run configuration says what to do."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        logging.basicConfig(format="%(message)s")
        logging.getLogger("trustmix").setLevel(logging.INFO)
        serve(grid, dict(context.run_config))

    return app

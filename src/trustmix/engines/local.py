"""Clients in this process, one after another."""

import logging
from collections.abc import Iterator, Mapping, Sequence

from trustmix.errors import StorageError, TrustmixError
from trustmix.federation import ENGINES, Client, Failure, Reply, Request

log = logging.getLogger(__name__)


@ENGINES.register("local")
class LocalEngine:
    """Asks the clients in turn; answers come in the order of the requests."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = {client.id: client for client in clients}
        if len(self._clients) != len(clients):
            raise TrustmixError("Two clients have the same id; every client needs one of its own.")
        if not clients:
            raise TrustmixError("A federation needs at least one client.")

    @property
    def clients(self) -> Sequence[str]:
        """The clients' ids, in the order given."""
        return list(self._clients)

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        """One step of each client asked; an error of a client's is its own and becomes its `Failure`."""
        for client, request in requests.items():
            try:
                answer: Reply | Failure = self._clients[client].step(request)
            except StorageError:
                raise
            except Exception as error:  # a client may run anybody's model
                log.debug("client %s failed", client, exc_info=True)
                answer = Failure(client, f"{type(error).__name__}: {error}")
            yield answer

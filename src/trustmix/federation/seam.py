"""Where clients run is one seam: an engine carries requests to clients and brings their answers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

from trustmix.federation.client import Client
from trustmix.federation.messages import Failure, Reply, Request
from trustmix.registry import Registry


class Engine(Protocol):
    """Anything that can carry one exchange."""

    @property
    def clients(self) -> Sequence[str]:
        """The ids of all clients that may be asked, in a fixed order."""

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[Reply | Failure]:
        """Exactly one answer for each request, as they arrive; in the order of the requests where that is free.

        A client's error comes back as a `Failure`; a `StorageError` is raised, since it concerns the whole run.
        """

    def close(self) -> None:
        """Release what the engine holds; it is not used any more."""


EngineFactory: TypeAlias = Callable[[Sequence[Client]], Engine]

ENGINES: Registry[EngineFactory] = Registry("engine")

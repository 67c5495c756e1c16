"""Where clients run: an engine carries requests to clients and brings their answers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from trustmix.federation.folding import MakeFolder, PartialRound
from trustmix.federation.messages import Failure, Reply, Request
from trustmix.learners.training import DeviceConfig
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


@runtime_checkable
class FoldingEngine(Engine, Protocol):
    """An engine whose workers can fold the uploads of their clients."""

    def exchange_folded(
        self, requests: Mapping[str, Request], make_folder: MakeFolder
    ) -> Iterator[Reply | Failure | PartialRound]:
        """As `exchange`; what a worker has folded comes before the answers of its clients, or not at all."""


@dataclass(frozen=True)
class EngineSetup:
    """An engine that can carry exchanges, and what it made of what was left to it."""

    engine: Engine
    description: str
    """How clients are run, and how that was found, in a line for the user."""
    resolved: Mapping[str, Any] = field(default_factory=dict)
    """Settings of a recipe's [engine] that may have been open, as they are now: a resumed run goes on with them."""
    hardware: DeviceConfig = field(default_factory=DeviceConfig)
    """Where the server's own model computes, if it has one."""


EngineFactory: TypeAlias = Callable[..., EngineSetup]

ENGINES: Registry[EngineFactory] = Registry("engine", provided_by="trustmix.engines")
"""Functions that make engines: of the clients, of `keep` (models stay in memory between rounds), and of those settings
of a recipe's [engine] that they have parameters for."""

"""What a server does with its clients' replies, as an object with hooks: distillation is one algorithm, FedAvg another.

The server asks clients, checks who answers and keeps the books; the algorithm knows what the messages mean.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from trustmix.aggregation.base import StateDict
from trustmix.aggregation.guard import Guard
from trustmix.federation.callbacks import Callback
from trustmix.federation.client import Client, LabelSharing
from trustmix.federation.engine import Engine
from trustmix.federation.folding import MakeFolder, PartialRound
from trustmix.federation.messages import Reply
from trustmix.federation.public_set import Public


@dataclass(frozen=True)
class ServerContext:
    """What an algorithm has to work with."""

    engine: Engine
    public: Public
    public_labels: torch.Tensor | None = None
    """(N,): labels of public samples that only measure the teacher, -1 unknown."""
    client_classes: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The classes each client holds, where they are known, to measure its density."""
    student: Client | None = None
    """The server's own model, a client without private data."""
    guard: Guard | None = None
    codec: str = "float32"
    """Of what the server sends."""
    labels: LabelSharing | None = None
    """What clients were asked to share of their label sets; None accepts what they send."""
    callbacks: Sequence[Callback] = ()


@dataclass(frozen=True)
class RoundResult:
    """What came of a round at the server."""

    message: bytes | None = None
    """What the next request carries to the clients."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """Fields of the round's record."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time of the algorithm's own stages, beside that of aggregation."""


class ServerAlgorithm(ABC):
    """One method's part of the server. One object serves a run; its memory over rounds is its `state_dict`."""

    wants_uploads: bool = True
    """Whether clients answer with an upload at all."""

    def initial_message(self) -> bytes | None:
        """What the first request carries."""
        return None

    @abstractmethod
    def begin_round(self, round_: int, message: bytes | None) -> None:
        """Get ready for the replies to a request that carried this message."""

    @abstractmethod
    def aggregate(self, reply: Reply) -> None:
        """Take in one reply of the round.

        Raises
        ------
        TrustmixError
            If the reply is refused; nothing of it is kept.
        """

    def make_folder(self, deadline: float | None) -> MakeFolder | None:  # noqa: ARG002 - the interface
        """What folds uploads at a worker that runs clients, in this round; None where uploads travel to the server."""
        return None

    def merge(self, part: PartialRound) -> None:
        """Take in what a worker has folded with a folder of `make_folder`."""
        raise TypeError(f"{type(self).__name__} makes no folders, so it has nothing to merge: {part}")

    @abstractmethod
    def finalize(self, clients: Sequence[str]) -> RoundResult:
        """End the round, these clients' replies being in it, in the engine's order."""

    def guard_report(self) -> dict[str, dict[str, float]]:
        """What a guard did in the round that was ended last, by client."""
        return {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What the next round begins with."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:  # noqa: B027 - most algorithms remember nothing
        """Go on from a round before."""


AlgorithmFactory: TypeAlias = Callable[[ServerContext], ServerAlgorithm]


class LocalOnly(ServerAlgorithm):
    """Clients train on their own data; nothing is exchanged."""

    wants_uploads = False

    def __init__(self, context: ServerContext) -> None:
        self.context = context

    def begin_round(self, round_: int, message: bytes | None) -> None:
        """There is nothing to get ready."""

    def aggregate(self, reply: Reply) -> None:
        """There is nothing in the reply but figures, which the server keeps."""

    def finalize(self, clients: Sequence[str]) -> RoundResult:  # noqa: ARG002 - the interface
        """There is nothing to send."""
        return RoundResult()

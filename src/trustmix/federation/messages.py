"""What server and client say to each other: one request and one reply a round, the same for every engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Absence: TypeAlias = Literal["absent", "late", "refused", "failed"]
"""Why a client is not in a round: not connected, no answer in time, its answer was refused, or its step failed."""


@dataclass(frozen=True)
class Request:
    """Round `round` begins: learn from the last teacher, then train, predict and answer.

    The answer to the request of round r tells the accuracy reached by round r - 1. After the last round comes a
    closing request that only distils and evaluates (`train` is false).
    """

    round: int
    teacher: bytes | None = None
    """The teacher of the round before as a wire message; None in round 1 and for clients that train alone."""
    train: bool = True
    upload: bool = True
    """Whether predictions on the public set are wanted."""


@dataclass(frozen=True)
class Reply:
    """A client's answer."""

    client: str
    round: int
    payload: bytes | None = None
    """The upload as a wire message."""
    accuracy: float | None = None
    """On all classes of the test set, after distillation, before private training: the result of the round before."""
    local_accuracy: float | None = None
    """On the client's own classes, after private training."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent in each stage."""
    epsilon: float | None = None
    """What the client has spent of its privacy so far, if it promises any."""
    epsilon_round: float | None = None
    """What this round alone would have spent."""
    nll: float | None = None
    """The mean negative log-likelihood of the test labels, when `accuracy` was measured."""
    ece: float | None = None
    """The expected calibration error on the test set, then too."""
    balanced_accuracy: float | None = None
    """The mean over classes of the recall on the test set, then too."""
    macro_f1: float | None = None
    """The mean over classes of F1 on the test set, then too."""
    auroc: float | None = None
    """The mean over classes of the area under the ROC curve on the test set, then too."""
    recall: Sequence[float | None] | None = None
    """The recall of each class, then too; it shows which classes occur and is not sent over a network."""
    agreement: float | None = None
    """The fraction of public samples on which the client's class is the teacher's, after distillation."""
    public_epochs: int | None = None
    """The epochs that the distillation took."""
    folded: int | None = None
    """Bytes of the upload, if a worker of the engine has folded it: then `payload` is None. No network sends this."""


@dataclass(frozen=True)
class Failure:
    """A client that did not answer, and why."""

    client: str
    reason: str
    sent: bool = True
    """Whether the request reached the client's machine at all."""
    kind: Absence = "failed"
    late: Reply | None = None
    """An answer of this or of an earlier round that its round did not wait for, where it is known."""

"""The record of a run: one `Round` per line of rounds.jsonl, and the figures of summary.json."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trustmix import storage

ROUND_FORMAT = 1
"""The version of a line of rounds.jsonl."""
SUMMARY_FORMAT = 1
"""The version of summary.json."""
SUMMARY_TYPES: dict[str, Any] = {
    **dict.fromkeys(
        ("best_accuracy", "final_accuracy", "final_local_accuracy", "final_student_accuracy"), float | None
    ),
    **dict.fromkeys(("rounds", "bytes_up", "bytes_down", "paper_bytes_up", "failures"), int),
    **dict.fromkeys(("client_bytes_up", "client_bytes_down"), dict[str, int]),
    "best_round": int | None,
    "epsilon": float | None,
    "seconds": float,
    "method": str | None,
    "label": str,
    "colour": int | str | None,
}
"""The fields of summary.json."""


@dataclass(frozen=True)
class Round:
    """The figures of one round. Accuracies are fractions; dictionaries have the clients' ids as keys."""

    round: int
    method: str
    accuracy_mean: float | None = None
    accuracy: dict[str, float] = field(default_factory=dict)
    """Accuracy on all classes, after distillation from this round's teacher."""
    local_accuracy_mean: float | None = None
    local_accuracy: dict[str, float] = field(default_factory=dict)
    """Accuracy on the client's own classes, after this round's private training."""
    nll_mean: float | None = None
    """Negative log-likelihood of the test labels in nats, mean over clients, measured with `accuracy`."""
    ece_mean: float | None = None
    """Expected calibration error on the test set, mean over clients, measured with `accuracy`."""
    agreement_mean: float | None = None
    agreement: dict[str, float] = field(default_factory=dict)
    """Fraction of public samples on which the client's class is that of this round's teacher, after distillation."""
    public_epochs: dict[str, int] = field(default_factory=dict)
    """Epochs that the client's distillation from this round's teacher took."""
    teacher_accuracy: float | None = None
    """Accuracy of this round's teacher on the public samples whose labels are known."""
    teacher_nll: float | None = None
    """Negative log-likelihood of those labels by the teacher, in nats."""
    teacher_ece: float | None = None
    """Expected calibration error of the teacher on those samples."""
    student_accuracy: float | None = None
    """Accuracy of the server's student on all classes, after distillation from this round's teacher."""
    concentration: float | None = None
    """chi, the mean over public samples of sum_i w_i(x)^2."""
    effective_clients: float | None = None
    """1 / chi."""
    density_auc: float | None = None
    """Mean over clients of the area under the ROC curve of l_i(x) for 'x is of the client's classes', where known."""
    epsilon: float | None = None
    """The largest epsilon that a client of this round has spent so far, where [privacy] is set."""
    epsilon_round: float | None = None
    """The largest epsilon of this round alone; rounds together spend less than the sum."""
    bytes_up: int = 0
    """Bytes of all uploads that arrived, as they were sent: with headers, compressed, refused ones included."""
    client_bytes_up: dict[str, int] = field(default_factory=dict)
    """The same by client."""
    bytes_down: int = 0
    """Bytes of this round's teacher, summed over the clients that it was sent to."""
    client_bytes_down: dict[str, int] = field(default_factory=dict)
    """The same by client."""
    paper_bytes_up: int = 0
    """Bytes as the paper counts them: the participants' predictions in float32, N * C * 4 each, and nothing else."""
    participants: list[str] = field(default_factory=list)
    """Clients whose upload is in the teacher."""
    failed: dict[str, str] = field(default_factory=dict)
    """The reason for every client that was left out."""
    absence: dict[str, str] = field(default_factory=dict)
    """The kind of the reason: absent (not connected), late, refused or failed."""
    late: dict[str, int] = field(default_factory=dict)
    """The age in rounds of each upload in the teacher that arrived after its own round (participation.late)."""
    refused: dict[str, str] = field(default_factory=dict)
    """In a deployment: nodes that tried to join since the round before and were refused, with the reason."""
    own_test: list[str] = field(default_factory=list)
    """In a deployment: clients whose accuracies are measured on test samples of their own, which differ by client."""
    guard: dict[str, dict[str, float]] = field(default_factory=dict)
    """What the guard did to a client: the fraction of its scores that was lowered, its regret, the weight that it kept,
    and the number of replies beyond the first, which were dropped."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by stage, summed over clients."""

    def to_json(self) -> str:
        """Format the round as one line of JSON, with the version of its format."""
        return json.dumps({"format": ROUND_FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, line: str, source: str = "rounds.jsonl") -> "Round":
        """Parse a line that `to_json` wrote.

        Parameters
        ----------
        line
            One line of rounds.jsonl; fields that this version of trustmix does not know are ignored.
        source
            The name of the line in an error message.

        Returns
        -------
        Round
            The round.

        Raises
        ------
        StorageError
            If the line is anything else or is of a newer format.

        Examples
        --------
        >>> Round.from_json(Round(3, "suwa").to_json()).round
        3
        """
        return storage.parse_record(cls, storage.parse_json(line, source), ROUND_FORMAT, source)


@dataclass(frozen=True)
class History:
    """All rounds of a run.

    Examples
    --------
    >>> History([Round(1, "suwa", accuracy_mean=0.5), Round(2, "suwa", accuracy_mean=0.4)]).best_round
    1
    """

    rounds: Sequence[Round]

    @property
    def best_accuracy(self) -> float | None:
        """The largest `accuracy_mean` over rounds, which the paper reports."""
        return max((r.accuracy_mean for r in self.rounds if r.accuracy_mean is not None), default=None)

    @property
    def best_round(self) -> int | None:
        """The first round with the best accuracy."""
        best = self.best_accuracy
        return next((r.round for r in self.rounds if best is not None and r.accuracy_mean == best), None)

    @property
    def final_accuracy(self) -> float | None:
        """The `accuracy_mean` of the last round."""
        return self.rounds[-1].accuracy_mean if self.rounds else None

    def summary(self) -> dict[str, Any]:
        """Compute the figures of summary.json, by name."""
        return {
            "method": self.rounds[-1].method if self.rounds else None,
            "rounds": len(self.rounds),
            "best_accuracy": self.best_accuracy,
            "best_round": self.best_round,
            "final_accuracy": self.final_accuracy,
            "final_local_accuracy": self.rounds[-1].local_accuracy_mean if self.rounds else None,
            "final_agreement": self.rounds[-1].agreement_mean if self.rounds else None,
            "final_student_accuracy": self.rounds[-1].student_accuracy if self.rounds else None,
            "bytes_up": sum(r.bytes_up for r in self.rounds),
            "bytes_down": sum(r.bytes_down for r in self.rounds),
            "paper_bytes_up": sum(r.paper_bytes_up for r in self.rounds),
            "client_bytes_up": dict(sum((Counter(r.client_bytes_up) for r in self.rounds), Counter())),
            "client_bytes_down": dict(sum((Counter(r.client_bytes_down) for r in self.rounds), Counter())),
            "seconds": round(sum(sum(r.seconds.values()) for r in self.rounds), 3),
            "epsilon": max((r.epsilon for r in self.rounds if r.epsilon is not None), default=None),
            "failures": sum(len(r.failed) for r in self.rounds),
        }

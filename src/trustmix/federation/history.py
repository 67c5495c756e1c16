"""The record of a run: one `Round` per line of rounds.jsonl, and the figures of summary.json.

A `History` is a sequence of rounds that a notebook shows as a table, and that pandas and matplotlib take, if installed.
"""

import html
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, overload

from trustmix import records, storage
from trustmix.errors import TrustmixError
from trustmix.imports import require_extra
from trustmix.metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROUND_FORMAT = 1
"""The version of a line of rounds.jsonl."""
SUMMARY_FORMAT = 1
"""The version of summary.json."""
SUMMARY_TYPES: dict[str, Any] = {
    **dict.fromkeys(
        ("best", "final", "best_accuracy", "final_accuracy", "final_local_accuracy", "final_student_accuracy"),
        float | None,
    ),
    **dict.fromkeys(("rounds", "bytes_up", "bytes_down", "paper_bytes_up", "failures"), int),
    **dict.fromkeys(("client_bytes_up", "client_bytes_down"), dict[str, int]),
    "best_round": int | None,
    "epsilon": float | None,
    "seconds": float,
    "metric": str,
    "method": str | None,
    "label": str,
    "colour": int | str | None,
}
"""The fields of summary.json."""


WALL = "wall"
"""The key of the seconds that have passed, among those by stage."""
MAX_RECALLS = 1000
"""Recalls of single clients that a line of rounds.jsonl has at most."""
COUNTED = ("participants", "failed")
"""Fields of a round of which a table has the number."""
SHOWN = ("round", "accuracy_mean", "local_accuracy_mean", "teacher_accuracy", "effective_clients", "seconds")
"""The columns of a history in a notebook."""
PLOTTED = {
    "accuracy_mean": "clients, all classes",
    "local_accuracy_mean": "clients, own classes",
    "teacher_accuracy": "teacher, public set",
    "student_accuracy": "server's student",
}
"""The curves of `History.plot`."""


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
    balanced_accuracy_mean: float | None = None
    balanced_accuracy: dict[str, float] = field(default_factory=dict)
    """Mean over classes of the recall on the test set, measured with `accuracy`."""
    macro_f1_mean: float | None = None
    macro_f1: dict[str, float] = field(default_factory=dict)
    """Mean over classes of F1 on the test set, measured with `accuracy`."""
    auroc_mean: float | None = None
    auroc: dict[str, float] = field(default_factory=dict)
    """Mean over classes of the area under the ROC curve on the test set, measured with `accuracy`."""
    recall_mean: list[float | None] = field(default_factory=list)
    """Recall of each class on the test set, mean over clients; None for a class that does not occur there."""
    recall: dict[str, list[float | None]] = field(default_factory=dict)
    """The same by client, where clients times classes are at most `MAX_RECALLS`."""
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
    teacher_balanced_accuracy: float | None = None
    teacher_macro_f1: float | None = None
    teacher_auroc: float | None = None
    teacher_recall: list[float | None] = field(default_factory=list)
    """Of the teacher on those samples: the same metrics as of clients."""
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
    """Seconds by stage, summed over clients; `wall`: those that have passed since the round before."""

    def __repr__(self) -> str:
        shown = {"accuracy": self.accuracy_mean, "teacher": self.teacher_accuracy}
        figures = "".join(f", {name} {100 * value:.1f} %" for name, value in shown.items() if value is not None)
        return f"<Round {self.round} of {self.method}: {len(self.participants)} clients{figures}>"

    def scalars(self) -> dict[str, float | str | None]:
        """The figures of the round as a whole, by name; of lists and failures their number, of times the sum."""
        found = {}
        for name, value in ((entry.name, getattr(self, entry.name)) for entry in fields(self)):
            if name in COUNTED:
                found[name] = len(value)
            elif not isinstance(value, dict | list):
                found[name] = value
        return found | {"seconds": self.total_seconds}

    @property
    def total_seconds(self) -> float:
        """The seconds that have passed; of runs that did not record them, the sum over stages and clients."""
        return self.seconds.get(WALL, sum(self.seconds.values()))

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
        return records.parse_record(cls, storage.parse_json(line, source), ROUND_FORMAT, source)


@dataclass(frozen=True)
class History(Sequence[Round]):
    """All rounds of a run, as a sequence.

    Examples
    --------
    >>> history = History([Round(1, "suwa", accuracy_mean=0.5), Round(2, "suwa", accuracy_mean=0.4)])
    >>> history
    <History of 2 rounds of suwa: best accuracy 50.0 % in round 1>
    >>> len(history), history[-1].accuracy_mean, [line.round for line in history]
    (2, 0.4, [1, 2])
    """

    rounds: Sequence[Round]
    metric: str = "accuracy"
    """What runs are compared by, a name in `trustmix.metrics.METRICS`."""

    def __len__(self) -> int:
        return len(self.rounds)

    @overload
    def __getitem__(self, index: int) -> Round: ...
    @overload
    def __getitem__(self, index: slice) -> "History": ...
    def __getitem__(self, index: int | slice) -> "Round | History":
        return History(self.rounds[index], self.metric) if isinstance(index, slice) else self.rounds[index]

    def __iter__(self) -> Iterator[Round]:
        return iter(self.rounds)

    def __repr__(self) -> str:
        number = f"{len(self)} round{'s' * (len(self) != 1)}"
        if not self.rounds:
            return f"<History of {number}>"
        best = self.best
        accuracy = "" if best is None else f": best {self.label} {100 * best:.1f} % in round {self.best_round}"
        return f"<History of {number} of {self.rounds[-1].method}{accuracy}>"

    def _repr_html_(self) -> str:
        """A table of the rounds, which notebooks show."""
        head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in SHOWN)
        rows = "".join(
            "<tr>" + "".join(f"<td>{_cell(name, line.scalars()[name])}</td>" for name in SHOWN) + "</tr>"
            for line in self.rounds
        )
        caption = html.escape(repr(self)[1:-1])
        return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def to_frame(self, field: str | None = None) -> Any:
        """The rounds as a DataFrame of pandas.

        Parameters
        ----------
        field
            A field of a round with one figure per client, such as "accuracy"; without it the figures of each round.

        Returns
        -------
        pandas.DataFrame
            One row per round, whose number is the index. A column for each figure that some round has, or for each
            client.

        Raises
        ------
        TrustmixError
            If pandas is not installed, or there is no such field by client.

        Examples
        --------
        >>> history = History([Round(1, "suwa", accuracy_mean=0.5, accuracy={"0": 0.4, "1": 0.6})])
        >>> history.to_frame()["accuracy_mean"].tolist(), history.to_frame("accuracy").loc[1].tolist()
        ([0.5], [0.4, 0.6])
        """
        pandas = require_extra("pandas", "History.to_frame", "notebook")
        index = pandas.Index([line.round for line in self.rounds], name="round")
        if field is not None:
            by_client = [entry.name for entry in fields(Round) if entry.default_factory is dict]
            if field not in by_client:
                raise TrustmixError(f'A round has no "{field}" by client; it has {", ".join(by_client)}.')
            return pandas.DataFrame([getattr(line, field) for line in self.rounds], index=index)
        rows = [line.scalars() for line in self.rounds]
        known = {name for row in rows for name, value in row.items() if value is not None} - {"round"}
        names = [entry.name for entry in fields(Round) if entry.name in known]
        return pandas.DataFrame({name: [row[name] for row in rows] for name in names}, index=index)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the accuracies over the rounds.

        Parameters
        ----------
        ax
            The axes of matplotlib to draw on; new ones by default.

        Returns
        -------
        matplotlib.axes.Axes
            The axes, one curve for each accuracy that is known.

        Raises
        ------
        TrustmixError
            If matplotlib is not installed.

        Examples
        --------
        >>> history = History([Round(1, "suwa", accuracy_mean=0.5), Round(2, "suwa", accuracy_mean=0.6)])
        >>> import matplotlib; matplotlib.use("agg")
        >>> history.plot().get_xlabel()
        'round'
        """
        pyplot = require_extra("matplotlib.pyplot", "History.plot", "notebook")
        axes: Axes = pyplot.subplots()[1] if ax is None else ax
        for name, label in PLOTTED.items():
            known = [(line.round, 100 * value) for line in self.rounds if (value := getattr(line, name)) is not None]
            if known:
                axes.plot(*zip(*known, strict=True), marker=".", label=label)
        axes.set(xlabel="round", ylabel="accuracy, %")
        axes.locator_params(axis="x", integer=True)
        axes.legend()
        return axes

    @property
    def best_accuracy(self) -> float | None:
        """The largest `accuracy_mean` over rounds, which the paper reports."""
        return max((r.accuracy_mean for r in self.rounds if r.accuracy_mean is not None), default=None)

    @property
    def label(self) -> str:
        """What people call the metric that runs are compared by."""
        return METRICS[self.metric]

    @property
    def best(self) -> float | None:
        """The largest mean over clients of the metric that runs are compared by, over rounds."""
        return max((value for r in self.rounds if (value := self._compared(r)) is not None), default=None)

    @property
    def best_round(self) -> int | None:
        """The first round with the best value of the metric that runs are compared by."""
        best = self.best
        return next((r.round for r in self.rounds if best is not None and self._compared(r) == best), None)

    def _compared(self, line: Round) -> float | None:
        found: float | None = getattr(line, f"{self.metric}_mean")
        return found

    @property
    def final_accuracy(self) -> float | None:
        """The `accuracy_mean` of the last round."""
        return self.rounds[-1].accuracy_mean if self.rounds else None

    def summary(self) -> dict[str, Any]:
        """Compute the figures of summary.json, by name."""
        return {
            "method": self.rounds[-1].method if self.rounds else None,
            "rounds": len(self.rounds),
            "metric": self.metric,
            "best": self.best,
            "final": self._compared(self.rounds[-1]) if self.rounds else None,
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
            "seconds": round(sum(r.total_seconds for r in self.rounds), 3),
            "epsilon": max((r.epsilon for r in self.rounds if r.epsilon is not None), default=None),
            "failures": sum(len(r.failed) for r in self.rounds),
        }


def _cell(name: str, value: float | str | None) -> str:
    """A figure in a cell of a table: accuracies in percent."""
    if not isinstance(value, int | float):
        return "–"
    return f"{100 * value:.1f} %" if "accuracy" in name else f"{value:.4g}"

"""Who was trusted for what: a small file a round, from what clients said of some public samples.

Of a fixed draw of the public set (`TRACKED` samples) it keeps the mean share of every client in the teacher's labels of
every class; of the first `SHOWN` of them also every client's share and vote and the teacher itself. A file is written
before its round is committed and is the same when a killed round is played again, so it needs no commit of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trustmix import storage
from trustmix.aggregation.base import Aggregator, Upload
from trustmix.aggregation.client_weights import vote_agreement_weights
from trustmix.federation.callbacks import Callback
from trustmix.seeds import numpy_generator

TRUST_FORMAT = 1
"""The version of the files in trust/."""
TRACKED = 1000
SHOWN = 60


def tracked_indices(samples: int, seed: int) -> torch.Tensor:
    """Which public samples are watched, a draw by the seed; the first `SHOWN` of them are shown.

    >>> len(tracked_indices(5000, 0)), sorted(tracked_indices(3, 0).tolist())
    (1000, [0, 1, 2])
    """
    return torch.from_numpy(numpy_generator(seed, "witness").permutation(samples)[:TRACKED])


@dataclass(frozen=True)
class RoundTrust:
    """One round's file."""

    round: int
    clients: Sequence[str]
    """Those in the teacher."""
    weighed: bool
    """Whether shares are the rule's own weights; if not, of those clients whose vote is the teacher's, all alike."""
    trust: torch.Tensor
    """(M, C): the mean share of a client in samples of a class (the known one, else the teacher's); -1: of none."""
    shares: torch.Tensor
    """(M, shown)."""
    votes: torch.Tensor
    """(M, shown): the class each client finds most probable."""
    teacher: torch.Tensor
    """(shown, C): probabilities."""

    def save(self, folder: Path) -> None:
        """Write the file of its round."""
        names = ("trust", "shares", "votes", "teacher")
        tensors = {name: getattr(self, name) for name in names}
        facts = {"format": TRUST_FORMAT, "round": self.round, "clients": list(self.clients), "weighed": self.weighed}
        storage.write_tensors(folder / f"{self.round:06d}.safetensors", tensors, facts)

    @classmethod
    def load(cls, file: Path) -> "RoundTrust":
        """Read the file of a round; fields that this version of trustmix does not know are ignored."""
        tensors, facts = storage.read_tensors(file)
        return storage.parse_record(cls, {**facts, **tensors}, TRUST_FORMAT, str(file))


@dataclass
class TrustRecorder(Callback):
    """Writes down which clients the teachers of a run are made of.

    Parameters
    ----------
    folder
        Where the files go.
    samples
        (tracked,): places in the public set.
    labels
        (tracked,): their classes, -1 unknown; None where no label is known.
    about
        Tensors and facts about the samples for readers, written once to samples.safetensors.
    """

    folder: Path
    samples: torch.Tensor
    labels: torch.Tensor | None
    about: tuple[Mapping[str, torch.Tensor], Mapping[str, Any]]
    _votes: dict[str, torch.Tensor] = field(default_factory=dict, init=False)

    def on_round_begin(self, round_: int, aggregator: Aggregator) -> None:  # noqa: ARG002 - the interface
        """Have the rule keep client weights in the tracked samples."""
        aggregator.track(self.samples)
        self._votes = {}

    def on_upload(self, round_: int, upload: Upload) -> None:  # noqa: ARG002 - the interface
        """Keep the client's votes on the tracked samples."""
        self._votes[upload.client] = upload.predictions[self.samples].argmax(1).cpu()

    def on_teacher(
        self, round_: int, clients: Sequence[str], aggregator: Aggregator, probabilities: torch.Tensor
    ) -> None:
        """Write the file of the round."""
        teacher = probabilities[self.samples].cpu()
        votes, labels = torch.stack([self._votes[client] for client in clients]), teacher.argmax(1)
        known = aggregator.client_weights()
        weights = (
            vote_agreement_weights(votes, labels)
            if known is None
            else torch.stack([known[client] for client in clients]).cpu()
        )
        classes = labels if self.labels is None else torch.where(self.labels >= 0, self.labels, labels)
        member = torch.nn.functional.one_hot(classes, teacher.shape[1]).to(torch.float64)
        by_class = torch.where(member.sum(0) > 0, weights @ member / member.sum(0).clamp_min(1), -1.0)
        if not (self.folder / "samples.safetensors").exists():
            tensors, facts = self.about
            storage.write_tensors(self.folder / "samples.safetensors", tensors, {"format": TRUST_FORMAT, **facts})
        half = torch.float16
        RoundTrust(
            round=round_,
            clients=list(clients),
            weighed=known is not None,
            trust=by_class.to(half),
            shares=weights[:, :SHOWN].to(half),
            votes=votes[:, :SHOWN].to(torch.int32),
            teacher=teacher[:SHOWN].to(half),
        ).save(self.folder)

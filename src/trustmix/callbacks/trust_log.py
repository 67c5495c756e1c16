"""Who was trusted for what: a small file a round, from what clients said of some public samples.

Of a fixed draw of the public set (`TRACKED` samples) it keeps the mean share of every client in the teacher's labels of
every class; of the first `SHOWN` of them also every client's share and vote and the teacher itself. A file is written
before its round is committed and is the same when a killed round is played again, so it needs no commit of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trustmix import storage
from trustmix.aggregation.client_weights import Dealing, Keeping, Weighing, vote_agreement_weights
from trustmix.errors import StorageError
from trustmix.seeds import numpy_generator
from trustmix.wire import Upload

TRACKED = 1000
SHOWN = 60


def tracked_indices(samples: int, seed: int) -> torch.Tensor:
    """Which public samples are watched, a draw by the seed; the first `SHOWN` of them are shown.

    >>> len(tracked_indices(5000, 0)), sorted(tracked_indices(3, 0).tolist())
    (1000, [0, 1, 2])
    """
    return torch.from_numpy(numpy_generator(seed, "witness").permutation(samples)[:TRACKED])


@dataclass(frozen=True)
class ClientTrust:
    """What one client says of the watched samples, (watched,) each."""

    votes: torch.Tensor
    scores: torch.Tensor
    weights: torch.Tensor | None
    """Its weights before they are shared out, where the rule keeps them."""


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
        told = {"round": self.round, "clients": list(self.clients), "weighed": self.weighed}
        storage.write_tensors(folder / f"{self.round:06d}.safetensors", {n: getattr(self, n) for n in names}, told)

    @classmethod
    def load(cls, file: Path) -> "RoundTrust":
        """Read the file of a round."""
        tensors, told = storage.read_tensors(file)
        try:
            return cls(**{**told, **tensors})
        except TypeError as error:
            raise StorageError(f"{file} tells nothing of trust ({error}).") from error


@dataclass
class TrustRecorder:
    """Watches the uploads of a federation; `about` is what a reader needs to know of the samples, written once."""

    folder: Path
    samples: torch.Tensor
    """(watched,): places in the public set."""
    labels: torch.Tensor | None
    """(watched,): their classes, -1 unknown."""
    about: tuple[Mapping[str, torch.Tensor], Mapping[str, Any]]
    """Tensors and facts for samples.safetensors."""

    def sight(self, upload: Upload, mixer: Any) -> ClientTrust:
        """What is kept until the round closes of an upload that the mixer has just taken in."""
        votes, scores = upload.predictions[self.samples].argmax(1), upload.scores[self.samples]
        return ClientTrust(
            votes.cpu(), scores.cpu(), mixer.latest()[self.samples] if isinstance(mixer, Keeping) else None
        )

    def testify(self, number: int, seen: Mapping[str, ClientTrust], mixer: Any, probabilities: torch.Tensor) -> None:
        """Write the round down, clients in the order of `seen`."""
        teacher = probabilities[self.samples].cpu()
        votes, taught = torch.stack([sighting.votes for sighting in seen.values()]), teacher.argmax(1)
        weighed = self._weighed(seen, mixer)
        shares = vote_agreement_weights(votes, taught) if weighed is None else weighed
        classes = taught if self.labels is None else torch.where(self.labels >= 0, self.labels, taught)
        member = torch.nn.functional.one_hot(classes, teacher.shape[1]).to(torch.float64)
        trust = torch.where(member.sum(0) > 0, shares @ member / member.sum(0).clamp_min(1), -1.0)
        if not (self.folder / "samples.safetensors").exists():
            storage.write_tensors(self.folder / "samples.safetensors", *self.about)
        half = torch.float16
        RoundTrust(
            round=number,
            clients=list(seen),
            weighed=weighed is not None,
            trust=trust.to(half),
            shares=shares[:, :SHOWN].to(half),
            votes=votes[:, :SHOWN].to(torch.int32),
            teacher=teacher[:SHOWN].to(half),
        ).save(self.folder)

    def _weighed(self, seen: Mapping[str, ClientTrust], mixer: Any) -> torch.Tensor | None:
        """The shares (M, watched) that the rule itself gives, where it gives any."""
        if isinstance(mixer, Dealing):
            dealt = mixer.portions()
            return None if dealt is None else torch.stack([dealt[f"client {c}"][self.samples] for c in seen]).cpu()
        if isinstance(mixer, Weighing):
            return mixer.shares(torch.stack([sighting.scores for sighting in seen.values()]))
        kept = [sighting.weights for sighting in seen.values() if sighting.weights is not None]
        return torch.stack(kept) / torch.stack(kept).sum(0) if len(kept) == len(seen) else None

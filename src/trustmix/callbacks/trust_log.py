"""The trust log: the weight of every client in the teacher, one small file per round.

For a fixed sample of the public set (`TRACKED` samples) a file contains the mean weight of every client in every class.
For the first `SHOWN` of them it also contains every client's weight and vote and the teacher. A file is written before
its round is committed, and a killed round that runs again writes the same file, so it needs no commit of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trustmix import records, storage
from trustmix.aggregation.base import Aggregator
from trustmix.aggregation.client_weights import vote_agreement_weights
from trustmix.federation.callbacks import Callback
from trustmix.lazy import MANY
from trustmix.seeds import numpy_generator

TRUST_FORMAT = 1
"""The version of the files in trust/."""
TRACKED = 1000
"""The number of public samples over which weights are averaged."""
SHOWN = 60
"""The number of public samples that are stored one by one."""


def tracked_indices(samples: int, seed: int) -> torch.Tensor:
    """Return the indices of the tracked public samples, drawn from the seed; the first `SHOWN` are stored one by one.

    Parameters
    ----------
    samples
        The size of the public set.
    seed
        The seed of the run.

    Returns
    -------
    torch.Tensor
        Integer tensor (tracked,).

    Examples
    --------
    >>> len(tracked_indices(5000, 0)), sorted(tracked_indices(3, 0).tolist())
    (1000, [0, 1, 2])
    """
    return torch.from_numpy(numpy_generator(seed, "witness").permutation(samples)[:TRACKED])


@dataclass(frozen=True)
class RoundTrust:
    """The file of one round.

    Parameters
    ----------
    round
        The number of the round.
    clients
        The ids of the M clients whose uploads are in the teacher.
    weighed
        True if the weights are those of the rule; false if all clients that agree with the teacher count alike.
    trust
        Tensor (M, C): the mean weight of a client in the samples of a class, which is the known label or else the
        teacher's; -1 for classes without samples.
    shares
        Tensor (M, shown): the weight of a client in a sample.
    votes
        Integer tensor (M, shown): the most probable class of a client.
    teacher
        Tensor (shown, C): the probabilities of the teacher.
    """

    round: int
    clients: Sequence[str]
    weighed: bool
    trust: torch.Tensor
    shares: torch.Tensor
    votes: torch.Tensor
    teacher: torch.Tensor

    def save(self, folder: Path) -> None:
        """Write the file of the round.

        Parameters
        ----------
        folder
            The folder of the files.

        Raises
        ------
        StorageError
            If the file cannot be written.
        """
        names = ("trust", "shares", "votes", "teacher")
        tensors = {name: getattr(self, name) for name in names}
        facts = {"format": TRUST_FORMAT, "round": self.round, "clients": list(self.clients), "weighed": self.weighed}
        storage.write_tensors(folder / f"{self.round:06d}.safetensors", tensors, facts)

    @classmethod
    def load(cls, file: Path) -> "RoundTrust":
        """Read the file of a round; unknown fields are ignored.

        Parameters
        ----------
        file
            The path of the file.

        Returns
        -------
        RoundTrust
            Its contents.

        Raises
        ------
        StorageError
            If the file cannot be read.
        """
        tensors, facts = storage.read_tensors(file)
        return records.parse_record(cls, {**facts, **tensors}, TRUST_FORMAT, str(file))


@dataclass
class TrustRecorder(Callback):
    """Records the weights of clients in the teachers of a run.

    Parameters
    ----------
    folder
        The folder of the files.
    samples
        Integer tensor (tracked,): indices into the public set.
    labels
        Integer tensor (tracked,): the labels of these samples, -1 if unknown; None if no label is known.
    about
        Tensors and metadata of the samples, written once to samples.safetensors.
    held
        By client id: the indices of the classes that the client holds, written there too; of many clients, those of
        the first round's alone.
    """

    folder: Path
    samples: torch.Tensor
    labels: torch.Tensor | None
    about: tuple[Mapping[str, torch.Tensor], Mapping[str, Any]]
    held: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def on_round_begin(self, round_: int, aggregator: Aggregator) -> None:  # noqa: ARG002 - the interface
        """Make the aggregator keep the client weights and votes of the tracked samples.

        Parameters
        ----------
        round_
            The number of the round; not used.
        aggregator
            The empty aggregator of the round.
        """
        aggregator.track(self.samples)

    def on_teacher(
        self, round_: int, clients: Sequence[str], aggregator: Aggregator, probabilities: torch.Tensor
    ) -> None:
        """Write the file of the round.

        Parameters
        ----------
        round_
            The number of the round.
        clients
            The ids of the M clients whose uploads are in the teacher.
        aggregator
            The aggregator of the round.
        probabilities
            Tensor (N, C): the teacher.

        Raises
        ------
        StorageError
            If a file cannot be written.
        """
        teacher = probabilities[self.samples].cpu()
        kept = aggregator.client_votes()
        votes, labels = torch.stack([kept[client] for client in clients]), teacher.argmax(1)
        known = aggregator.client_weights()
        weights = (
            vote_agreement_weights(votes, labels)
            if known is None
            else torch.stack([known[client] for client in clients]).cpu()
        )
        classes = labels if self.labels is None else torch.where(self.labels >= 0, self.labels, labels)
        self._write_samples(clients)
        half = torch.float16
        RoundTrust(
            round=round_,
            clients=list(clients),
            weighed=known is not None,
            trust=_mean_by_class(weights, classes, teacher.shape[1]).to(half),
            shares=weights[:, :SHOWN].to(half),
            votes=votes[:, :SHOWN].to(torch.int32),
            teacher=teacher[:SHOWN].to(half),
        ).save(self.folder)

    def _write_samples(self, clients: Sequence[str]) -> None:
        file = self.folder / "samples.safetensors"
        if not file.exists():
            tensors, facts = self.about
            named = list(self.held) if len(self.held) <= MANY else [client for client in clients if client in self.held]
            held = {client: self.held[client].tolist() for client in named}
            storage.write_tensors(file, tensors, {"format": TRUST_FORMAT, **facts, "held": held})


def _mean_by_class(weights: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
    """The mean of weights (M, n) over the samples of each class (M, C); -1 for classes without samples."""
    member = torch.nn.functional.one_hot(labels, classes).to(torch.float64)
    return torch.where(member.sum(0) > 0, weights @ member / member.sum(0).clamp_min(1), -1.0)

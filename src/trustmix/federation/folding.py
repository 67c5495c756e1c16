"""Decode, validate and fold the uploads of a round: at the server, or where clients run.

A worker that runs many clients folds their uploads itself and sends one partial aggregator to the server, which merges
it (`PartialRound`). What a worker does not fold, because it is late or refused, travels to the server as it came, and
the server finds the reason as for any upload.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch

from trustmix.aggregation.base import Aggregator
from trustmix.aggregation.upload import Upload
from trustmix.density import roc_auc
from trustmix.errors import StorageError, TrustmixError
from trustmix.federation.client import LabelSharing
from trustmix.federation.late import late_weight
from trustmix.federation.messages import Reply, Request
from trustmix.federation.reply_validation import sanitize_reply
from trustmix.wire import MessageHeader, decode_upload


@dataclass(frozen=True)
class PartialRound:
    """What a worker has folded of a round.

    Parameters
    ----------
    aggregator
        With the uploads of the worker's clients.
    density_aucs
        How well the scores of each upload tell the client's own classes, where that is known.
    seconds
        The time that decoding and folding took.
    """

    aggregator: Aggregator
    density_aucs: list[float]
    seconds: float


@dataclass
class UploadFolder:
    """Folds the uploads of a round into an aggregator.

    Parameters
    ----------
    aggregator
        The aggregator of the round.
    header
        What the header of every upload must contain, but for the sender.
    last_teacher
        (N, C): what uploads may be differences to.
    labels
        What clients were asked to share of their label sets; None accepts any.
    uses_label_sets
        Whether the rule reads label sets.
    public_labels
        (N,): labels of public samples, -1 unknown, which measure the scores.
    client_classes
        The classes each client holds, where they are known.
    deadline
        Seconds a client's step may take; a worker leaves later uploads to the server.
    """

    aggregator: Aggregator
    header: MessageHeader
    last_teacher: torch.Tensor | None = None
    labels: LabelSharing | None = None
    uses_label_sets: bool = True
    public_labels: torch.Tensor | None = None
    client_classes: Mapping[str, torch.Tensor] = field(default_factory=dict)
    deadline: float | None = None
    density_aucs: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def fold(self, reply: Reply) -> Upload:
        """Decode the upload of a reply and fold it; one of an earlier round counts less.

        Parameters
        ----------
        reply
            The reply, of this round or of an earlier one.

        Returns
        -------
        Upload
            What was folded.

        Raises
        ------
        TrustmixError
            If the upload is refused; nothing of it is kept.
        """
        header = replace(self.header, sender=reply.client, round=reply.round)
        upload = decode_upload(reply.payload or b"", header, self.last_teacher)
        validate_label_set(upload, self.labels)
        if not self.uses_label_sets:  # a set that the rule does not use would only shield its client from the guard
            upload = upload.replace(class_counts=None)
        if reply.round < self.header.round:
            upload = upload.replace(weight=upload.weight * late_weight(self.header.round - reply.round))
        self.aggregator.update(upload)
        self.density_aucs += self._density_auc(upload)
        return upload

    def fold_here(self, reply: Reply, request: Request) -> Reply:
        """At a worker: fold the upload of a reply to a request.

        Parameters
        ----------
        reply
            A client's answer.
        request
            The request that it answers.

        Returns
        -------
        Reply
            Without its upload if that was folded; otherwise as it came.
        """
        took = sum(sanitize_reply(reply).seconds.values())
        late = self.deadline is not None and took > self.deadline
        if reply.payload is None or late or reply.round != request.round:
            return reply
        begin = time.perf_counter()
        try:
            self.fold(reply)
        except StorageError:
            raise
        except TrustmixError:
            return reply  # the server refuses it with the reason
        finally:
            self.seconds += time.perf_counter() - begin
        return replace(reply, payload=None, folded=len(reply.payload))

    def result(self) -> PartialRound:
        """What was folded, for the server."""
        return PartialRound(self.aggregator, self.density_aucs, self.seconds)

    def _density_auc(self, upload: Upload) -> list[float]:
        """How well the scores tell the client's own classes, as a list of one, or of none where it cannot be known."""
        labels, classes = self.public_labels, self.client_classes.get(upload.client)
        if labels is None or classes is None or upload.scores is None:
            return []
        known = labels >= 0
        own = torch.isin(labels[known], classes)
        return [roc_auc(upload.scores[known], own)] if 0 < int(own.sum()) < len(own) else []


MakeFolder: TypeAlias = Callable[[Sequence[str]], UploadFolder]
"""Makes the folder of a worker that runs these clients."""


def validate_label_set(upload: Upload, labels: LabelSharing | None) -> None:
    """Refuse a label set that was not asked for, and counts where a set was.

    Parameters
    ----------
    upload
        The upload of a client.
    labels
        What clients were asked to share; None accepts any.

    Raises
    ------
    TrustmixError
        With the client and what would be right.

    >>> validate_label_set(Upload.from_arrays("north", [[0.9, 0.1]], class_counts=[1, 7]), "set")
    Traceback (most recent call last):
    ...
    trustmix.errors.TrustmixError: client north: the label set has a count of 7; wire.labels = set is 1 for ...
    """
    if upload.class_counts is None or labels in (None, "counts"):
        return
    if labels != "set":
        raise TrustmixError(
            f"client {upload.client}: the upload has a label set, which was not asked for: wire.labels = {labels}."
        )
    if int(upload.class_counts.max()) > 1:
        raise TrustmixError(
            f"client {upload.client}: the label set has a count of {int(upload.class_counts.max())}; "
            "wire.labels = set is 1 for each class that the client holds."
        )

"""The paper's server (Algorithm 1): uploads are folded into a teacher as they arrive, and the teacher is sent back."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import torch

from trustmix.aggregation.base import Aggregator, AggregatorFactory, StateDict, Upload
from trustmix.aggregation.guard import guarded
from trustmix.aggregation.trust import Trust
from trustmix.density import roc_auc
from trustmix.errors import TrustmixError
from trustmix.federation.algorithm import RoundResult, ServerAlgorithm, ServerContext
from trustmix.federation.client import LabelSharing
from trustmix.federation.late import late_weight
from trustmix.federation.messages import Reply, Request
from trustmix.metrics import ClassificationMetrics
from trustmix.wire import decode_upload, encode_teacher, predictions_bytes


class Distillation(ServerAlgorithm):
    """Federated distillation by any rule that aggregates predictions.

    Parameters
    ----------
    context
        What the server has.
    make_aggregator
        Makes the rule's aggregator; it serves the whole run and is reset for each round.
    """

    def __init__(self, context: ServerContext, make_aggregator: AggregatorFactory) -> None:
        self.context = context
        rule = make_aggregator()
        self.aggregator: Aggregator = rule if context.guard is None else guarded(rule, context.guard)
        self._uses_label_sets = rule.needs_label_sets or isinstance(rule, Trust)
        self._round = 0
        self._last_teacher: torch.Tensor | None = None
        self._density_aucs: list[float] = []
        self._guard_report: dict[str, dict[str, float]] = {}

    def begin_round(self, round_: int, message: bytes | None) -> None:
        """Start with an empty aggregator; uploads may be differences to the teacher in the message."""
        self.aggregator.reset()
        self._round, self._density_aucs = round_, []
        self._last_teacher = self.context.public.teacher(message, round_ - 1) if message else None
        for callback in self.context.callbacks:
            callback.on_round_begin(round_, self.aggregator)

    def aggregate(self, reply: Reply) -> None:
        """Decode the upload of a reply and fold it; one of an earlier round counts less."""
        header = self.context.public.header(reply.client, reply.round)
        upload = decode_upload(reply.payload or b"", header, self._last_teacher)
        validate_label_set(upload, self.context.labels)
        if not self._uses_label_sets:  # a set that the rule does not use would only shield its client from the guard
            upload = upload.replace(class_counts=None)
        if reply.round < self._round:
            upload = upload.replace(weight=upload.weight * late_weight(self._round - reply.round))
        self.aggregator.update(upload)
        self._density_aucs += self._density_auc(upload)
        for callback in self.context.callbacks:
            try:
                callback.on_upload(self._round, upload)
            except TrustmixError as error:  # not the client's fault: its upload is not refused for it
                raise RuntimeError(f"a callback failed: {error}") from error

    def finalize(self, clients: Sequence[str]) -> RoundResult:
        """Compute the teacher, encode it, and let the student learn from it."""
        begin = time.perf_counter()
        teacher = self.aggregator.compute()
        seconds = {"mix": time.perf_counter() - begin}
        chi = float(teacher.concentration.mean())
        for callback in self.context.callbacks:
            callback.on_teacher(self._round, clients, self.aggregator, teacher.probabilities)
        public = self.context.public
        message = encode_teacher(teacher.probabilities, public.header("server", self._round), self.context.codec)
        metrics: dict[str, float | None] = {
            **teacher_metrics(self.context, teacher.probabilities),
            "student_accuracy": self._train_student(message, seconds),
            "concentration": chi,
            "effective_clients": 1 / chi,
            "density_auc": fmean(self._density_aucs) if self._density_aucs else None,
            "paper_bytes_up": len(clients) * predictions_bytes(len(public.inputs), public.classes),
        }
        self._guard_report = self.aggregator.report()
        self.aggregator.reset()
        return RoundResult(message, metrics, seconds)

    def guard_report(self) -> dict[str, dict[str, float]]:
        """What the guard did in the last round, by client."""
        return self._guard_report

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What the rule and the guard remember over rounds."""
        return self.aggregator.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Go on with what they remembered."""
        self.aggregator.load_state_dict(state)

    def _density_auc(self, upload: Upload) -> list[float]:
        """How well the scores tell the client's own classes, as a list of one, or of none where it cannot be known."""
        labels, classes = self.context.public_labels, self.context.client_classes.get(upload.client)
        if labels is None or classes is None or upload.scores is None:
            return []
        known = labels >= 0
        own = torch.isin(labels[known], classes)
        return [roc_auc(upload.scores[known], own)] if 0 < int(own.sum()) < len(own) else []

    def _train_student(self, message: bytes, seconds: dict[str, float]) -> float | None:
        """The student's accuracy after learning from the teacher; its store lets it repeat a round."""
        if self.context.student is None:
            return None
        reply = self.context.student.step(Request(self._round + 1, message, train=False, upload=False))
        seconds["student"] = sum(reply.seconds.values())
        return reply.accuracy


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


def teacher_metrics(context: ServerContext, probabilities: torch.Tensor) -> dict[str, Any]:
    """All metrics of a teacher (N, C) on public samples whose labels are known."""
    labels = context.public_labels
    if labels is None or not bool((known := labels >= 0).any()):
        return {}
    found = asdict(ClassificationMetrics.of(probabilities.cpu()[known], labels[known]))
    found["recall"] = [None if value is None else round(value, 4) for value in found["recall"]]
    return {f"teacher_{name}": value for name, value in found.items()}

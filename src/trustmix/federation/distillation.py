"""The paper's server (Algorithm 1): uploads are folded into a teacher as they arrive, and the teacher is sent back."""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

import torch

from trustmix.aggregation.base import Aggregator, AggregatorFactory, StateDict, SumAggregator
from trustmix.aggregation.guard import guarded
from trustmix.aggregation.trust import Trust
from trustmix.aggregation.weighted_average import Accumulator
from trustmix.errors import TrustmixError
from trustmix.federation.algorithm import RoundResult, ServerAlgorithm, ServerContext
from trustmix.federation.callbacks import Callback
from trustmix.federation.folding import MakeFolder, PartialRound, UploadFolder
from trustmix.federation.messages import Reply, Request
from trustmix.metrics import ClassificationMetrics
from trustmix.wire import encode_teacher, predictions_bytes


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
        self._folder = self._make_folder(self.aggregator, 0, None)
        self._guard_report: dict[str, dict[str, float]] = {}

    def begin_round(self, round_: int, message: bytes | None) -> None:
        """Start with an empty aggregator; uploads may be differences to the teacher in the message."""
        self.aggregator.reset()
        last_teacher = self.context.public.teacher(message, round_ - 1) if message else None
        self._round, self._folder = round_, self._make_folder(self.aggregator, round_, last_teacher)
        for callback in self.context.callbacks:
            callback.on_round_begin(round_, self.aggregator)

    def aggregate(self, reply: Reply) -> None:
        """Decode the upload of a reply and fold it; one of an earlier round counts less."""
        upload = self._folder.fold(reply)
        for callback in self.context.callbacks:
            try:
                callback.on_upload(self._round, upload)
            except TrustmixError as error:  # not the client's fault: its upload is not refused for it
                raise RuntimeError(f"a callback failed: {error}") from error

    def _make_folder(self, aggregator: Aggregator, round_: int, last_teacher: torch.Tensor | None) -> UploadFolder:
        context = self.context
        return UploadFolder(
            aggregator,
            context.public.header("", round_),
            last_teacher,
            context.labels,
            self._uses_label_sets,
            context.public_labels,
            context.client_classes,
        )

    def make_folder(self, deadline: float | None) -> MakeFolder | None:
        """What folds uploads at a worker: of rules that are sums, where no callback looks at single uploads."""
        rule = self.aggregator
        if not isinstance(rule, SumAggregator | Accumulator) or any(
            type(one).on_upload is not Callback.on_upload for one in self.context.callbacks
        ):
            return None
        known = self.context.client_classes

        def make(clients: Sequence[str]) -> UploadFolder:
            classes = {client: known[client] for client in clients if client in known}
            part = rule.make_part(clients)
            return replace(
                self._folder, aggregator=part, client_classes=classes, deadline=deadline, density_aucs=[], seconds=0.0
            )

        return make

    def merge(self, part: PartialRound) -> None:
        """Merge what a worker has folded."""
        self.aggregator.merge(part.aggregator)
        self._folder.density_aucs += part.density_aucs

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
            "density_auc": fmean(aucs) if (aucs := self._folder.density_aucs) else None,
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

    def _train_student(self, message: bytes, seconds: dict[str, float]) -> float | None:
        """The student's accuracy after learning from the teacher; its store lets it repeat a round."""
        if self.context.student is None:
            return None
        reply = self.context.student.step(Request(self._round + 1, message, train=False, upload=False))
        seconds["student"] = sum(reply.seconds.values())
        return reply.accuracy


def teacher_metrics(context: ServerContext, probabilities: torch.Tensor) -> dict[str, Any]:
    """All metrics of a teacher (N, C) on public samples whose labels are known."""
    labels = context.public_labels
    if labels is None or not bool((known := labels >= 0).any()):
        return {}
    found = asdict(ClassificationMetrics.of(probabilities.cpu()[known], labels[known]))
    found["recall"] = [None if value is None else round(value, 4) for value in found["recall"]]
    return {f"teacher_{name}": value for name, value in found.items()}

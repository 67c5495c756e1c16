"""FedDF (Lin et al., 2020, algorithm 1): FedAvg whose averaged model the server distils from the clients' mean logits.

The student begins with the averaged weights and learns softmax((1/M) sum_i z_i(x)) on the public set; its weights are
what clients start the next round from. Clients' logits are computed at the server, which has their weights.
"""

from collections.abc import Sequence

import torch
from torch import nn

from trustmix.federation.algorithm import RoundResult
from trustmix.federation.client import ModelState
from trustmix.federation.distillation import teacher_metrics
from trustmix.federation.messages import Reply
from trustmix.federation.method import METHODS, Method
from trustmix.learners import Lesson, make_learner
from trustmix.learners.training import predict
from trustmix.methods.fedavg import FedAvg, Tensors, WeightedMean, encode_weights


class FedDF(FedAvg):
    """The server of FedDF: FedAvg, then distillation by the training settings of the `student`."""

    def begin_round(self, round_: int, message: bytes | None) -> None:
        """Start with empty means of weights and of logits."""
        super().begin_round(round_, message)
        self._logits = WeightedMean()

    def aggregate(self, reply: Reply) -> None:
        """Fold one client's weights, and the logits that they give on the public set."""
        weights, samples = self.decode(reply)
        self.mean.update(weights, samples)
        logits = predict(self._model(weights), self.context.public.inputs, self.student.hardware)
        self._logits.update({"logits": logits}, 1)

    def finalize(self, clients: Sequence[str]) -> RoundResult:
        """Distil the mean logits into the mean of all weights."""
        teacher = torch.softmax(self._logits.compute()["logits"], 1)
        model, student = self._model(self.mean.compute()), self.student
        state = ModelState(make_learner(model, student.training, student.hardware), stages=self._round)
        lesson = Lesson(self.context.public.inputs, teacher.to(student.hardware.device))
        job = student.public_job(state, self._round + 1, lesson)
        job.run()
        metrics = {
            **teacher_metrics(self.context, teacher),
            "concentration": 1 / self._logits.n_clients,
            "effective_clients": float(self._logits.n_clients),
            **self.costs(clients),
        }
        return RoundResult(encode_weights(model.state_dict(), "server", self._round), metrics, {"student": job.seconds})

    def _model(self, weights: Tensors) -> nn.Module:
        model = self.student.hardware.to_device(self.student.model())
        model.load_state_dict(weights)
        return model


METHODS.register("feddf")(
    Method(
        "feddf",
        "FedDF",
        algorithm=FedDF,
        client="weights",
        exchanges="weights",
        guardable=False,
        refuses=(("train.public_epochs", "auto", "its server distils for a fixed number of epochs; give a number"),),
    )
)

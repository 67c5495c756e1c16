"""FedDF (Lin et al., 2020, algorithm 1): FedAvg whose averaged model the server distils from the clients' mean logits.

The student begins with the averaged weights and learns softmax((1/M) sum_i z_i(x)) on the public set; its weights are
what clients start the next round from. Clients' logits are computed at the server, which has their weights.
"""

from typing import Any

import torch
from torch import nn

from trustmix.aggregation.rules import Memory
from trustmix.federation import Reply, train
from trustmix.federation.client import ModelState
from trustmix.federation.server import RoundReplies
from trustmix.federation.training import predict
from trustmix.methods.fedavg import FedAvg, Tensors, WeightedMean, encode_weights


class FedDF(FedAvg):
    """A federation of `WeightClient`s with distillation at the server, by the training settings of `student`."""

    name = "feddf"

    def _mixer(self, last: bytes | None, memory: Memory) -> Any:  # noqa: ARG002
        return WeightedMean(), WeightedMean()

    def _take(self, reply: Reply, mixer: Any, last: bytes | None, result: RoundReplies) -> None:  # noqa: ARG002
        weights, logits = mixer
        sent, samples = self._received(reply)
        weights.add(sent, samples)
        logits.add({"logits": predict(self._model(sent), self.public.inputs, self.server.hardware)}, 1)

    def _teach(self, number: int, mixer: Any, result: RoundReplies) -> tuple[bytes, dict[str, Any]]:
        weights, logits = mixer
        teacher = torch.softmax(logits.finish()["logits"], 1)
        model = self._model(weights.finish())
        live = ModelState(model, self.server.training.make_optimizer(model.parameters()))
        targets, epochs = teacher.to(self.server.hardware.device), self.server.training.public_epochs
        job = self.server._job(live, "public", number + 1, self.public.inputs, targets, epochs, "none")
        train(job)
        result.seconds["student"] = job.seconds
        return encode_weights(model.state_dict(), "server", number), {
            **self._measured(teacher),
            "concentration": 1 / logits.added,
            "effective_clients": float(logits.added),
            **self._costs(result),
        }

    def _model(self, weights: Tensors) -> nn.Module:
        model = self.server.hardware.place(self.server.model())
        model.load_state_dict(weights)
        return model

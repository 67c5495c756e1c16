"""SCAFFOLD (Karimireddy et al., 2020, algorithm 1, option II): local steps corrected for the drift of the client.

y_i <- y_i - lr (g_i(y_i) - c_i + c),  c_i+ = c_i - c + (x - y_i) / (K lr),  x <- mean_i y_i (server step size 1),
c <- c + (1/N) sum_i (c_i+ - c_i). The correction is of gradients, so the local optimiser is plain SGD.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from trustmix.aggregation.rules import Memory
from trustmix.errors import TrustmixError
from trustmix.federation import Reply, Request, Training, TrainingJob
from trustmix.federation.client import ModelState
from trustmix.federation.server import RoundReplies
from trustmix.methods.fedavg import FedAvg, WeightClient, WeightedMean, decode_weights, encode_weights
from trustmix.wire import scaffold_bytes


class CorrectedSGD(torch.optim.SGD):
    """SGD on gradients to each of which the parameter's `correction`, c - c_i, is added.

    It is state of each parameter, number by number, so clients that are stacked keep their own.
    """

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """One step; it is counted, since option II divides by their number K."""
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            state = self.state[parameter]
            state["step"] = state.get("step", 0) + 1
            if "correction" in state:
                parameter.grad += state["correction"]
        return super().step(closure)


@dataclass(frozen=True)
class ScaffoldTraining(Training):
    """How a client of SCAFFOLD learns."""

    optimizer: str = "sgd"

    def __post_init__(self) -> None:
        check_optimizer(self.optimizer)

    def make_optimizer(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        """The corrected optimiser of those parameters that are trainable."""
        return CorrectedSGD([p for p in parameters if p.requires_grad], lr=self.lr, fused=True)


def check_optimizer(name: str) -> None:
    """Refuse optimisers whose steps are not the learning rate times the gradient."""
    if name != "sgd":
        raise TrustmixError(
            f"scaffold corrects gradients, which {name} would rescale, and reads mean gradients off the steps taken; "
            "set train.optimizer = sgd."
        )


@dataclass
class ScaffoldClient(WeightClient):
    """A client with a control variate c_i, which lives in its optimiser's state and so in its store."""

    def __post_init__(self) -> None:
        # plain SGD has no state of its own to reset, and c_i must stay
        self.training = ScaffoldTraining(**{**asdict(self.training), "keep_optimizer": True})

    def _distil(self, live: ModelState, round_: int, message: bytes) -> TrainingJob | None:
        sent, _ = decode_weights(message, "server", round_ - 1, _with_control(live.model))
        live.model.load_state_dict({name: value for name, value in sent.items() if not name.startswith(CONTROL)})
        for name, parameter in _trainable(live.model).items():
            control = live.optimizer.state[parameter].get("control", torch.zeros_like(parameter))
            correction = torch.empty_like(parameter).detach().copy_(sent[CONTROL + name]) - control
            live.optimizer.state[parameter] = {"control": control, "correction": correction}
        return None

    def _train(self, live: ModelState, round_: int) -> TrainingJob:
        for parameter in _trainable(live.model).values():
            live.optimizer.state[parameter]["begin"] = parameter.detach().clone()
        return super()._train(live, round_)

    def _upload(self, live: ModelState, request: Request) -> bytes:
        changes = {}
        for name, parameter in _trainable(live.model).items():
            state = live.optimizer.state[parameter]
            steps, descent = state["step"], state["begin"] - parameter.detach()
            control = descent / (steps * self.training.lr) - state["correction"]
            changes[CONTROL + name] = control - state["control"]
            live.optimizer.state[parameter] = {"control": control}
        return encode_weights({**live.model.state_dict(), **changes}, self.id, request.round, len(self.private))


class Scaffold(FedAvg):
    """A federation of `ScaffoldClient`s: the plain mean of weights, as in the paper, and the server's control c."""

    name = "scaffold"
    paper_bytes = staticmethod(scaffold_bytes)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._initial = _with_control(self.server.model())

    def _mixer(self, last: bytes | None, memory: Memory) -> Any:  # noqa: ARG002
        return last, WeightedMean()

    def _take(self, reply: Reply, mixer: Any, last: bytes | None, result: RoundReplies) -> None:  # noqa: ARG002
        _, mean = mixer
        mean.add(decode_weights(reply.payload or b"", reply.client, reply.round, self._initial)[0], 1)

    def _teach(self, number: int, mixer: Any, result: RoundReplies) -> tuple[bytes, dict[str, Any]]:
        last, mean = mixer
        before, _ = decode_weights(last or b"", "server", number - 1, self._initial)
        part = mean.added / len(self.engine.clients)
        after = {
            name: before[name] + part * value if name.startswith(CONTROL) else value
            for name, value in mean.finish().items()
        }
        return encode_weights(after, "server", number), self._costs(result)


CONTROL = "control of "
"""Before the name of the parameter that a control variate belongs to."""


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _with_control(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's tensors, and a control variate of zero for each parameter that is trained."""
    zeros = {CONTROL + name: torch.zeros_like(parameter) for name, parameter in _trainable(model).items()}
    return {**model.state_dict(), **{name: zero.detach() for name, zero in zeros.items()}}

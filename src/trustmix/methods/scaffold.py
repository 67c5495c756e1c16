"""SCAFFOLD (Karimireddy et al., 2020, algorithm 1, option II): local steps corrected for the drift of the client.

y_i <- y_i - lr (g_i(y_i) - c_i + c),  c_i+ = c_i - c + (x - y_i) / (K lr),  x <- mean_i y_i (server step size 1),
c <- c + (1/N) sum_i (c_i+ - c_i). The correction is of gradients, so the local optimiser is plain SGD.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from trustmix.errors import TrustmixError
from trustmix.federation.algorithm import RoundResult
from trustmix.federation.client import ModelState
from trustmix.federation.messages import Reply, Request
from trustmix.federation.method import CLIENTS, METHODS, Method
from trustmix.learners import Job, Lesson, Training
from trustmix.learners.optimizers import SGD
from trustmix.learners.torch_learner import as_torch
from trustmix.methods.fedavg import FedAvg, WeightClient, decode_weights, encode_weights
from trustmix.wire import scaffold_bytes

OPTIMIZER = "sgd"
"""The correction is of gradients, and mean gradients are read off the steps taken: no other optimiser will do."""


class CorrectedSGD(SGD):
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

    optimizer: str = OPTIMIZER

    def __post_init__(self) -> None:
        validate_optimizer(self.optimizer)

    def make_optimizer(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        """The corrected optimiser of those parameters that are trainable."""
        return CorrectedSGD([p for p in parameters if p.requires_grad], lr=self.lr, fused=True)


def validate_optimizer(name: str) -> None:
    """Refuse optimisers whose steps are not the learning rate times the gradient."""
    if name != OPTIMIZER:
        raise TrustmixError(
            f"scaffold corrects gradients, which {name} would rescale, and reads mean gradients off the steps taken; "
            "set train.optimizer = sgd."
        )


@dataclass
class ScaffoldClient(WeightClient):
    """A client with a control variate c_i, which lives in its optimiser's state and so in its store."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # plain SGD has no state of its own to reset, and c_i must stay
        self.training = ScaffoldTraining(**{**asdict(self.training), "keep_optimizer": True})

    def apply_server_message(self, state: ModelState, round_: int, message: bytes) -> Lesson | None:
        """Take over the server's weights, and the correction c - c_i."""
        sent, _ = decode_weights(message, "server", round_ - 1, _with_control(state.model))
        state.model.load_state_dict({name: value for name, value in sent.items() if not name.startswith(CONTROL)})
        slots = as_torch(state.learner, "scaffold").optimizer.state
        for name, parameter in _trainable(state.model).items():
            control = slots[parameter].get("control", torch.zeros_like(parameter))
            correction = torch.empty_like(parameter).detach().copy_(sent[CONTROL + name]) - control
            slots[parameter] = {"control": control, "correction": correction}
        return None

    def private_job(self, state: ModelState, round_: int) -> Job:
        """Remember where the local steps begin."""
        slots = as_torch(state.learner, "scaffold").optimizer.state
        for parameter in _trainable(state.model).values():
            slots[parameter]["begin"] = parameter.detach().clone()
        return super().private_job(state, round_)

    def make_upload(self, state: ModelState, request: Request) -> bytes:
        """The weights, and the change of the control variate by option II."""
        changes, slots = {}, as_torch(state.learner, "scaffold").optimizer.state
        for name, parameter in _trainable(state.model).items():
            own = slots[parameter]
            steps, descent = own["step"], own["begin"] - parameter.detach()
            control = descent / (steps * self.training.lr) - own["correction"]
            changes[CONTROL + name] = control - own["control"]
            slots[parameter] = {"control": control}
        return encode_weights({**state.model.state_dict(), **changes}, self.id, request.round, len(self.private))


class Scaffold(FedAvg):
    """The server of SCAFFOLD: the plain mean of weights, as in the paper, and the server's control c."""

    upload_bytes = staticmethod(scaffold_bytes)

    def initial_weights(self) -> dict[str, torch.Tensor]:
        """Weights, and control variates of zero."""
        return _with_control(self.student.model())

    def begin_round(self, round_: int, message: bytes | None) -> None:
        """Remember what the clients started from."""
        super().begin_round(round_, message)
        self._before, _ = decode_weights(message or b"", "server", round_ - 1, self.initial)

    def aggregate(self, reply: Reply) -> None:
        """Fold one client's weights and the change of its control variate; all clients count alike."""
        self.mean.update(decode_weights(reply.payload or b"", reply.client, reply.round, self.initial)[0], 1)

    def finalize(self, clients: Sequence[str]) -> RoundResult:
        """The mean of weights, and c moved by the part of the clients that took part."""
        part = self.mean.n_clients / len(self.context.engine.clients)
        after = {
            name: self._before[name] + part * value if name.startswith(CONTROL) else value
            for name, value in self.mean.compute().items()
        }
        return RoundResult(encode_weights(after, "server", self._round), self.costs(clients))


CONTROL = "control of "
"""Before the name of the parameter that a control variate belongs to."""


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _with_control(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's tensors, and a control variate of zero for each parameter that is trained."""
    zeros = {CONTROL + name: torch.zeros_like(parameter) for name, parameter in _trainable(model).items()}
    return {**model.state_dict(), **{name: zero.detach() for name, zero in zeros.items()}}


CLIENTS.register("scaffold")(ScaffoldClient)
METHODS.register("scaffold")(
    Method(
        "scaffold",
        "SCAFFOLD",
        algorithm=Scaffold,
        client="scaffold",
        exchanges="weights",
        guardable=False,
        optimizer=OPTIMIZER,
    )
)

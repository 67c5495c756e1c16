"""FedAvg (McMahan et al., 2017, algorithm 1): w = sum_i (n_i / n) w_i over the round's clients, by their samples.

Weights travel instead of predictions, so all models need one architecture. Buffers, such as the running statistics of
batch norm, are averaged with the weights. Messages are safetensors, and are checked before they are taken in.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch

from trustmix import storage
from trustmix.arrays import all_finite
from trustmix.errors import TrustmixError
from trustmix.federation.algorithm import RoundResult, ServerAlgorithm, ServerContext
from trustmix.federation.client import Client, ModelState
from trustmix.federation.messages import Reply, Request
from trustmix.federation.method import CLIENTS, METHODS, Method
from trustmix.learners import Lesson
from trustmix.wire import fedavg_bytes

MAX_SAMPLES = 2**40
"""More samples than any client has."""

Tensors: TypeAlias = Mapping[str, torch.Tensor]


def encode_weights(tensors: Tensors, sender: str, round_: int, samples: int = 0) -> bytes:
    """Named tensors as a message; `samples` is the weight of a client's tensors."""
    return storage.pack(tensors, {"kind": "weights", "sender": sender, "round": round_, "samples": samples})


def decode_weights(message: bytes, sender: str, round_: int, like: Tensors) -> tuple[dict[str, torch.Tensor], int]:
    """The tensors of a message, with names, types and shapes like the given ones, and the number of samples."""
    source = f"The message of {sender}"
    tensors, header = storage.unpack(message, source)
    for key, value in {"kind": "weights", "sender": sender, "round": round_}.items():
        if header.get(key) != value:
            raise TrustmixError(f"{source} has {key} = {str(header.get(key))[:60]}; expected was {value}.")
    if _layout(tensors) != _layout(like):
        raise TrustmixError(f"{source} has weights of another architecture; all clients must train the same model.")
    if not all(all_finite(tensor) for tensor in tensors.values()):
        raise TrustmixError(f"{source} has weights that are not finite numbers.")
    samples = header.get("samples")
    if type(samples) is not int or not 0 <= samples <= MAX_SAMPLES:
        raise TrustmixError(f"{source} has samples = {str(samples)[:60]}; it must be a number of samples.")
    return tensors, samples


def _layout(tensors: Tensors) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


class WeightedMean:
    """A weighted mean of named tensors, folded one by one in float64; whole numbers are rounded in the end.

    >>> mean = WeightedMean()
    >>> mean.update({"w": torch.tensor([1.0, 2.0]), "steps": torch.tensor(3)}, 1)
    >>> mean.update({"w": torch.tensor([5.0, 2.0]), "steps": torch.tensor(4)}, 3)
    >>> mean.compute()
    {'w': tensor([4., 2.]), 'steps': tensor(4)}
    """

    def __init__(self) -> None:
        self.n_clients = 0
        self._amount = 0.0
        self._sums: dict[str, torch.Tensor] = {}
        self._types: dict[str, torch.dtype] = {}

    def update(self, tensors: Tensors, amount: float) -> None:
        """Fold in one client's tensors."""
        for name, tensor in tensors.items():
            share = tensor.detach().cpu().to(torch.float64) * amount
            self._sums[name] = self._sums[name] + share if name in self._sums else share
            self._types[name] = tensor.dtype
        self._amount += amount
        self.n_clients += 1

    def compute(self) -> dict[str, torch.Tensor]:
        """The mean of everything added so far, each tensor of its own type."""
        return {
            name: (value if self._types[name].is_floating_point else value.round()).to(self._types[name])
            for name, value in ((name, total / self._amount) for name, total in self._sums.items())
        }


class WeightClient(Client):
    """A client that starts each round from the server's weights and answers with its own."""

    def apply_server_message(self, state: ModelState, round_: int, message: bytes) -> Lesson | None:
        """Take over the server's weights."""
        weights, _ = decode_weights(message, "server", round_ - 1, state.model.state_dict())
        state.model.load_state_dict(weights)
        return None

    def make_upload(self, state: ModelState, request: Request) -> bytes:
        """The model's weights, and how many samples they were trained on."""
        return encode_weights(state.model.state_dict(), self.id, request.round, len(self.private))


class FedAvg(ServerAlgorithm):
    """The server of FedAvg. Its `student` is the model that all clients begin with.

    >>> import trustmix as tm
    >>> def model(): return torch.nn.Linear(4, 2)
    >>> x, y, public = torch.rand(20, 4), torch.arange(20) % 2, tm.Public(torch.rand(8, 4), classes=2)
    >>> clients = [WeightClient.from_arrays(name, model, x, y, public=public) for name in ("north", "south", "server")]
    >>> federation = tm.Federation(clients=clients[:2], student=clients[2], public=public, rule="fedavg")
    >>> [line.participants for line in federation.run(rounds=2).rounds]
    [['north', 'south'], ['north', 'south']]
    """

    upload_bytes = staticmethod(fedavg_bytes)
    """What the paper counts for one upload."""

    def __init__(self, context: ServerContext) -> None:
        if context.student is None:
            raise TrustmixError("methods that exchange weights need a student: the model that all clients begin with.")
        self.context, self.student = context, context.student
        self.initial = self.initial_weights()
        self.mean = WeightedMean()
        self._round = 0

    def initial_weights(self) -> dict[str, torch.Tensor]:
        """What the first message carries."""
        return dict(self.student.model().state_dict())

    def initial_message(self) -> bytes:
        """The weights that all clients begin with."""
        return encode_weights(self.initial, "server", 0)

    def begin_round(self, round_: int, message: bytes | None) -> None:  # noqa: ARG002 - the interface
        """Start with an empty mean."""
        self._round, self.mean = round_, WeightedMean()

    def aggregate(self, reply: Reply) -> None:
        """Fold one client's weights, by its number of samples."""
        self.mean.update(*self.decode(reply))

    def decode(self, reply: Reply) -> tuple[dict[str, torch.Tensor], int]:
        """A client's weights, and how many samples it trained them on."""
        weights, samples = decode_weights(reply.payload or b"", reply.client, reply.round, self.initial)
        if samples == 0:
            raise TrustmixError(f"The message of {reply.client} has samples = 0; it must have trained on some.")
        return weights, samples

    def finalize(self, clients: Sequence[str]) -> RoundResult:
        """The mean of all weights is what clients start the next round from."""
        message = encode_weights(self.mean.compute(), "server", self._round)
        return RoundResult(message, self.costs(clients))

    def costs(self, clients: Sequence[str]) -> dict[str, float | None]:
        """What the paper counts: the participants' models in float32."""
        parameters = sum(parameter.numel() for parameter in self.student.model().parameters())
        return {"paper_bytes_up": len(clients) * self.upload_bytes(parameters)}


CLIENTS.register("weights")(WeightClient)
METHODS.register("fedavg")(
    Method("fedavg", "FedAvg", algorithm=FedAvg, client="weights", exchanges="weights", guardable=False)
)

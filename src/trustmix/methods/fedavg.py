"""FedAvg (McMahan et al., 2017, algorithm 1): w = sum_i (n_i / n) w_i over the round's clients, by their samples.

Weights travel instead of predictions, so all models need one architecture. Buffers, such as the running statistics of
batch norm, are averaged with the weights. Messages are safetensors, and are checked before they are taken in.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from trustmix import storage
from trustmix.aggregation.rules import Memory
from trustmix.arrays import all_finite
from trustmix.errors import TrustmixError
from trustmix.federation import LOCAL_ONLY, Client, Federation, Reply, Request, TrainingJob
from trustmix.federation.client import ModelState
from trustmix.federation.server import RoundReplies
from trustmix.wire import fedavg_bytes

Tensors: TypeAlias = Mapping[str, torch.Tensor]


def encode_weights(tensors: Tensors, sender: str, round_: int, samples: int = 0) -> bytes:
    """Named tensors as a message; `samples` says how much a client's weigh."""
    return storage.pack(tensors, {"kind": "weights", "sender": sender, "round": round_, "samples": samples})


def decode_weights(message: bytes, sender: str, round_: int, like: Tensors) -> tuple[dict[str, torch.Tensor], int]:
    """The tensors of a message, with names, types and shapes like the given ones, and the number of samples."""
    source = f"The message of {sender}"
    tensors, header = storage.unpack(message, source)
    for key, value in {"kind": "weights", "sender": sender, "round": round_}.items():
        if header.get(key) != value:
            raise TrustmixError(f"{source} says {key} = {str(header.get(key))[:60]}; expected was {value}.")
    if _layout(tensors) != _layout(like):
        raise TrustmixError(f"{source} has weights of another architecture; all clients must train the same model.")
    if not all(all_finite(tensor) for tensor in tensors.values()):
        raise TrustmixError(f"{source} has weights that are not finite numbers.")
    samples = header.get("samples")
    if not isinstance(samples, int) or samples < 0:
        raise TrustmixError(f"{source} says samples = {str(samples)[:60]}; it must be a number of samples.")
    return tensors, samples


def _layout(tensors: Tensors) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


class WeightedMean:
    """A weighted mean of named tensors, folded one by one in float64; whole numbers are rounded in the end.

    >>> mean = WeightedMean()
    >>> mean.add({"w": torch.tensor([1.0, 2.0]), "steps": torch.tensor(3)}, 1)
    >>> mean.add({"w": torch.tensor([5.0, 2.0]), "steps": torch.tensor(4)}, 3)
    >>> mean.finish()
    {'w': tensor([4., 2.]), 'steps': tensor(4)}
    """

    def __init__(self) -> None:
        self.added = 0
        self._amount = 0.0
        self._sums: dict[str, torch.Tensor] = {}
        self._types: dict[str, torch.dtype] = {}

    def add(self, tensors: Tensors, amount: float) -> None:
        """Fold in one client's tensors."""
        for name, tensor in tensors.items():
            share = tensor.detach().cpu().to(torch.float64) * amount
            self._sums[name] = self._sums[name] + share if name in self._sums else share
            self._types[name] = tensor.dtype
        self._amount += amount
        self.added += 1

    def finish(self) -> dict[str, torch.Tensor]:
        """The mean of everything added so far, each tensor of its own type."""
        return {
            name: (value if self._types[name].is_floating_point else value.round()).to(self._types[name])
            for name, value in ((name, total / self._amount) for name, total in self._sums.items())
        }


class WeightClient(Client):
    """A client that starts each round from the server's weights and answers with its own."""

    def _distil(self, live: ModelState, round_: int, message: bytes) -> TrainingJob | None:
        weights, _ = decode_weights(message, "server", round_ - 1, live.model.state_dict())
        live.model.load_state_dict(weights)
        return None

    def _upload(self, live: ModelState, request: Request) -> bytes:
        return encode_weights(live.model.state_dict(), self.id, request.round, len(self.private))


class FedAvg(Federation):
    """A federation of `WeightClient`s. `student` is the server's own model, which all clients begin with.

    >>> import trustmix as tm
    >>> def model(): return torch.nn.Linear(4, 2)
    >>> x, y, public = torch.rand(20, 4), torch.arange(20) % 2, tm.Public(torch.rand(8, 4), classes=2)
    >>> clients = [WeightClient.from_arrays(name, model, x, y, public=public) for name in ("north", "south", "server")]
    >>> history = FedAvg(clients=clients[:2], student=clients[2], public=public).run(rounds=2)
    >>> [line.participants for line in history.rounds]
    [['north', 'south'], ['north', 'south']]
    """

    name = "fedavg"
    paper_bytes = staticmethod(fedavg_bytes)

    def __init__(self, *, student: Client, **settings: Any) -> None:
        clients = settings.get("clients")
        if isinstance(clients, Sequence) and len({c.architecture for c in (*clients, student)}) > 1:
            raise TrustmixError(
                f"{self.name} averages weights, which takes one architecture; these clients have several models."
            )
        super().__init__(rule=LOCAL_ONLY, **settings)
        self.method, self.server = self.name, student
        self._initial = student.model().state_dict()

    def _opening(self) -> bytes:
        return encode_weights(self._initial, "server", 0)

    def _mixer(self, last: bytes | None, memory: Memory) -> Any:  # noqa: ARG002
        return WeightedMean()

    def _take(self, reply: Reply, mixer: Any, last: bytes | None, result: RoundReplies) -> None:  # noqa: ARG002
        mixer.add(*self._received(reply))

    def _received(self, reply: Reply) -> tuple[dict[str, torch.Tensor], int]:
        """A client's weights, and how many samples it trained them on."""
        weights, samples = decode_weights(reply.payload or b"", reply.client, reply.round, self._initial)
        if samples == 0:
            raise TrustmixError(f"The message of {reply.client} says samples = 0; it must have trained on some.")
        return weights, samples

    def _teach(self, number: int, mixer: Any, result: RoundReplies) -> tuple[bytes, dict[str, Any]]:
        return encode_weights(mixer.finish(), "server", number), self._costs(result)

    def _costs(self, result: RoundReplies) -> dict[str, Any]:
        """What the paper counts: the participants' models in float32."""
        parameters = sum(parameter.numel() for parameter in self.server.model().parameters())
        return {"paper_bytes_up": len(result.replies) * self.paper_bytes(parameters)}

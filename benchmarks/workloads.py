"""The federations that are timed: the same data, models and amount of work for everybody who runs them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from trustmix.data import Labelled, load, partition
from trustmix.models import ModelFactory


@dataclass(frozen=True)
class Workload:
    """A federation: who holds what, which model, and how much is learned."""

    name: str
    shares: list[tuple[Labelled, Labelled]]
    """Private and calibration samples of each client."""
    public: torch.Tensor
    test: Labelled
    classes: int
    batch: int
    rounds: int
    first_epochs: int
    public_epochs: int

    def factory(self, client: int) -> ModelFactory:
        """Builds a client's initial model."""
        return ModelFactory(self.name, shape=tuple(self.public.shape[1:]), classes=self.classes, client=str(client))

    def model(self, client: int) -> nn.Module:
        """A client's initial model."""
        return self.factory(client)()

    @property
    def client_epochs(self) -> int:
        """Epochs of all clients: private ones, the first round's being more, and those of distillation."""
        private = self.first_epochs + self.rounds - 1
        return len(self.shares) * (private + self.rounds * self.public_epochs)


def digits_mlp(clients: int = 20, rounds: int = 10, public_epochs: int = 5) -> Workload:
    """The demo's federation."""
    data = load("digits")
    split = partition(
        data.train.labels, 10, clients=clients, classes_per_client=2, samples_per_client=120, public_samples=400
    )
    shares = [(data.train[share.train], data.train[share.calibration]) for share in split.clients]
    public = data.train.inputs[split.public]
    return Workload("mlp", shares, public, data.test, 10, 32, rounds, 5, public_epochs)


def _made_up(
    name: str, draw: Callable[[int], torch.Tensor], *, clients: int, private: int, public: int, batch: int, rounds: int
) -> Workload:
    """Random inputs with random labels: the time a step takes does not depend on what the numbers mean."""
    torch.manual_seed(0)
    shares = []
    for client in range(clients):
        labels = torch.tensor([client % 10, (client + 1) % 10]).repeat(private // 2)
        own = Labelled(draw(private), labels)
        held_out = private // 5
        shares.append((own[torch.arange(held_out, private)], own[torch.arange(held_out)]))
    test = Labelled(draw(public), torch.randint(10, (public,)))
    return Workload(name, shares, draw(public), test, 10, batch, rounds, 1, 1)


def images(count: int) -> torch.Tensor:
    """Pictures of CIFAR's size."""
    return torch.randn(count, 3, 32, 32)


def texts(count: int) -> torch.Tensor:
    """Token ids of texts of 5 to 128 tokens, most of them short, padded with -1."""
    lengths = (5 + 123 * torch.rand(count) ** 3).long()
    return torch.randint(1000, 30000, (count, 128)).masked_fill(torch.arange(128) >= lengths.unsqueeze(1), -1)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "mlp": digits_mlp,
    "cnn": lambda: _made_up("cnn", images, clients=8, private=320, public=256, batch=32, rounds=8),
    "resnet18": lambda: _made_up("resnet18", images, clients=2, private=160, public=128, batch=64, rounds=2),
    "bert-tiny": lambda: _made_up("bert-tiny", texts, clients=4, private=320, public=256, batch=32, rounds=3),
}

"""One client's learning, as functions: epochs of cross-entropy on hard or soft targets, prediction, accuracy."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from trustmix.errors import TrustmixError
from trustmix.registry import Registry

OPTIMIZERS: Registry[type[torch.optim.Optimizer]] = Registry("optimizer")
OPTIMIZERS.register("adam")(torch.optim.Adam)
OPTIMIZERS.register("adamw")(torch.optim.AdamW)
OPTIMIZERS.register("sgd")(torch.optim.SGD)


@dataclass(frozen=True)
class Training:
    """How a client learns. `first_epochs` counts for its first private stage, `epochs` for all later ones."""

    optimizer: str = "adam"
    lr: float = 1e-3
    batch: int = 32
    first_epochs: int = 5
    epochs: int = 1
    public_epochs: int = 1
    keep_optimizer: bool = True
    """Keep the optimiser's state over stages and rounds; otherwise every stage starts with a fresh one."""

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser of a model's trainable parameters."""
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        build = OPTIMIZERS.get(self.optimizer)
        return build(trainable, lr=self.lr, fused=True)  # type: ignore[call-arg]


def batches(samples: int, size: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Indices of one epoch in random order; a last batch of one joins the one before (batch norm needs two).

    >>> [len(batch) for batch in batches(9, 4, torch.Generator())]
    [4, 5]
    """
    parts = list(torch.split(torch.randperm(samples, generator=generator), size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return iter(parts)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    *,
    epochs: int,
    batch: int,
    generator: torch.Generator,
) -> None:
    """Epochs of cross-entropy; targets are labels (n,) in the private stage, a teacher (n, C) in the public one.

    The generator gives the order of the samples and seeds what the model draws itself (dropout).
    """
    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
        for _ in range(epochs):
            for index in batches(len(inputs), batch, generator):
                optimizer.zero_grad(set_to_none=True)
                loss = cross_entropy(model(inputs[index]), targets[index])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            if not torch.isfinite(loss):
                raise TrustmixError(f"the loss became {loss.item()}; a lower train.lr than the present one may help")


@torch.no_grad()
def predict(model: nn.Module, inputs: torch.Tensor, batch: int = 1024) -> torch.Tensor:
    """Logits (n, C) in evaluation mode, float32."""
    model.eval()
    return torch.cat([model(part).to(torch.float32) for part in torch.split(inputs, batch)])


def accuracy(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    """Fraction of inputs whose most probable class, among all classes, is the label."""
    return float((predict(model, inputs).argmax(1) == labels).double().mean())

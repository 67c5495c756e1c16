"""Differentially private training (DP-SGD): every record's gradient is cut to a length, and the sum gets noise.

Batches are Poisson samples, each record in each with the same chance, which is what the accountant counts on. Whatever
is made of such a model, predictions on public samples first of all, is as private as its training was.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

from trustmix.errors import TrustmixError

MAX_GRADIENT_NUMBERS = 2**25
"""Numbers of single gradients that are in memory together."""


@dataclass(frozen=True)
class DPSGDParams:
    """How gradients are made private."""

    clip: float
    """The longest that a record's gradient may be."""
    multiplier: float
    """Standard deviation of the noise on the sum of gradients, in units of `clip`."""
    rate: float
    """The chance of a record to be in a batch."""


def poisson_batches(samples: int, rate: float, steps: int, draws: torch.Generator) -> list[torch.Tensor]:
    """For each step the samples that it takes, each with the same chance; a step may have none.

    >>> [len(batch) for batch in poisson_batches(4, 1.0, 2, torch.Generator())]
    [4, 4]
    """
    return [(torch.rand(samples, generator=draws) < rate).nonzero().squeeze(1) for _ in range(steps)]


def dp_gradients(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    noise: DPSGDParams,
    samples: int,
    draws: torch.Generator,
) -> torch.Tensor:
    """Set the parameters' gradients from one batch of all `samples` records, and give the mean loss.

    >>> model = nn.Linear(2, 2)
    >>> noise = DPSGDParams(clip=1e-3, multiplier=0.0, rate=0.5)
    >>> loss = dp_gradients(model, torch.eye(2), torch.arange(2), noise, 4, torch.Generator())
    >>> bool(model.weight.grad.norm() <= 1e-3)
    True
    """
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    now = {name: parameter.detach() for name, parameter in named.items()}

    def loss_of(parameters: dict[str, torch.Tensor], one: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return cross_entropy(functional_call(model, parameters, (one.unsqueeze(0),)), target.unsqueeze(0))

    each_of = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0), randomness="different")
    total = {name: torch.zeros_like(parameter) for name, parameter in now.items()}
    loss = torch.zeros((), device=inputs.device)
    together = max(1, MAX_GRADIENT_NUMBERS // sum(parameter.numel() for parameter in now.values()))
    for begin in range(0, len(inputs), together):
        some = slice(begin, begin + together)
        gradients, losses = each_of(now, inputs[some], targets[some])
        lengths = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients.values()]).norm(dim=0)
        shorter = noise.clip / lengths.clamp_min(noise.clip)
        for name, gradient in gradients.items():
            total[name] += torch.tensordot(shorter, gradient, dims=1)
        loss = loss + losses.sum()
    for name, parameter in named.items():
        drawn = torch.randn(parameter.shape, generator=draws).to(parameter.device)
        summed = total[name] + noise.clip * noise.multiplier * drawn
        parameter.grad = torch.empty_like(parameter).copy_(summed / (noise.rate * samples))
    return loss / max(1, len(inputs))


def validate_dp_model(model: nn.Module, inputs: torch.Tensor) -> None:
    """Refuse a model whose training mixes records, so that no record has a gradient of its own.

    >>> validate_dp_model(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), torch.zeros(2, 2))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    trustmix.errors.TrustmixError: The model has batch norm, ...
    """
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise TrustmixError(
            "The model has batch norm, which mixes the records of a batch; private training takes a model without it, "
            "such as mlp or cnn, or set privacy.mechanism = uploads."
        )
    none = DPSGDParams(1.0, 0.0, 1.0)
    try:
        model.train()
        dp_gradients(model, inputs, torch.zeros(len(inputs), dtype=torch.int64), none, len(inputs), torch.Generator())
    except Exception as error:
        raise TrustmixError(
            f"The model gives no gradient for each record ({type(error).__name__}: {str(error)[:200]}), which private "
            "training takes; use mlp or cnn, or set privacy.mechanism = uploads."
        ) from error

"""Differentially private training (DP-SGD): the gradient of every record is clipped, and the sum gets noise.

Batches are Poisson samples: each record is in each batch with the same probability, as the accountant assumes. All that
is computed from such a model, predictions on public samples first of all, is as private as its training.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

from trustmix.errors import TrustmixError

MAX_GRADIENT_NUMBERS = 2**25
"""Numbers of per-sample gradients that are in memory together."""


@dataclass(frozen=True)
class DPSGDParams:
    """The parameters of DP-SGD."""

    clip: float
    """The largest norm of the gradient of a record."""
    noise_multiplier: float
    """The standard deviation of the noise on the sum of gradients, in units of `clip`."""
    sample_rate: float
    """The probability with which a record is in a batch."""


def poisson_batches(samples: int, rate: float, steps: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Poisson samples of the records, one per step.

    Parameters
    ----------
    samples : int
        The number of records.
    rate : float
        The probability with which a record is in a batch.
    steps : int
        The number of batches.
    generator : torch.Generator
        What batches are drawn from.

    Returns
    -------
    list of torch.Tensor (n,)
        The indices of each batch; a batch may be empty.

    Examples
    --------
    >>> [len(batch) for batch in poisson_batches(4, 1.0, 2, torch.Generator())]
    [4, 4]
    """
    return [(torch.rand(samples, generator=generator) < rate).nonzero().squeeze(1) for _ in range(steps)]


def dp_gradients(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    params: DPSGDParams,
    samples: int,
    generator: torch.Generator,
) -> torch.Tensor:
    """Set the gradients of the model's parameters to the clipped and noisy mean over one batch.

    Parameters
    ----------
    model : nn.Module
        A model that `validate_dp_model` accepts.
    inputs : torch.Tensor (n, ...)
        The inputs of the batch; n may be 0.
    targets : torch.Tensor (n,) or (n, C)
        Labels or soft labels.
    params : DPSGDParams
        How gradients are clipped, and how large the noise is.
    samples : int
        The number of all records: the sum is divided by the expected size of a batch.
    generator : torch.Generator
        What noise is drawn from.

    Returns
    -------
    torch.Tensor ()
        The mean loss of the batch; it has no noise and must stay with the client.

    Examples
    --------
    >>> model = nn.Linear(2, 2)
    >>> params = DPSGDParams(clip=1e-3, noise_multiplier=0.0, sample_rate=0.5)
    >>> loss = dp_gradients(model, torch.eye(2), torch.arange(2), params, 4, torch.Generator())
    >>> bool(model.weight.grad.norm() <= 1e-3)
    True
    """
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    total, loss = _clipped_sum(model, inputs, targets, params.clip)
    for name, parameter in named.items():
        noise = torch.randn(parameter.shape, generator=generator).to(parameter.device)
        noisy = total[name] + params.clip * params.noise_multiplier * noise
        parameter.grad = torch.empty_like(parameter).copy_(noisy / (params.sample_rate * samples))
    return loss / max(1, len(inputs))


def _clipped_sum(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, clip: float
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The sum of the clipped per-sample gradients by the parameter's name, and the sum of the losses."""
    trainable = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def sample_loss(parameters: dict[str, torch.Tensor], one: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return cross_entropy(functional_call(model, parameters, (one.unsqueeze(0),)), target.unsqueeze(0))

    per_sample = vmap(grad_and_value(sample_loss), in_dims=(None, 0, 0), randomness="different")
    total = {name: torch.zeros_like(parameter) for name, parameter in trainable.items()}
    loss = torch.zeros((), device=inputs.device)
    chunk = max(1, MAX_GRADIENT_NUMBERS // sum(parameter.numel() for parameter in trainable.values()))
    for begin in range(0, len(inputs), chunk):
        rows = slice(begin, begin + chunk)
        gradients, losses = per_sample(trainable, inputs[rows], targets[rows])
        norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients.values()]).norm(dim=0)
        factors = clip / norms.clamp_min(clip)
        for name, gradient in gradients.items():
            total[name] += torch.tensordot(factors, gradient, dims=1)
        loss = loss + losses.sum()
    return total, loss


def validate_dp_model(model: nn.Module, inputs: torch.Tensor) -> None:
    """Refuse a model whose training mixes records, so that no record has a gradient of its own.

    Parameters
    ----------
    model : nn.Module
        The model; it is in training mode afterwards, with gradients set.
    inputs : torch.Tensor (n, ...)
        A few inputs to try it on.

    Raises
    ------
    TrustmixError
        If the model has batch norm or gives no per-sample gradients.

    Examples
    --------
    >>> validate_dp_model(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), torch.zeros(2, 2))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    trustmix.errors.TrustmixError: The model has batch norm, ...
    """
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise TrustmixError(
            "The model has batch norm, which mixes the records of a batch; private training takes a model without it, "
            'such as mlp or cnn, or use the mechanism "uploads".'
        )
    params = DPSGDParams(clip=1.0, noise_multiplier=0.0, sample_rate=1.0)
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    try:
        model.train()
        dp_gradients(model, inputs, labels, params, len(inputs), torch.Generator())
    except Exception as error:
        raise TrustmixError(
            f"The model gives no gradient for each record ({type(error).__name__}: {str(error)[:200]}), which private "
            'training takes; use a model such as mlp or cnn, or the mechanism "uploads".'
        ) from error

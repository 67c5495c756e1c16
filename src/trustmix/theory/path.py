"""Points along one training path, and the constants of the bounds as they are at these points.

A point has the gradients of three losses: F (supervised, on all private data), J* (distillation from the reference) and
J_agg (distillation from the teacher).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from trustmix.learners import Training
from trustmix.theory.constants import (
    Alignment,
    Oracle,
    fit_alignment,
    oracle,
    pl_constant,
    smoothness,
)

POINTS = 5
"""Points along a path, the first before and the last after training."""
SMALL_MODEL = 2**20
"""A model of fewer parameters is trained in one thread: several would wait for each other longer than they work."""
GRADIENT_BATCH = 512
"""Samples whose gradient is computed together."""


@dataclass(frozen=True)
class PathPoint:
    """What is measured at one point of one client's distillation."""

    parameters: torch.Tensor
    """The trainable parameters as one vector."""
    loss: float
    """F."""
    gradient: torch.Tensor
    """grad F."""
    ideal: torch.Tensor
    """grad J*."""
    distilled: torch.Tensor
    """grad J_agg."""
    score_energy: float
    """G_sc^2."""
    noise: float
    """nu^2."""


@dataclass(frozen=True)
class PathConstants:
    """The constants of the bounds over all points of several paths."""

    score_energy: float
    noise: float
    alignment: Alignment
    oracle: Oracle
    smoothness: float
    pl: float | None
    gradient: float
    gap: float
    discrepancy: float


def estimate_constants(paths: Sequence[Sequence[PathPoint]], error: float, least_loss: float) -> PathConstants:
    """The constants of the bounds at the points of some paths.

    Parameters
    ----------
    paths : sequence of sequences of PathPoint
        The points of each path in their order.
    error : float
        eps_teach of the teacher that was distilled.
    least_loss : float
        F*.

    Returns
    -------
    PathConstants
        Largest values where the theory has upper bounds, means of what a run is compared by.
    """
    points = [point for path in paths for point in path]
    energy, noise = max(p.score_energy for p in points), max(p.noise for p in points)
    norms = [_square(p.gradient) for p in points]
    apart = [_square(p.gradient - p.ideal) for p in points]
    alignment = fit_alignment(norms, apart, energy * error)
    steepest = max(smoothness([p.gradient for p in path], [p.parameters for p in path]) for path in paths)
    above = [(norm, p.loss - least_loss) for norm, p in zip(norms, points, strict=True) if p.loss > least_loss]
    return PathConstants(
        score_energy=energy,
        noise=noise,
        alignment=alignment,
        oracle=oracle(alignment, energy, error),
        smoothness=steepest,
        pl=min(steepest, pl_constant(*zip(*above, strict=True))) if above else None,
        gradient=fmean(norms),
        gap=fmean(path[-1].loss for path in paths) - least_loss,
        discrepancy=max(_square(p.distilled - p.ideal) for p in points),
    )


def train_with_snapshots(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    weight: torch.Tensor,
    *,
    training: Training,
    epochs: int,
    seed: int,
) -> Iterator[nn.Module]:
    """Train a model and yield copies of it at `POINTS` points of the path.

    Parameters
    ----------
    model : nn.Module
        The model; it is trained in place.
    inputs : torch.Tensor (n, ...)
        The training inputs.
    targets : torch.Tensor (n,) or (n, C)
        Labels or soft labels.
    weight : torch.Tensor (n,)
        The weight of each sample in the loss; of mean 1.
    training : Training
        The optimiser and the size of a batch.
    epochs : int
        The number of epochs.
    seed : int
        The seed of the order of samples and of dropout.

    Yields
    ------
    nn.Module
        A copy in evaluation mode, the first before and the last after training.
    """
    optimizer = training.make_optimizer(model.parameters())
    generator = torch.Generator().manual_seed(seed)
    each = [torch.split(torch.randperm(len(inputs), generator=generator), training.batch) for _ in range(epochs)]
    order = [batch.to(inputs.device) for batches in each for batch in batches if len(batch) > 1]
    stops = torch.linspace(0, len(order), POINTS).round().int().tolist()
    for begin, end in zip([0, *stops], stops, strict=False):
        with torch.random.fork_rng(devices=[]), threads_for(model):
            torch.manual_seed(seed + begin)  # dropout
            model.train()
            for batch in order[begin:end]:
                optimizer.zero_grad(set_to_none=True)
                losses = cross_entropy(model(inputs[batch]), targets[batch], reduction="none")
                (losses * weight[batch]).mean().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        yield deepcopy(model).eval()


@contextmanager
def threads_for(model: nn.Module) -> Iterator[None]:
    """Within the context torch uses one thread if the model is small."""
    before = torch.get_num_threads()
    if sum(parameter.numel() for parameter in model.parameters()) < SMALL_MODEL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def loss_and_gradient(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor
) -> tuple[float, torch.Tensor]:
    """The weighted cross-entropy and its gradient.

    Parameters
    ----------
    model : nn.Module
        The model; it is in evaluation mode afterwards.
    inputs : torch.Tensor (n, ...)
        The inputs.
    targets : torch.Tensor (n,) or (n, C)
        Labels or soft labels.
    weight : torch.Tensor (n,)
        The weight of each sample; of sum 1 for a mean.

    Returns
    -------
    float
        The loss.
    torch.Tensor (D,)
        The gradient of all trainable parameters as one vector, float64.
    """
    model.eval().zero_grad(set_to_none=True)
    total = 0.0
    for x, y, w in zip(*(torch.split(tensor, GRADIENT_BATCH) for tensor in (inputs, targets, weight)), strict=True):
        loss = (cross_entropy(model(x), y, reduction="none") * w).sum()
        loss.backward()
        total += float(loss.detach())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return total, flatten_tensors([torch.zeros_like(p) if p.grad is None else p.grad for p in trained])


def flatten_tensors(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """All tensors as one vector (D,), float64, on the CPU."""
    return torch.cat([tensor.flatten() for tensor in tensors]).cpu().double()


def _square(vector: torch.Tensor) -> float:
    return float(vector.square().sum())

"""Scores of a model's confidence: energy, entropy and the largest probability.

They use the logits of the sample alone and learn nothing from the calibration samples.
"""

from collections.abc import Callable

import torch

from trustmix.arrays import A, ArrayLike
from trustmix.density.base import DENSITIES, restore_scores, validate_points


class ConfidenceScore:
    """A score of the logits alone, in the place of a density.

    Parameters
    ----------
    score : callable
        The function that maps logits (N, C) to scores (N,), float64 tensors.

    Examples
    --------
    >>> ConfidenceScore(energy).fit([[1.0, 2.0]], [0]).log_prob(torch.zeros(1, 2))
    tensor([0.6931])
    """

    def __init__(self, score: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.score = score

    def fit(self, logits: ArrayLike, labels: ArrayLike) -> "ConfidenceScore":  # noqa: ARG002 - there is nothing to fit
        """The score itself: fitting changes nothing."""
        return self

    def log_prob(self, logits: A) -> A:
        """The score l(x) (N,) of each row of the logits (N, C)."""
        return restore_scores(self.score(validate_points(logits, "logits")), logits)


def energy(logits: torch.Tensor) -> torch.Tensor:
    """Minus the free energy, log sum_c exp z_c (Liu et al. 2020).

    Parameters
    ----------
    logits : torch.Tensor (N, C)
        The logits z.

    Returns
    -------
    torch.Tensor (N,)
        The scores.

    Examples
    --------
    >>> energy(torch.tensor([[0.0, 0.0]]))
    tensor([0.6931])
    """
    return torch.logsumexp(logits, 1)


def negative_entropy(logits: torch.Tensor) -> torch.Tensor:
    """sum_c q_c log q_c of the softmax q: -log C where it is uniform, 0 where it is certain.

    Parameters
    ----------
    logits : torch.Tensor (N, C)
        The logits.

    Returns
    -------
    torch.Tensor (N,)
        The scores.

    Examples
    --------
    >>> negative_entropy(torch.tensor([[0.0, 0.0]]))
    tensor([-0.6931])
    """
    log_q = torch.log_softmax(logits, 1)
    return (log_q.exp() * log_q).sum(1)


def log_max_probability(logits: torch.Tensor) -> torch.Tensor:
    """The logarithm of the largest probability of the softmax.

    Parameters
    ----------
    logits : torch.Tensor (N, C)
        The logits.

    Returns
    -------
    torch.Tensor (N,)
        The scores.

    Examples
    --------
    >>> log_max_probability(torch.tensor([[0.0, 0.0]]))
    tensor([-0.6931])
    """
    return torch.log_softmax(logits, 1).amax(1)


DENSITIES.register("energy")(ConfidenceScore(energy))
DENSITIES.register("entropy")(ConfidenceScore(negative_entropy))
DENSITIES.register("max-probability")(ConfidenceScore(log_max_probability))

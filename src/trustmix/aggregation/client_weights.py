"""w_i(x), how much of a teacher's label is a client's: from scores, or from votes where a rule has no weights."""

import math

import torch

from trustmix.aggregation.upload import MAX_SCORE
from trustmix.arrays import ArrayLike, to_float_tensor


def client_weights(scores: ArrayLike, tau: float) -> torch.Tensor:
    """w_i(x) = softmax_i(tau * l_i(x)).

    Parameters
    ----------
    scores
        (M, N): l of every client.
    tau
        The temperature; infinity gives all weight to the largest score, shared where several are largest.

    Returns
    -------
    torch.Tensor
        (M, N), float64, summing to 1 over clients.

    >>> client_weights([[0.0, 0.0], [0.0, -50.0]], tau=1.0).round(decimals=3).tolist()
    [[0.5, 1.0], [0.5, 0.0]]
    """
    score = to_float_tensor(scores, "scores").cpu().to(torch.float64).clamp(-MAX_SCORE, MAX_SCORE)
    weight = shrink(score - score.amax(0), tau)
    return weight / weight.sum(0)


def shrink(below: torch.Tensor, tau: float) -> torch.Tensor:
    """exp(tau * below) for below <= 0, where exp(inf * 0) counts as 1, so that the largest score keeps its weight."""
    weights = torch.exp(tau * below)
    return weights if math.isfinite(tau) else torch.where(below == 0, 1.0, weights)


def vote_agreement_weights(votes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Weights for rules without any: equal for the clients whose vote is the teacher's label, 0 for the others.

    Parameters
    ----------
    votes
        (M, N): the class that each client finds most probable.
    labels
        (N,): the teacher's most probable class.

    Returns
    -------
    torch.Tensor
        (M, N), summing to 1 over clients; all clients have equal weights where no vote agrees.

    >>> vote_agreement_weights(torch.tensor([[3, 1], [3, 2], [5, 2]]), torch.tensor([3, 0])).round(decimals=3).tolist()
    [[0.5, 0.333], [0.5, 0.333], [0.0, 0.333]]
    """
    same = (votes == labels).to(torch.float64)
    same[:, same.sum(0) == 0] = 1.0
    return same / same.sum(0)

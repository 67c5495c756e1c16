"""The bounds of the guard as functions: of scores, of shares and of regrets.

Each looks at one client at a time and may look again: where it takes a collection, that can be read from disk.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import torch

MAX_MADS = 3.0
"""How many median absolute deviations above the median a score may lie."""
SHARPNESS = 3
"""A client's confidence in a sample is the rank of its score among its own scores, to this power."""
TOLERATED, SILENCED = 2.0, 3.0
"""Up to so many times the median regret a client keeps its full weight; from so many on it has none."""
LEAST_REGRET, LEAST_WITHIN = 0.2, 0.1
"""A median regret below this counts as this: among clients that nearly agree, small differences mean nothing. The
second is for clients that share their label sets: within them they agree more."""
N_ITERATIONS = 4
"""How often the consensus is computed anew with the weights that it has lowered."""
MIN_REPUTATION = 1e-3
"""No weight falls below this from one round to the next, so that a client that becomes honest regains it."""
ZERO_WEIGHT, HALF = 0.01, 0.5
"""A smaller weight is 0: under a rule that takes weights, and under one that does not."""


def clip_scores(scores: torch.Tensor) -> torch.Tensor:
    """Bound each client's k-th smallest score by the median of all clients' k-th smallest plus `MAX_MADS` deviations.

    The order of a client's scores stays; a constant added to all of them has no effect beyond the bound.

    Parameters
    ----------
    scores
        (M, N).

    Returns
    -------
    torch.Tensor
        (M, N), nowhere larger than the scores.

    >>> scores = torch.tensor([[1.0, 2.0], [1.5, 2.5], [2.0, 3.0], [9e5, 1e6]])
    >>> clip_scores(scores).tolist()
    [[1.0, 2.0], [1.5, 2.5], [2.0, 3.0], [3.0, 4.0]]
    """
    allowed = score_bounds(scores)
    return torch.stack([clip_to_bounds(one, allowed) for one in scores])


def score_bounds(scores: torch.Tensor) -> torch.Tensor:
    """The bounds (N,) of the smallest, the second smallest, ... score of any client, from scores (M, N)."""
    ordered = scores.sort(1).values
    middle = ordered.median(0).values
    spread = (ordered - middle).abs().median(0).values
    # the low scores of many clients spread widely: what is allowed there must not exceed what is allowed above
    return (middle + MAX_MADS * spread).flip(0).cummin(0).values.flip(0)


def clip_to_bounds(scores: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Scores (N,) of one client, the k-th smallest of them at most the k-th bound (N,)."""
    ordered, place = scores.sort()
    return torch.empty_like(scores).scatter_(0, place, torch.minimum(ordered, allowed))


def effective_weight(weight: float, takes_weights: bool) -> float:
    """The weight with which a client is folded; 0 leaves it out.

    Parameters
    ----------
    weight
        What the guard leaves the client, from 0 to 1.
    takes_weights
        Whether the rule takes weights; if not, clients of at least one half count fully and the others not at all.

    >>> effective_weight(0.4, True), effective_weight(0.4, False), effective_weight(0.6, False)
    (0.4, 0.0, 1.0)
    """
    if weight < (ZERO_WEIGHT if takes_weights else HALF):
        return 0.0
    return weight if takes_weights else 1.0


def cap_share(scores: torch.Tensor, weights: torch.Tensor, tau: float, cap: float) -> torch.Tensor:
    """Lower the largest scores so that no client's share w_i exp(tau * l_i) / sum_j w_j exp(tau * l_j) exceeds the cap.

    Parameters
    ----------
    scores
        (M, N): l.
    weights
        (M,): w.
    tau
        The temperature of the rule, above 0 and finite.
    cap
        The largest share, below 1.

    Returns
    -------
    torch.Tensor
        (M, N), nowhere larger than the scores.

    >>> scores = torch.tensor([[9.0], [0.0], [0.0], [8.0]])
    >>> low = cap_share(scores, torch.tensor([1.0, 1.0, 1.0, 0.0]), tau=1.0, cap=0.8)
    >>> torch.softmax(low[:3], 0).flatten().tolist()
    [0.800000011920929, 0.10000000149011612, 0.10000000149011612]
    """
    first, allowed = share_bounds(scores, weights.tolist(), tau, cap)
    return torch.stack([torch.where(first == i, torch.minimum(one, allowed), one) for i, one in enumerate(scores)])


def share_bounds(
    scores: Iterable[torch.Tensor], weights: Sequence[float], tau: float, cap: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The client (N,) with the largest share of each sample, and the score (N,) with which its share is the cap."""
    first = largest = others = torch.empty(0)
    for index, (score, weight) in enumerate(zip(scores, weights, strict=True)):
        log_share = tau * score + (math.log(weight) if weight > 0 else -torch.inf)
        if index == 0:
            first, largest = torch.zeros(len(score), dtype=torch.int64), log_share
            others = torch.full_like(log_share, -torch.inf)
            continue
        more = log_share > largest
        others = torch.logaddexp(others, torch.minimum(log_share, largest))
        first, largest = torch.where(more, index, first), torch.maximum(log_share, largest)
    log_weight = torch.tensor(weights, dtype=others.dtype).log()[first]
    return first, (others + math.log(cap / (1 - cap)) - log_weight) / tau


class Rereadable(Protocol):
    """Tensors of all clients in turn, as often as they are asked for."""

    def __iter__(self) -> Iterator[torch.Tensor]: ...


def regret_weights(
    predictions: Rereadable,
    scores: Rereadable | None,
    class_counts: Sequence[torch.Tensor | None],
    before: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The regret of every client against the consensus of the others, and the weight that it leaves.

    Parameters
    ----------
    predictions
        (N, C) of each client.
    scores
        (N,) of each client; None where clients have none, and all samples count alike.
    class_counts
        (C,) of each client; one that shares its label set is compared on its own classes alone.
    before
        (M,): the weights that clients come with.

    Returns
    -------
    tuple of torch.Tensor
        Regrets (M,) and weights (M,), the latter at most `before`.
    """
    weights = regret = before
    median = LEAST_REGRET if any(counts is None for counts in class_counts) else LEAST_WITHIN
    for _ in range(N_ITERATIONS):
        last, regret = weights, _regrets(predictions, scores, weights.clamp_min(MIN_REPUTATION), class_counts)
        median = max(float(regret.median()), median)  # the clients that are left agree more: no reason to be stricter
        today = ((SILENCED - regret / median) / (SILENCED - TOLERATED)).clamp(0, 1)
        weights = before * today
        if torch.equal(weights, last):
            break
    return regret, weights


def rank_confidence(scores: torch.Tensor) -> torch.Tensor:
    """Each client's confidence in each sample: the rank of its score among its own scores, to the power `SHARPNESS`.

    Parameters
    ----------
    scores
        (M, N).

    Returns
    -------
    torch.Tensor
        (M, N), from 0 to 1; equal scores have the same confidence.

    >>> rank_confidence(torch.tensor([[-5.0, 1e9, 0.0, -4.0], [7.0, 7.0, 7.0, 7.0]])).tolist()
    [[0.001953125, 0.669921875, 0.244140625, 0.052734375], [0.125, 0.125, 0.125, 0.125]]
    """
    ordered, scores = scores.sort(1).values, scores.contiguous()
    below, up_to = (torch.searchsorted(ordered, scores, right=right) for right in (False, True))
    return ((below + up_to).to(torch.float64) / (2 * scores.shape[1])) ** SHARPNESS


def _votes(
    predictions: Rereadable, scores: Rereadable | None, weights: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Of each client its votes (N,) and predictions (N, C), float64."""
    ranked = None if scores is None else iter(scores)
    for q, weight in zip(predictions, weights, strict=True):
        if ranked is None:
            confidence = torch.ones(len(q), dtype=torch.float64)
        else:
            confidence = rank_confidence(next(ranked).unsqueeze(0)).squeeze(0)
        yield confidence * weight, q.cpu().to(torch.float64)


def _regrets(
    predictions: Rereadable,
    scores: Rereadable | None,
    weights: torch.Tensor,
    class_counts: Sequence[torch.Tensor | None],
) -> torch.Tensor:
    """(M,): the regret of each client against the consensus of the others, from 0 to 1."""
    total = mixed = torch.zeros((), dtype=torch.float64)
    for vote, q in _votes(predictions, scores, weights):
        total, mixed = total + vote, mixed + vote.unsqueeze(1) * q
    voters = zip(_votes(predictions, scores, weights), class_counts, strict=True)
    return torch.stack([_regret(vote, own, total, mixed, counts) for (vote, own), counts in voters])


def _regret(
    vote: torch.Tensor, own: torch.Tensor, total: torch.Tensor, mixed: torch.Tensor, counts: torch.Tensor | None
) -> torch.Tensor:
    """The regret of a client with these votes (N,) and predictions (N, C), which are in the sums of all clients."""
    tiny = torch.finfo(torch.float64).tiny
    others = (total - vote).clamp_min(tiny)
    consensus = ((mixed - vote.unsqueeze(1) * own) / others.unsqueeze(1)).clamp_min(0)
    importance = vote * others / total
    if counts is not None:
        held = (counts > 0).to(torch.float64)
        consensus, own, importance = consensus * held, own * held, others
        own = own / own.sum(1, keepdim=True).clamp_min(tiny)
    largest, guess = own.max(1)
    of_guess = consensus.gather(1, guess.unsqueeze(1)).squeeze(1) * (largest > 0)
    best = consensus.amax(1)
    missed = best - torch.maximum((own * consensus).sum(1), of_guess)
    return importance @ missed / (importance @ best).clamp_min(tiny)

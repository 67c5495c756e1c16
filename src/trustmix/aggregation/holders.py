"""The rule `holders`: the teacher of a class is made by the clients that hold it.

With r_i(x) = p_i(x) / p_pub(x), r_i(x) k_i / C estimates P(y in C_i | x) where classes are equally common in the public
set. So client i estimates p(c|x) for its own classes as r_i(x) (k_i / C) q_i(c | x, C_i), and all holders of c estimate
the same number. The teacher of c is their mean, normalised over classes: a sum and a count, without a linear system.
Where all clients hold all classes, r is 1 and the rule is AVG.
"""

import math

import torch

from trustmix.aggregation.base import StateDict, SumAggregator, Upload
from trustmix.aggregation.coupling import label_set

FLOOR = 1e-12
"""Added to every class, so that a sample of which no client has seen any like it still has a label."""
BISECTIONS = 80
MAX_SPREAD = 1e6
"""Scores further below the largest count as this far."""
MIN_RATIO = 1e-100
"""A smaller ratio counts as this one, whose square is still a number."""


def bounded_ratio(scores: torch.Tensor, largest: float) -> torch.Tensor:
    """The density ratio of log-ratio scores, at most `largest`, with mean 1 over the public set.

    A true ratio has mean 1 and cannot exceed 1 / P(y in C_i). A client that raises all its scores changes nothing.

    Parameters
    ----------
    scores
        (N,): log r, up to a constant.
    largest
        The bound, at least 1.

    Returns
    -------
    torch.Tensor
        (N,): r.

    >>> bounded_ratio(torch.tensor([1000.0, 1000.0, 0.0, 0.0]), largest=2.0).round(decimals=9).tolist()
    [2.0, 2.0, 0.0, 0.0]
    """
    top = math.log(largest)
    centred = scores.to(torch.float64) - scores.max()
    low, high = -1e3, top - float(centred.min().clamp_min(-MAX_SPREAD))  # at `high` all scores are at the bound
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if float((centred + middle).clamp(max=top).exp().mean()) < 1:
            low = middle
        else:
            high = middle
    return (centred + high).clamp(max=top).exp().clamp_min(MIN_RATIO)


class Holders(SumAggregator):
    """The mean of the holders' estimates of each class.

    >>> import numpy as np
    >>> rule = Holders()
    >>> sure = np.array([[0.9, 0.1, 0.0], [0.5, 0.5, 0.0]])
    >>> rule.update(Upload.from_arrays("north", sure, [5.0, -5.0], class_counts=[1, 1, 0]))
    >>> rule.update(Upload.from_arrays("south", sure[:, ::-1], [-5.0, 5.0], class_counts=[0, 1, 1]))
    >>> rule.compute().probabilities.argmax(1).tolist()  # the second sample is familiar to south, not to north: class 2
    [0, 2]
    """

    needs_label_sets = True

    def terms(self, upload: Upload) -> dict[str, torch.Tensor]:
        """r_i (k_i / C) q_i within the label set, and who holds what."""
        counts = label_set(upload)
        held = (counts > 0).to(torch.float64)
        own = upload.predictions.to(torch.float64) * held / counts.clamp_min(1)
        own = own / own.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        share = float(held.sum() / len(held))
        ratio = torch.ones(len(own), dtype=torch.float64)
        if upload.scores is not None and share < 1:
            ratio = bounded_ratio(upload.scores, 1 / share)
        weight = upload.weight * ratio
        self.keep_weights(upload.client, weight)
        mass = own * (share * weight).unsqueeze(1)
        return {"mass": mass, "holders": upload.weight * held, "weight": weight, "square": weight.square()}

    def from_sums(self, sums: StateDict) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean over holders, normalised; chi of the clients' ratios."""
        mean = sums["mass"] / sums["holders"].clamp_min(torch.finfo(torch.float64).tiny) + FLOOR
        return mean / mean.sum(1, keepdim=True), sums["square"] / sums["weight"].square()

"""What a client can tell that costs no more privacy, or a known amount of it.

The Gaussian mechanism puts noise N(0, (noise * sensitivity)^2) on every number, the sensitivity being the most that the
protected thing can move all numbers together, in Euclidean length. And whatever is computed from a privately trained
model and public samples, without another look at private data, is as private as the training was.
"""

import math
from collections.abc import Sequence

import torch


def gaussian_mechanism(predictions: torch.Tensor, noise: float, draws: torch.Generator) -> torch.Tensor:
    """Predictions q (N, C) with noise, each row brought back to the nearest probabilities.

    Two rows of probabilities are at most sqrt(2) apart, so two whole matrices at most sqrt(2 N): nothing smaller holds
    for any model and any training, as one record may change what a model says of every sample.

    >>> gaussian_mechanism(torch.eye(2), 0.0, torch.Generator()).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    drawn = torch.randn(predictions.shape, generator=draws, dtype=torch.float64)
    spoiled = predictions.to(torch.float64) + noise * math.sqrt(2 * len(predictions)) * drawn
    return project_to_simplex(spoiled).to(predictions.dtype)


def project_to_simplex(rows: torch.Tensor) -> torch.Tensor:
    """The nearest point (Euclidean) of the probability simplex to each row (N, C).

    >>> project_to_simplex(torch.tensor([[2.0, 0.0], [0.5, 0.0]])).tolist()
    [[1.0, 0.0], [0.75, 0.25]]
    """
    falling = rows.sort(1, descending=True).values
    surplus = (falling.cumsum(1) - 1) / torch.arange(1, rows.shape[1] + 1, device=rows.device)
    used = (falling > surplus).sum(1, keepdim=True)
    return (rows - surplus.gather(1, used - 1)).clamp_min(0)


def select_confident_samples(logits: torch.Tensor, held: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Public samples in place of calibration samples: those that the model is surest are of a held class.

    logits (N, C) are those of the public set. Of each held class, by their log-odds, come half as many samples as a
    class has where all are alike frequent, N / 2C: their numbers and that class, for a density to be fitted on.

    >>> from trustmix.density import ClassGaussians
    >>> logits = torch.tensor([[9.0, 0, 0], [8.0, 0, 1], [0, 9.0, 0], [0, 8.0, 0], [0, 0, 9.0], [0, 0, 8.0]])
    >>> select_confident_samples(logits, held=[0, 1])[1].tolist()
    [0, 0, 1, 1]
    >>> chosen, classes = select_confident_samples(logits, held=[0, 1])
    >>> seen, unseen = ClassGaussians.fit(logits[chosen], classes).log_prob(logits[[0, 4]])
    >>> bool(seen > unseen)
    True
    """
    samples, classes = logits.shape
    size = min(samples, max(2, samples // (2 * classes)))
    chosen = []
    for label in held:
        others = logits[:, torch.arange(classes) != label].logsumexp(1)
        chosen.append((logits[:, label] - others).topk(size).indices)
    return torch.cat(chosen), torch.tensor(held).repeat_interleave(size)

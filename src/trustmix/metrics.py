"""How honest probabilities are: their surprise at the truth, and how far confidence is from being right."""

from dataclasses import dataclass
from typing import Any

import torch

from trustmix.arrays import to_float_tensor

BINS = 15
"""Intervals of equal width that confidences are sorted into."""
SMALLEST = 1e-12
"""A smaller probability counts as this one: a codec that drops classes would else make one sample infinite."""


@dataclass(frozen=True)
class ClassificationMetrics:
    """What predictions are worth, measured by the truth."""

    accuracy: float
    """The part whose most probable class is the label."""
    nll: float
    """The mean negative log-likelihood of the labels, in nats."""
    ece: float
    """The expected calibration error."""

    @classmethod
    def of(cls, probabilities: Any, labels: Any) -> "ClassificationMetrics":
        """All three, of probabilities (N, C) and labels (N,).

        >>> worth = ClassificationMetrics.of([[0.75, 0.25]] * 4, [0, 0, 0, 1])
        >>> worth.accuracy, round(worth.nll, 4), worth.ece
        (0.75, 0.5623, 0.0)
        """
        p, truth = to_float_tensor(probabilities, "probabilities"), torch.as_tensor(labels)
        right = float((p.argmax(1) == truth.to(p.device)).double().mean())
        return cls(right, negative_log_likelihood(p, truth), calibration_error(p, truth))


def negative_log_likelihood(probabilities: Any, labels: Any) -> float:
    """The mean of -log p(label), in nats; probabilities (N, C), labels (N,).

    >>> round(negative_log_likelihood([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 4)
    0.4904
    """
    p, truth = to_float_tensor(probabilities, "probabilities").to(torch.float64), torch.as_tensor(labels)
    return -float(p.gather(1, truth.to(p.device)[:, None]).clamp_min(SMALLEST).log().mean())


def calibration_error(probabilities: Any, labels: Any) -> float:
    """The expected calibration error (Guo et al., 2017): |accuracy - confidence| of each bin, weighted by its samples.

    >>> calibration_error([[0.75, 0.25]] * 4, [0, 0, 0, 1])
    0.0
    >>> calibration_error([[1.0, 0.0]] * 4, [0, 0, 1, 1])
    0.5
    """
    confidence, guess = to_float_tensor(probabilities, "probabilities").to(torch.float64).max(1)
    right = (guess == torch.as_tensor(labels).to(guess.device)).to(torch.float64)
    place = (confidence * BINS).ceil().sub(1).clamp(0, BINS - 1).to(torch.int64)
    gaps = torch.zeros(BINS, dtype=torch.float64, device=guess.device).index_add_(0, place, right - confidence)
    return float(gaps.abs().sum() / len(right))

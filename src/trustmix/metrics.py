"""Metrics of predicted probabilities: accuracy, negative log-likelihood and expected calibration error; temperature."""

import math
from dataclasses import dataclass

import torch

from trustmix.arrays import ArrayLike, to_float_tensor

BINS = 15
"""Intervals of equal width for the confidence."""
MIN_PROBABILITY = 1e-12
"""A smaller probability counts as this one, since a codec may round a probability to 0."""

TEMPERATURES = (0.05, 20.0)
"""The lowest and the highest temperature that is fitted."""


@dataclass(frozen=True)
class ClassificationMetrics:
    """Accuracy, negative log-likelihood and calibration error of predictions."""

    accuracy: float
    """The fraction of samples whose most probable class is the label."""
    nll: float
    """The mean negative log-likelihood of the labels, in nats."""
    ece: float
    """The expected calibration error."""

    @classmethod
    def of(cls, probabilities: ArrayLike, labels: ArrayLike) -> "ClassificationMetrics":
        """Compute all three metrics.

        Parameters
        ----------
        probabilities : array-like (N, C)
            Predictions.
        labels : array-like (N,)
            Classes.

        Returns
        -------
        ClassificationMetrics
            All three metrics.

        Examples
        --------
        >>> metrics = ClassificationMetrics.of([[0.75, 0.25]] * 4, [0, 0, 0, 1])
        >>> metrics.accuracy, round(metrics.nll, 4), metrics.ece
        (0.75, 0.5623, 0.0)
        """
        p, truth = to_float_tensor(probabilities, "probabilities"), torch.as_tensor(labels)
        right = float((p.argmax(1) == truth.to(p.device)).double().mean())
        return cls(right, negative_log_likelihood(p, truth), calibration_error(p, truth))


def negative_log_likelihood(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """The mean negative log-likelihood of the labels.

    Parameters
    ----------
    probabilities : array-like (N, C)
        Predictions.
    labels : array-like (N,)
        Classes.

    Returns
    -------
    float
        The mean of -log p(label), in nats.

    Examples
    --------
    >>> round(negative_log_likelihood([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 4)
    0.4904
    """
    p, truth = to_float_tensor(probabilities, "probabilities").to(torch.float64), torch.as_tensor(labels)
    return -float(p.gather(1, truth.to(p.device)[:, None]).clamp_min(MIN_PROBABILITY).log().mean())


def calibration_error(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """The expected calibration error (Guo et al., 2017) over `BINS` intervals of confidence.

    Parameters
    ----------
    probabilities : array-like (N, C)
        Predictions.
    labels : array-like (N,)
        Classes.

    Returns
    -------
    float
        The mean over samples of |accuracy - confidence| of their bin.

    Examples
    --------
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


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """The temperature T (Guo et al., 2017) for which softmax(logits / T) has the least negative log-likelihood.

    Labels are smoothed by 1 / (n + 2), as in Platt's scaling, so that a few samples that are all right do not make the
    probabilities certain.

    Parameters
    ----------
    logits : array-like (n, C)
        Logits of samples that the model was not trained on.
    labels : array-like (n,)
        Their classes.

    Returns
    -------
    float
        Between the two `TEMPERATURES`; 1 without samples.

    Examples
    --------
    >>> round(fit_temperature([[8.0, 0.0]] * 100, [0] * 75 + [1] * 25), 2)  # odds of 3 to 1, smoothed
    7.37
    """
    z, truth = to_float_tensor(logits, "logits").to("cpu", torch.float64), torch.as_tensor(labels).cpu()
    if len(z) == 0:
        return 1.0
    smoothing = 1 / (len(z) + 2)
    expected = (1 - smoothing) * z.gather(1, truth[:, None]).mean() + smoothing * z.mean()
    low, high = (math.log(temperature) for temperature in TEMPERATURES)
    for _ in range(60):  # the slope in 1 / T rises with 1 / T, so its sign is that of the way to go
        middle = (low + high) / 2
        slope = (torch.softmax(z / math.exp(middle), 1) * z).sum(1).mean() - expected
        low, high = (middle, high) if slope > 0 else (low, middle)
    return math.exp((low + high) / 2)

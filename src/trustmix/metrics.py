"""Metrics of predicted probabilities: accuracy, recall, F1, AUROC, log-likelihood and calibration error; temperature.

A class without a label in the test set has no recall, and is left out of means over classes.
"""

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


METRICS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "auroc": "AUROC",
}
"""The metrics that runs can be compared by, and what people call them."""


@dataclass(frozen=True)
class ClassificationMetrics:
    """What predictions are worth, by several metrics."""

    accuracy: float
    """The fraction of samples whose most probable class is the label."""
    nll: float
    """The mean negative log-likelihood of the labels, in nats."""
    ece: float
    """The expected calibration error."""
    balanced_accuracy: float
    """The mean of the recall over the classes that occur."""
    macro_f1: float
    """The mean of F1 over the classes that occur."""
    auroc: float | None
    """The area under the ROC curve of each class against the rest, mean over classes; None where one class occurs."""
    recall: tuple[float | None, ...]
    """Of each class: the fraction of its samples that are predicted as it; None if it does not occur."""

    @classmethod
    def of(cls, probabilities: ArrayLike, labels: ArrayLike) -> "ClassificationMetrics":
        """Compute all metrics.

        Parameters
        ----------
        probabilities : array-like (N, C)
            Predictions.
        labels : array-like (N,)
            Classes.

        Returns
        -------
        ClassificationMetrics
            All metrics.

        Examples
        --------
        >>> metrics = ClassificationMetrics.of([[0.75, 0.25]] * 4, [0, 0, 0, 1])
        >>> metrics.accuracy, round(metrics.nll, 4), metrics.ece
        (0.75, 0.5623, 0.0)
        """
        p, truth = to_float_tensor(probabilities, "probabilities"), torch.as_tensor(labels)
        guess, truth = p.argmax(1).cpu(), truth.cpu()
        recall, f1 = recall_and_f1(guess, truth, p.shape[1])
        occurs = torch.bincount(truth, minlength=p.shape[1]) > 0
        return cls(
            accuracy=float((guess == truth).double().mean()),
            nll=negative_log_likelihood(p, truth),
            ece=calibration_error(p, truth),
            balanced_accuracy=float(recall[occurs].mean()),
            macro_f1=float(f1[occurs].mean()),
            auroc=one_against_rest(p, truth),
            recall=tuple(r if known else None for r, known in zip(recall.tolist(), occurs.tolist(), strict=True)),
        )


def recall_and_f1(predicted: torch.Tensor, labels: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Recall and F1 of each class.

    Parameters
    ----------
    predicted : torch.Tensor (N,)
        Predicted classes.
    labels : torch.Tensor (N,)
        Classes.
    classes : int
        C, the number of classes.

    Returns
    -------
    recall, f1 : torch.Tensor (C,)
        Float64; recall is NaN for a class that does not occur, F1 for one that is not predicted either.

    Examples
    --------
    >>> recall, f1 = recall_and_f1(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1]), 2)
    >>> recall.tolist(), f1.tolist()
    ([1.0, 0.6666666666666666], [0.6666666666666666, 0.8])
    """
    hits = torch.bincount(labels[predicted == labels], minlength=classes).double()
    of_class = torch.bincount(labels, minlength=classes).double()
    guessed = torch.bincount(predicted, minlength=classes).double()
    return hits / of_class, 2 * hits / (of_class + guessed)


def one_against_rest(probabilities: ArrayLike, labels: ArrayLike) -> float | None:
    """The area under the ROC curve of each class against the rest, mean over classes.

    Parameters
    ----------
    probabilities : array-like (N, C)
        Predictions.
    labels : array-like (N,)
        Classes.

    Returns
    -------
    float or None
        The mean over the classes that occur; samples of equal probability count as half. None if one class alone
        occurs.

    Examples
    --------
    >>> one_against_rest([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]], [0, 0, 1, 1])
    0.75
    """
    p, truth = to_float_tensor(probabilities, "probabilities").cpu(), torch.as_tensor(labels).cpu()
    areas = []
    for cls in torch.unique(truth).tolist():
        of_class = truth == cls
        if bool(of_class.all()):
            return None
        own, rest = p[of_class, cls].contiguous(), p[~of_class, cls].sort().values
        below = torch.searchsorted(rest, own) + torch.searchsorted(rest, own, right=True)
        areas.append(float(below.double().mean()) / (2 * len(rest)))
    return sum(areas) / len(areas) if areas else None


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

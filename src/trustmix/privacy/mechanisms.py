"""Post-processing and the Gaussian mechanism: uploads that cost no privacy beyond training, or a known amount of it.

The Gaussian mechanism adds noise N(0, (noise * sensitivity)^2) to every number. The sensitivity is the largest
Euclidean distance that a change of the protected data can move all numbers together. What is computed from a privately
trained model and public samples, without another access to private data, is as private as the training.
"""

import math
from collections.abc import Sequence

import torch


def gaussian_mechanism(predictions: torch.Tensor, noise_multiplier: float, generator: torch.Generator) -> torch.Tensor:
    """Add Gaussian noise to predictions and project each row back to probabilities.

    Two rows of probabilities are at most sqrt(2) apart, so two whole matrices at most sqrt(2 N). No smaller sensitivity
    holds for every model and training, as one record may change the predictions of every sample.

    Parameters
    ----------
    predictions : torch.Tensor (N, C)
        Probabilities q.
    noise_multiplier : float
        The standard deviation of the noise, in units of the sensitivity sqrt(2 N).
    generator : torch.Generator
        What noise is drawn from.

    Returns
    -------
    torch.Tensor (N, C)
        Probabilities.

    Examples
    --------
    >>> gaussian_mechanism(torch.eye(2), 0.0, torch.Generator()).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    noise = torch.randn(predictions.shape, generator=generator, dtype=torch.float64)
    noisy = predictions.to(torch.float64) + noise_multiplier * math.sqrt(2 * len(predictions)) * noise
    return project_to_simplex(noisy).to(predictions.dtype)


def project_to_simplex(rows: torch.Tensor) -> torch.Tensor:
    """The nearest point of the probability simplex to each row, in Euclidean distance.

    Parameters
    ----------
    rows : torch.Tensor (N, C)
        Any numbers.

    Returns
    -------
    torch.Tensor (N, C)
        Probabilities.

    Examples
    --------
    >>> project_to_simplex(torch.tensor([[2.0, 0.0], [0.5, 0.0]])).tolist()
    [[1.0, 0.0], [0.75, 0.25]]
    """
    falling = rows.sort(1, descending=True).values
    surplus = (falling.cumsum(1) - 1) / torch.arange(1, rows.shape[1] + 1, device=rows.device)
    used = (falling > surplus).sum(1, keepdim=True)
    return (rows - surplus.gather(1, used - 1)).clamp_min(0)


def select_confident_samples(logits: torch.Tensor, held: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Select public samples in place of calibration samples: the most confident predictions of each held class.

    Of each held class, ordered by log-odds, half as many samples are selected as a class has where all classes are
    equally frequent: N / 2C.

    Parameters
    ----------
    logits : torch.Tensor (N, C)
        The logits of the public samples.
    held : sequence of int
        The classes that the client holds.

    Returns
    -------
    torch.Tensor (n,)
        The indices of the selected samples.
    torch.Tensor (n,)
        The class for which each was selected.

    Examples
    --------
    >>> from trustmix.density import ClassGaussians
    >>> logits = torch.tensor([[9.0, 0, 0], [8.0, 0, 1], [0, 9.0, 0], [0, 8.0, 0], [0, 0, 9.0], [0, 0, 8.0]])
    >>> chosen, classes = select_confident_samples(logits, held=[0, 1])
    >>> classes.tolist()
    [0, 0, 1, 1]
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

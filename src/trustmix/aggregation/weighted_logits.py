"""Weighted means of logits: p(x) = softmax(sum_i w_i(x) z_i(x) / sum_i w_i(x)).

Predictions suffice: log q_i is the logit z_i up to one constant a sample, which the softmax takes out again. A rule
defines the weights; `Accumulator` averages probabilities instead.
"""

from abc import abstractmethod

import torch

from trustmix.aggregation.base import StateDict, SumAggregator
from trustmix.aggregation.upload import Upload


class WeightedLogits(SumAggregator):
    """The softmax of a weighted mean of logits; a rule defines `sample_weights`.

    >>> class Doubtful(WeightedLogits):
    ...     def sample_weights(self, upload):
    ...         return torch.full((len(upload.predictions),), 3.0 if upload.client == "0" else 1.0)
    >>> rule = Doubtful()
    >>> rule.update([[0.8, 0.2]]); rule.update([[0.5, 0.5]])
    >>> rule.compute().probabilities.round(decimals=4).tolist()  # odds 4^(3/4) = 2.83
    [[0.7388, 0.2612]]
    """

    @abstractmethod
    def sample_weights(self, upload: Upload) -> torch.Tensor:
        """w_i(x) (N,) of an upload, above 0, up to a factor that all clients share."""

    def terms(self, upload: Upload) -> dict[str, torch.Tensor]:
        """W z, w and w^2."""
        weight = upload.weight * self.sample_weights(upload).to(torch.float64)
        self.keep_weights(upload.client, weight)
        return {
            "logits": weight.unsqueeze(1) * centred_logits(upload.predictions),
            "weight": weight,
            "square": weight.square(),
        }

    def from_sums(self, sums: StateDict) -> tuple[torch.Tensor, torch.Tensor]:
        """The softmax of the mean, and chi of the weights."""
        weight = sums["weight"]
        return torch.softmax(sums["logits"] / weight.unsqueeze(1), 1), sums["square"] / weight.square()


def centred_logits(predictions: torch.Tensor) -> torch.Tensor:
    """The logits (N, C) of predictions, with mean 0 in each row; a probability of 0 counts as the smallest of its type.

    Parameters
    ----------
    predictions
        (N, C): probabilities.

    Returns
    -------
    torch.Tensor
        (N, C), float64.

    >>> centred_logits(torch.tensor([[0.8, 0.2]])).round(decimals=4).tolist()  # half of log 4
    [[0.6931, -0.6931]]
    """
    logits = predictions.clamp_min(torch.finfo(predictions.dtype).tiny).to(torch.float64).log()
    return logits - logits.mean(1, keepdim=True)

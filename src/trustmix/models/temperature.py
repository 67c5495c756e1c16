"""A model whose logits are divided by a temperature, so that its probabilities are as sure as they are right."""

import torch
from torch import nn


class WithTemperature(nn.Module):
    """A wrapper that divides a model's logits by a temperature.

    Parameters
    ----------
    model
        A network that returns logits (N, C).
    temperature
        Above 1 the probabilities become less certain, below 1 more certain; the most probable class stays.

    Examples
    --------
    >>> WithTemperature(nn.Identity(), 2.0)(torch.tensor([[4.0, 0.0]]))
    tensor([[2., 0.]])
    """

    def __init__(self, model: nn.Module, temperature: float) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs (N, ...) to logits (N, C)."""
        logits: torch.Tensor = self.model(inputs)
        return logits / self.temperature

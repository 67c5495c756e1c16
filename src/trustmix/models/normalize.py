"""Normalization of uint8 images as the first layer of a model."""

from collections.abc import Sequence

import torch
from torch import nn


class Normalize(nn.Module):
    """Convert uint8 images to floats with mean 0 and standard deviation 1 per channel.

    The layer belongs to the model. Data sets stay compact, and a saved model takes the same inputs as the trained one.

    Parameters
    ----------
    mean
        Mean of each channel after division by 255.
    std
        Standard deviation of each channel after division by 255.
    dims
        Number of dimensions of one input; the first is the channel.

    Examples
    --------
    >>> images = torch.full((2, 1, 8, 8), 255, dtype=torch.uint8)
    >>> float(Normalize(mean=(0.5,), std=(0.25,), dims=3)(images).mean())
    2.0
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], dims: int) -> None:
        super().__init__()
        broadcast = (-1, *[1] * (dims - 1))
        self.register_buffer("mean", torch.tensor(mean).reshape(broadcast))
        self.register_buffer("std", torch.tensor(std).reshape(broadcast))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map uint8 images (batch, ...) to float32 images of the same shape."""
        return (images.to(torch.float32) / 255 - self.mean) / self.std

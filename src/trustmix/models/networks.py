"""Networks by name: functions of the input's shape and the number of classes that return a torch module."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import TypeAlias

import torch
from torch import nn

from trustmix.errors import TrustmixError
from trustmix.registry import Registry

Network: TypeAlias = Callable[..., nn.Module]

MODELS: Registry[Network] = Registry("model")


@MODELS.register("mlp")
def mlp(shape: tuple[int, ...], classes: int, *, hidden: Sequence[int] = (64,)) -> nn.Module:
    """A multilayer perceptron with ReLU between the layers.

    >>> mlp((1, 8, 8), 10)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    widths = [prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


@MODELS.register("cnn")
def cnn(shape: tuple[int, ...], classes: int, *, width: int = 16, layers: int = 2) -> nn.Module:
    """3 x 3 convolutions, each twice as wide as the one before and pooled, and a linear head; for images.

    >>> cnn((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    smallest = 2**layers
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise TrustmixError(
            f'The model "cnn" with {layers} layers takes images (channels, height, width) of {smallest} x {smallest} '
            f"or more, not {shape}."
        )
    widths = [shape[0], *(width * 2**layer for layer in range(layers))]
    parts: list[nn.Module] = []
    for before, after in pairwise(widths):
        # pooling first: the same numbers, as both keep the order, for a quarter of the ReLU's work
        parts += [nn.Conv2d(before, after, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
    size = widths[-1] * (shape[1] // smallest) * (shape[2] // smallest)
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(size, classes))


class Scale(nn.Module):
    """uint8 images to floats of mean 0 and standard deviation 1 per channel, as the first layer of the model.

    It belongs to the model, so that data stay compact and a saved model takes the same inputs as the trained one.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], dims: int) -> None:
        super().__init__()
        broadcast = (-1, *[1] * (dims - 1))
        self.register_buffer("mean", torch.tensor(mean).reshape(broadcast))
        self.register_buffer("std", torch.tensor(std).reshape(broadcast))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(N, ...) uint8 to (N, ...) float32."""
        return (images.to(torch.float32) / 255 - self.mean) / self.std

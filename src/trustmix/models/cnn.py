"""A small convolutional network for images."""

from itertools import pairwise

from torch import nn

from trustmix.errors import TrustmixError
from trustmix.models.registry import MODELS


@MODELS.register("cnn")
def cnn(shape: tuple[int, ...], classes: int, *, width: int = 16, layers: int = 2, norm: bool = False) -> nn.Module:
    """Build a network of 3 x 3 convolutions, each followed by 2 x 2 max pooling, with a linear head.

    Parameters
    ----------
    shape
        Shape of one image: channels, height, width.
    classes
        Number of classes.
    width
        Channels of the first convolution. Each further convolution has twice as many as the one before.
    layers
        Number of convolutions.
    norm
        Whether each convolution is followed by batch norm.

    Returns
    -------
    nn.Module
        A network that maps floats (batch, channels, height, width) to logits (batch, classes).

    Raises
    ------
    TrustmixError
        If the inputs are not images, or are smaller than 2**layers pixels in height or width.

    Examples
    --------
    >>> import torch
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
    modules: list[nn.Module] = []
    for before, after in pairwise(widths):
        # pooling before the ReLU gives the same numbers, as both keep the order, for a quarter of the ReLU's work
        modules.append(nn.Conv2d(before, after, 3, padding=1, bias=not norm))
        modules += [nn.BatchNorm2d(after)] if norm else []
        modules += [nn.MaxPool2d(2), nn.ReLU()]
    size = widths[-1] * (shape[1] // smallest) * (shape[2] // smallest)
    return nn.Sequential(*modules, nn.Flatten(), nn.Linear(size, classes))

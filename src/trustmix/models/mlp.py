"""A multilayer perceptron for inputs of any shape."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn

from trustmix.models.registry import MODELS


@MODELS.register("mlp")
def mlp(shape: tuple[int, ...], classes: int, *, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Build a multilayer perceptron with a ReLU after each hidden layer.

    Parameters
    ----------
    shape
        Shape of one input. Inputs are flattened.
    classes
        Number of classes.
    hidden
        Width of each hidden layer; an empty sequence gives a linear model.

    Returns
    -------
    nn.Module
        A network that maps floats (batch, *shape) to logits (batch, classes).

    Examples
    --------
    >>> import torch
    >>> mlp((1, 8, 8), 10)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    widths = [prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))

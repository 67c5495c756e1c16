"""The registry of models.

An entry is a function that builds a model. `model.name` in a recipe is the name of an entry, and the other keys of
`[model]` are the keyword arguments of the function.
"""

from collections.abc import Callable
from typing import TypeAlias

from torch import nn

from trustmix.registry import Registry

ModelBuilder: TypeAlias = Callable[..., nn.Module]
"""A function `(shape, classes, **options)` that returns a network with logits of shape (batch, classes)."""

MODELS: Registry[ModelBuilder] = Registry("model")

"""From a recipe's words to a model: found by name or the user's function, initialised from its own stream, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trustmix.errors import TrustmixError
from trustmix.imports import import_object
from trustmix.models.networks import MODELS, Scale
from trustmix.seeds import derive_seed


@dataclass(frozen=True)
class ModelFactory:
    """Builds the same initial model every time it is called; can be sent to another process.

    >>> factory = ModelFactory("mlp", shape=(1, 8, 8), classes=10, seed=1)
    >>> bool((factory()[1].weight == factory()[1].weight).all())
    True
    """

    name: str | None = None
    source: str | None = None
    """The user's 'package.module:function', called like the built-in ones: (shape, classes, **options)."""
    options: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    """The shape of one input."""
    classes: int = 2
    scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Mean and standard deviation per channel where inputs are uint8 images."""
    seed: int = 0
    client: str = "0"

    def __call__(self) -> nn.Module:
        """The initial model. torch's own generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.seed, "model", self.client))
            network = self._network()
        return network if self.scale is None else nn.Sequential(Scale(*self.scale, len(self.shape)), network)

    def _network(self) -> nn.Module:
        build = import_object(self.source, "model.source") if self.source else MODELS.get(self.name or "")
        # an error inside the user's own function keeps its traceback
        misfit: tuple[type[Exception], ...] = (TypeError, RuntimeError) if self.source else (Exception,)
        try:
            network = build(self.shape, self.classes, **self.options)
        except TrustmixError:
            raise
        except misfit as error:
            raise TrustmixError(
                f"The model {self.label} could not be built for inputs {self.shape}: {error}."
            ) from error
        if not isinstance(network, nn.Module):
            raise TrustmixError(f"{self.label} returned {type(network).__name__}; it must return a torch.nn.Module.")
        return network

    @property
    def architecture(self) -> str:
        """What all models of this kind have in common: everything but whose they are."""
        return f"{self.label} {dict(self.options)} {self.shape} {self.classes} {self.scale}"

    @property
    def label(self) -> str:
        """How messages name the model."""
        return f'"{self.source or self.name}"'


def validate_model(factory: ModelFactory, inputs: torch.Tensor) -> nn.Module:
    """The model, after one forward pass on a few real inputs has shown that its logits fit the data."""
    model = factory().eval()
    try:
        with torch.no_grad():
            logits = model(inputs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise TrustmixError(f"The model {factory.label} fails on inputs {tuple(inputs.shape)}: {error}") from error
    wanted = (len(inputs), factory.classes)
    if not isinstance(logits, torch.Tensor) or tuple(logits.shape) != wanted:
        got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise TrustmixError(f"The model {factory.label} returns {got}; it must return logits of shape {wanted}.")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise TrustmixError(f"The model {factory.label} has no parameter to train.")
    return model

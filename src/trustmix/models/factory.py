"""Construction of a client's model: the function is found by name or import path, and the weights depend on the seed.

`validate_model` tries a model on a few inputs before the first epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trustmix.errors import TrustmixError
from trustmix.imports import import_object
from trustmix.models.classifier import ClassifierModel, as_model, try_classifier
from trustmix.models.normalize import Normalize
from trustmix.models.registry import MODELS
from trustmix.seeds import derive_seed


@dataclass(frozen=True)
class ModelFactory:
    """A function without arguments that builds the same initial model at every call, also in another process.

    Parameters
    ----------
    name
        Name of a registered model, or None if `source` is given.
    source
        Import path "package.module:function" of a user's function. It is called with the arguments
        `(shape, classes, **options)`, as the registered functions are.
    options
        Keyword arguments of the model's function.
    shape
        Shape of one input.
    classes
        Number of classes.
    scale
        Mean and standard deviation per channel for uint8 images, or None for inputs of another type.
    seed
        Seed of the run.
    client
        Id of the client. Clients with different ids get different initial weights.

    Examples
    --------
    >>> factory = ModelFactory("mlp", shape=(1, 8, 8), classes=10, seed=1)
    >>> bool((factory()[1].weight == factory()[1].weight).all())
    True
    """

    name: str | None = None
    source: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    classes: int = 2
    scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    seed: int = 0
    client: str = "0"

    def __call__(self) -> nn.Module:
        """Build the initial model and leave torch's global generator as it was.

        Returns
        -------
        nn.Module
            The model. For uint8 images the first layer of a network is `Normalize`.

        Raises
        ------
        TrustmixError
            If the function cannot be found or called, or does not return a torch module.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.seed, "model", self.client))
            network = self._build_network()
        if self.scale is None or isinstance(network, ClassifierModel):
            return network
        return nn.Sequential(Normalize(*self.scale, len(self.shape)), network)

    def _build_network(self) -> nn.Module:
        build = import_object(self.source, "model.source") if self.source else MODELS.get(self.name or "")
        # other errors inside a user's function keep their traceback
        expected: tuple[type[Exception], ...] = (TypeError, RuntimeError) if self.source else (Exception,)
        try:
            network = build(self.shape, self.classes, **self.options)
        except TrustmixError:
            raise
        except expected as error:
            raise TrustmixError(
                f"The model {self.label} could not be built for inputs {self.shape}: {error}."
            ) from error
        if not isinstance(network, nn.Module) and not hasattr(network, "predict_proba"):
            raise TrustmixError(
                f"{self.label} returned {type(network).__name__}; it must return a torch.nn.Module or a classifier."
            )
        return as_model(network, self.classes)

    @property
    def architecture(self) -> str:
        """A description that is equal for models that differ only in their initial weights."""
        return f"{self.label} {dict(self.options)} {self.shape} {self.classes} {self.scale}"

    @property
    def label(self) -> str:
        """The model's name or import path in quotes, for messages."""
        return f'"{self.source or self.name}"'


def validate_model(factory: ModelFactory, inputs: torch.Tensor) -> nn.Module:
    """Build a model and check its logits with one forward pass.

    Parameters
    ----------
    factory
        Builds the model.
    inputs
        A few inputs of the data set (n, ...).

    Returns
    -------
    nn.Module
        The model, in evaluation mode.

    Raises
    ------
    TrustmixError
        If the model takes inputs of another type, fails on the inputs, returns anything but logits (n, classes), or has
        no parameter to train.

    Examples
    --------
    >>> model = validate_model(ModelFactory("mlp", shape=(4,), classes=3), torch.zeros(2, 4))
    >>> model.training
    False
    """
    model = factory().eval()
    if isinstance(model, ClassifierModel):
        try_classifier(model, inputs, factory.label)
        return model
    try:
        with torch.no_grad():
            logits = model(inputs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if inputs.dtype != torch.float32 and _takes_floats(model, inputs):
            raise TrustmixError(
                f"The model {factory.label} takes float32 inputs, but those of the data are {inputs.dtype}: convert "
                "numbers to float32, and images of whole numbers from 0 to 255 to uint8."
            ) from error
        raise TrustmixError(f"The model {factory.label} fails on inputs {tuple(inputs.shape)}: {error}") from error
    expected = (len(inputs), factory.classes)
    if not isinstance(logits, torch.Tensor) or tuple(logits.shape) != expected:
        returned = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise TrustmixError(f"The model {factory.label} returns {returned}; it must return logits of shape {expected}.")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise TrustmixError(f"The model {factory.label} has no parameter to train.")
    return model


def _takes_floats(model: nn.Module, inputs: torch.Tensor) -> bool:
    """Return whether the model succeeds on the same inputs as float32."""
    try:
        with torch.no_grad():
            model(inputs.to(torch.float32))
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False
    return True

"""What a client learns with: an abstract `Learner` that fits private labels and distils soft labels.

A stage of learning is a `Job` that an engine runs when it likes. A learner has a model, a module from inputs to logits,
whatever it is made of; everything that only predicts uses the model.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from trustmix.data import Labelled
from trustmix.learners.training import DeviceConfig, Job, Training, predict
from trustmix.privacy import DPSGDParams


@dataclass(frozen=True)
class Lesson:
    """Public samples (n, ...) and what the teacher holds of each (n, C)."""

    inputs: torch.Tensor
    targets: torch.Tensor


@dataclass
class Learner(ABC):
    """A model and the way it learns.

    Parameters
    ----------
    model
        Maps inputs (n, ...) to logits (n, C).
    training
        How it learns.
    hardware
        What computes.
    """

    model: nn.Module
    training: Training
    hardware: DeviceConfig

    @abstractmethod
    def fit(
        self,
        own: Labelled,
        *,
        epochs: int,
        generator: torch.Generator,
        noise: DPSGDParams | None = None,
        secret: bool = False,
    ) -> Job:
        """The job of learning the labels of a client's own samples.

        Parameters
        ----------
        own
            The samples.
        epochs
            Passes over the samples, for learners that make passes.
        generator
            What everything random of the job is drawn from.
        noise
            What makes the training differentially private, if it is to be.
        secret
            Whether noise is drawn from the generator itself, which no seed can repeat.
        """

    @abstractmethod
    def distil(self, lesson: Lesson, own: Labelled, *, epochs: int, generator: torch.Generator) -> Job:
        """The job of learning what a teacher holds of public samples.

        Parameters
        ----------
        lesson
            The public samples and the teacher.
        own
            The client's own samples, for learners that learn both at once.
        epochs
            Passes over the samples, for learners that make passes.
        generator
            What everything random of the job is drawn from.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, torch.Tensor]:
        """Everything that the learner has learned, as tensors by name; those of the model begin with "model."."""

    @abstractmethod
    def load_state_dict(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from what `state_dict` returned; tensors of other names are not read."""

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        """The logits (n, C) of inputs."""
        return predict(self.model, inputs, self.hardware)


def model_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state of the model alone, out of a learner's state.

    >>> model_tensors({"model.weight": torch.ones(1), "optimizer.0.step": torch.ones(1)})
    {'weight': tensor([1.])}
    """
    return {name[6:]: tensor for name, tensor in tensors.items() if name.startswith("model.")}

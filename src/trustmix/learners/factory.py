"""Which learner a model needs."""

from collections.abc import Hashable

from torch import nn

from trustmix.learners.base import Learner
from trustmix.learners.refitting_learner import RefittingLearner
from trustmix.learners.torch_learner import TorchLearner
from trustmix.learners.training import DeviceConfig, Training
from trustmix.models import ClassifierModel


def make_learner(
    model: nn.Module, training: Training, hardware: DeviceConfig, architecture: Hashable = None
) -> Learner:
    """The learner of a model.

    Parameters
    ----------
    model
        The initial model, which the learner changes.
    training
        How it learns.
    hardware
        What computes; the model is moved there.
    architecture
        Equal for models that differ in their parameters only.

    Returns
    -------
    Learner
        A `TorchLearner`, or a `RefittingLearner` of a classifier.

    >>> make_learner(nn.Linear(4, 2), Training(), DeviceConfig()).model.out_features
    2
    """
    if isinstance(model, ClassifierModel):
        return RefittingLearner(model, training, hardware)
    return TorchLearner(hardware.to_device(model), training, hardware, architecture)

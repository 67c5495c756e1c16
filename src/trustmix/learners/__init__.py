"""What a client learns with: learners, their training jobs and optimisers, and scores of inputs by their densities."""

from trustmix.learners.base import Learner, Lesson
from trustmix.learners.factory import make_learner
from trustmix.learners.optimizers import OPTIMIZERS
from trustmix.learners.refitting_learner import RefittingLearner
from trustmix.learners.scoring import Refresh
from trustmix.learners.torch_learner import TorchLearner
from trustmix.learners.training import DeviceConfig, Job, Training, TrainingJob, train, validate_loss

__all__ = [
    "OPTIMIZERS",
    "DeviceConfig",
    "Job",
    "Learner",
    "Lesson",
    "RefittingLearner",
    "Refresh",
    "TorchLearner",
    "Training",
    "TrainingJob",
    "make_learner",
    "train",
    "validate_loss",
]

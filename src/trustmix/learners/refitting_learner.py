"""The learner of classifiers that are fitted as a whole, such as trees: each stage fits the classifier anew.

Distilling is a fit to the client's own samples and to the public ones, one row for each class that the teacher finds
probable, weighed by its probability. Private training is a fit to the client's own samples alone. So uploads contain
what the client knows itself: a tree that had learned the public samples would only repeat the teacher.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from trustmix.data import Labelled
from trustmix.errors import TrustmixError
from trustmix.learners.base import Learner, Lesson, model_tensors
from trustmix.learners.training import Job
from trustmix.models import ClassifierModel
from trustmix.models.classifier import soft_rows
from trustmix.privacy import DPSGDParams

MAX_SEED = 2**31 - 1


@dataclass
class FitJob(Job):
    """One fit of a classifier to weighted samples; it is never stacked.

    Parameters
    ----------
    model
        The classifier.
    samples
        What it is fitted to.
    weights
        (n,): how much each sample counts.
    seed
        Of everything random in the fit.
    """

    model: ClassifierModel
    samples: Labelled
    weights: torch.Tensor
    seed: int
    epochs: int = 1
    seconds: float = 0.0

    def run(self) -> None:
        """Fit the classifier."""
        begin = time.perf_counter()
        self.model.fit(self.samples.inputs, self.samples.labels, self.weights, self.seed)
        self.seconds = time.perf_counter() - begin


@dataclass
class RefittingLearner(Learner):
    """A classifier that is fitted anew in each stage; it keeps nothing over stages but its last fit."""

    model: ClassifierModel

    def fit(
        self,
        own: Labelled,
        *,
        epochs: int,  # noqa: ARG002 - a fit has no epochs
        generator: torch.Generator,
        noise: DPSGDParams | None = None,
        secret: bool = False,  # noqa: ARG002
    ) -> FitJob:
        """Fit the client's own samples."""
        if noise is not None:
            raise TrustmixError("a classifier that is fitted as a whole cannot be trained with DP-SGD")
        return FitJob(self.model, own, torch.ones(len(own)), _draw_seed(generator))

    def distil(self, lesson: Lesson, own: Labelled, *, epochs: int, generator: torch.Generator) -> FitJob:  # noqa: ARG002
        """Fit the client's own samples and the public ones, these by the probabilities of the teacher."""
        inputs, labels, weights = soft_rows(lesson.inputs, lesson.targets)
        both = Labelled(torch.cat([own.inputs, inputs]), torch.cat([own.labels, labels]))
        each = torch.cat([torch.ones(len(own)), weights.cpu().float()])
        return FitJob(self.model, both, each, _draw_seed(generator))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The classifier."""
        return {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore the classifier."""
        self.model.load_state_dict(model_tensors(tensors))


def _draw_seed(generator: torch.Generator) -> int:
    return int(torch.randint(MAX_SEED, (1,), generator=generator))

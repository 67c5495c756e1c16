"""The learner of torch modules: epochs of cross-entropy by an optimiser whose state is kept over stages and rounds."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.nn.functional import one_hot

from trustmix.data import Labelled
from trustmix.errors import TrustmixError
from trustmix.learners.base import Learner, Lesson, model_tensors
from trustmix.learners.training import TrainingJob, mixed_batches
from trustmix.privacy import DPSGDParams


@dataclass
class TorchLearner(Learner):
    """A torch module and its optimiser.

    Parameters
    ----------
    model, training, hardware
        As in `Learner`.
    architecture
        Equal for models that differ in their parameters only; the jobs of such learners can be trained as one.
    """

    architecture: Hashable = None

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of the model's parameters."""
        return self.training.make_optimizer(self.model.parameters())

    def fit(
        self,
        own: Labelled,
        *,
        epochs: int,
        generator: torch.Generator,
        noise: DPSGDParams | None = None,
        secret: bool = False,
    ) -> TrainingJob:
        """Epochs over the client's own samples, augmented as the training settings say."""
        self._begin_stage()
        return TrainingJob.of(
            self.model,
            self.optimizer,
            own.inputs,
            own.labels,
            epochs=epochs,
            generator=generator,
            architecture=self.architecture,
            training=self.training,
            hardware=self.hardware,
            augment=self.training.augment,
            noise=noise,
            secret=secret,
        )

    def distil(self, lesson: Lesson, own: Labelled, *, epochs: int, generator: torch.Generator) -> TrainingJob:
        """Epochs over the public samples; with stages = "mixed" over the client's own too, in the same batches."""
        self._begin_stage()
        if self.training.stages == "mixed":
            return self._mixed(lesson, own, epochs, generator)
        return TrainingJob.of(
            self.model,
            self.optimizer,
            lesson.inputs,
            lesson.targets,
            epochs=epochs,
            generator=generator,
            architecture=self.architecture,
            training=self.training,
            hardware=self.hardware,
        )

    def _mixed(self, lesson: Lesson, own: Labelled, epochs: int, generator: torch.Generator) -> TrainingJob:
        labels = one_hot(own.labels, lesson.targets.shape[1]).to(lesson.targets)
        seed = int(torch.randint(2**62, (1,), generator=generator))
        sizes = len(own), len(lesson.inputs), self.training.batch
        return TrainingJob(
            self.model,
            self.optimizer,
            torch.cat([own.inputs, lesson.inputs]),
            torch.cat([labels, lesson.targets]),
            [batch for _ in range(epochs) for batch in mixed_batches(*sizes, generator)],
            seed,
            self.architecture,
            self.training,
            self.hardware,
            augment=self.training.augment,
            augmented=len(own),
            epochs=epochs,
        )

    def _begin_stage(self) -> None:
        if not self.training.keep_optimizer:
            self.optimizer = self.training.make_optimizer(self.model.parameters())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Model, buffers and optimiser."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for index, entries in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in entries.items() if value is not None}
        return tensors

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore model, buffers and optimiser."""
        self.model.load_state_dict(model_tensors(tensors))
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        slots: dict[int, dict[str, Any]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, index, entry = name.split(".", 2)
                parameter = parameters[int(index)]
                # fused optimisers read their state in the parameter's memory order, which may be channels_last
                own = torch.empty_like(parameter) if value.shape == parameter.shape else torch.empty_like(value)
                slots.setdefault(int(index), {})[entry] = own.detach().copy_(value)
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": slots})


def as_torch(learner: Learner, method: str) -> TorchLearner:
    """The learner, if it is one of a torch module; a method that exchanges weights needs one.

    >>> from torch import nn
    >>> from trustmix.learners import DeviceConfig, Training
    >>> as_torch(TorchLearner(nn.Linear(4, 2), Training(), DeviceConfig()), "fedavg").model.in_features
    4
    """
    if not isinstance(learner, TorchLearner):
        raise TrustmixError(f"{method} exchanges the weights of torch modules, and this client has another model.")
    return learner

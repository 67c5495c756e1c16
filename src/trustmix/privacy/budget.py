"""The privacy budget of a client: (epsilon, delta) differential privacy over all planned rounds.

There are two mechanisms. `training` protects a record: gradients are noisy (`dp_sgd`), and all that the client sends,
scores included, is computed from the model and public samples. A density ratio of records takes a part of the budget
(`ratio`). `uploads` protects the whole data set of the client, whatever its model and training: the predictions
themselves get the noise, and no scores are sent.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import torch

from trustmix.privacy.accountant import Release, compute_epsilon, compute_noise_multiplier
from trustmix.privacy.dp_sgd import DPSGDParams
from trustmix.privacy.mechanisms import gaussian_mechanism
from trustmix.seeds import secure_generator, torch_generator

Mechanism: TypeAlias = Literal["training", "uploads"]


class TrainingSchedule(Protocol):
    """What decides how many steps a client trains; `trustmix.Training` is one."""

    @property
    def batch(self) -> int:
        """The expected number of records in a batch."""

    @property
    def first_epochs(self) -> int:
        """The epochs of the first private stage."""

    @property
    def epochs(self) -> int:
        """The epochs of every later private stage."""


@dataclass(frozen=True)
class PrivacyBudget:
    """A budget of (epsilon, delta) for a number of rounds.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> schedule = SimpleNamespace(batch=32, first_epochs=5, epochs=1)
    >>> budget = PrivacyBudget(epsilon=8.0, rounds=20)
    >>> 7.9 < budget.epsilon_spent(20, samples=480, schedule=schedule) <= 8
    True
    """

    epsilon: float
    rounds: int
    delta: float = 1e-5
    mechanism: Mechanism = "training"
    clip: float = 1.0
    """The largest norm of the gradient of a record."""
    ratio: float = 0.0
    """The epsilon of a density ratio of the records, released once, as a part of the whole; 0 releases none."""
    simulated: bool = False
    """Draw noise from the seed, so that a simulation can be repeated. A receiver that knows the seed can subtract such
    noise again: a client of a real federation must leave this false, and its noise comes from the operating system."""

    def generator(self, seed: int, *name: object) -> torch.Generator:
        """The generator of the noise and the batches of one stage.

        Parameters
        ----------
        seed : int
            The seed of the run; used only where the noise is simulated.
        *name : object
            The name of the random stream within the run.

        Returns
        -------
        torch.Generator
            A repeatable generator where the noise is simulated, otherwise one seeded by the operating system.
        """
        if self.simulated:
            return torch_generator(seed, "privacy", *name)
        return secure_generator()

    def dp_sgd_params(self, samples: int, schedule: TrainingSchedule) -> DPSGDParams | None:
        """The parameters of private training.

        Parameters
        ----------
        samples : int
            The number of records of the client.
        schedule : TrainingSchedule
            How long the client trains.

        Returns
        -------
        DPSGDParams or None
            None where the uploads get the noise.
        """
        if self.mechanism == "uploads":
            return None
        rate, steps = min(1.0, schedule.batch / samples), _count_steps(self.rounds, samples, schedule)
        further = self.ratio_noise if self.ratio else None
        noise = compute_noise_multiplier(self.epsilon, steps, rate, self.delta, further)
        return DPSGDParams(self.clip, noise, rate)

    @property
    def ratio_noise(self) -> float:
        """The noise multiplier of the density ratio, where it is released."""
        return compute_noise_multiplier(self.ratio * self.epsilon, 1, 1.0, self.delta)

    @property
    def ratio_release(self) -> Release | None:
        """What the density ratio releases, once; None if there is none."""
        return Release(self.ratio_noise, 1.0, 1) if self.ratio > 0 and self.mechanism == "training" else None

    def planned_releases(self, samples: int, schedule: TrainingSchedule) -> list[Release]:
        """What all planned rounds release together.

        Parameters
        ----------
        samples : int
            The number of records of the client.
        schedule : TrainingSchedule
            How long the client trains.

        Returns
        -------
        list of Release
        """
        ratio = self.ratio_release
        return [self.release(self.rounds, samples, schedule), *([ratio] if ratio else [])]

    def release(self, stages: int, samples: int, schedule: TrainingSchedule, *, before: int = 0) -> Release:
        """What the private stages from `before` to `stages` release, without the density ratio.

        Parameters
        ----------
        stages : int
            The number of private stages that the client has completed.
        samples : int
            The number of records of the client.
        schedule : TrainingSchedule
            How long the client trains.
        before : int
            The number of first stages that are left out.

        Returns
        -------
        Release
        """
        params = self.dp_sgd_params(samples, schedule)
        if params is None:
            return Release(self._upload_noise, 1.0, stages - before)
        steps = _count_steps(stages, samples, schedule) - _count_steps(before, samples, schedule)
        return Release(params.noise_multiplier, params.sample_rate, steps)

    def epsilon_spent(self, stages: int, samples: int, schedule: TrainingSchedule, *, before: int = 0) -> float:
        """Epsilon of the private stages from `before` to `stages`.

        Parameters
        ----------
        stages : int
            The number of private stages that the client has completed.
        samples : int
            The number of records of the client.
        schedule : TrainingSchedule
            How long the client trains.
        before : int
            The number of first stages that are left out.

        Returns
        -------
        float
            Epsilon at the delta of the budget.
        """
        training = self.release(stages, samples, schedule, before=before)
        ratio = self.ratio_release if before == 0 and stages > 0 else None
        further = None if ratio is None else ratio.noise_multiplier
        return compute_epsilon(training.noise_multiplier, training.releases, training.sample_rate, self.delta, further)

    def add_noise(self, logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Add the noise of the mechanism `uploads` to predictions.

        Parameters
        ----------
        logits : torch.Tensor (N, C)
            The logits of the public samples.
        generator : torch.Generator
            The generator of the noise.

        Returns
        -------
        torch.Tensor (N, C)
            The logits of the noisy predictions, float64.
        """
        noisy = gaussian_mechanism(torch.softmax(logits.to(torch.float64), 1), self._upload_noise, generator)
        return noisy.clamp_min(1e-30).log()

    @property
    def _upload_noise(self) -> float:
        return compute_noise_multiplier(self.epsilon, self.rounds, 1.0, self.delta)


def _count_steps(stages: int, samples: int, schedule: TrainingSchedule) -> int:
    """Training steps of a client's first stages."""
    epochs = schedule.first_epochs + (stages - 1) * schedule.epochs if stages else 0
    return epochs * math.ceil(samples / schedule.batch)

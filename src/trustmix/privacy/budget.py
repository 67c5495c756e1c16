"""What a client promises of its uploads: (epsilon, delta) differential privacy over all planned rounds.

Two mechanisms. `training` protects a record: gradients are noisy (`private`), and all that is told, scores included, is
made of the model and public samples. `uploads` protects all that a client has at once, whatever its model and training:
the predictions themselves get the noise, and no scores are sent.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from trustmix.federation.training import Training
from trustmix.privacy.accountant import compute_epsilon, compute_noise_multiplier
from trustmix.privacy.dp_sgd import DPSGDParams
from trustmix.privacy.mechanisms import gaussian_mechanism
from trustmix.seeds import secure_generator, torch_generator

Mechanism: TypeAlias = Literal["training", "uploads"]


@dataclass(frozen=True)
class PrivacyBudget:
    """A promise of (epsilon, delta) over `rounds` rounds.

    >>> promise = PrivacyBudget(epsilon=8.0, rounds=20)
    >>> 7.9 < promise.spent(20, samples=480, training=Training()) <= 8
    True
    """

    epsilon: float
    rounds: int
    delta: float = 1e-5
    mechanism: Mechanism = "training"
    clip: float = 1.0
    """The longest gradient of a record."""
    simulated: bool = False
    """Draw noise from the seed, so that a simulation can be repeated. Who knows the seed can take such noise away
    again: a client that answers somebody else must leave this false, and its noise comes from the operating system."""

    def draws(self, seed: int, *name: object) -> torch.Generator:
        """What the noise and the batches of a stage are drawn from."""
        if self.simulated:
            return torch_generator(seed, "privacy", *name)
        return secure_generator()

    def gradients(self, samples: int, training: Training) -> DPSGDParams | None:
        """The noise of training on so many samples, None where uploads get it."""
        if self.mechanism == "uploads":
            return None
        rate, steps = min(1.0, training.batch / samples), _steps(self.rounds, samples, training)
        return DPSGDParams(self.clip, compute_noise_multiplier(self.epsilon, steps, rate, self.delta), rate)

    def spent(self, stages: int, samples: int, training: Training, *, before: int = 0) -> float:
        """Epsilon of so many private stages, without those `before`, for a client that trains on so many samples."""
        noise = self.gradients(samples, training)
        if noise is None:
            return compute_epsilon(self._upload_noise, stages - before, 1.0, self.delta)
        steps = _steps(stages, samples, training) - _steps(before, samples, training)
        return compute_epsilon(noise.multiplier, steps, noise.rate, self.delta)

    def spoilt(self, logits: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
        """Logits (N, C) of predictions that got noise, for `uploads`."""
        told = gaussian_mechanism(torch.softmax(logits.to(torch.float64), 1), self._upload_noise, draws)
        return told.clamp_min(1e-30).log()

    @property
    def _upload_noise(self) -> float:
        return compute_noise_multiplier(self.epsilon, self.rounds, 1.0, self.delta)


def _steps(stages: int, samples: int, training: Training) -> int:
    """Training steps of a client's first stages."""
    epochs = training.first_epochs + (stages - 1) * training.epochs if stages else 0
    return epochs * math.ceil(samples / training.batch)

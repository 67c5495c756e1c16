"""Discriminators: models of the client's own architecture that tell its samples from the public ones.

The log-odds of a classifier that was trained on equally many private and public samples are log p_i(x) / p_pub(x). A
network of the client's own kind sees more in the inputs than a linear classifier on the features of a model that was
trained for something else, and costs more. A public sample is scored by a model that has not seen it.
"""

from collections.abc import Callable, Generator, Hashable, Iterable
from dataclasses import dataclass, fields

import torch
from torch import nn

from trustmix.data import Labelled
from trustmix.density import center_log_ratio
from trustmix.learners.optimizers import OPTIMIZERS
from trustmix.learners.training import DeviceConfig, Training, TrainingJob, predict
from trustmix.seeds import torch_generator

EPOCHS = 5
"""Passes over the larger side, private or public."""
FOLDS = 2
"""Parts of the public set, each scored by a model that was trained with the others."""
WEIGHT_DECAY = 0.05
DECOUPLED = {"adam": "adamw"}
"""Adam's own weight decay is rescaled by its gradients; AdamW's is not."""


@dataclass(frozen=True)
class DiscriminatorTraining(Training):
    """How discriminators learn: as the client does, with weight decay."""

    def make_optimizer(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        """The optimiser of those parameters that are trainable."""
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        build = OPTIMIZERS.get(DECOUPLED.get(self.optimizer, self.optimizer))
        return build(trainable, lr=self.lr, fused=True, weight_decay=WEIGHT_DECAY)  # type: ignore[call-arg]


def balanced_batches(own: int, public: int, size: int, epochs: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Indices of batches, half of each from the first `own` samples and half from the `public` samples after them.

    Parameters
    ----------
    own, public
        Numbers of samples; the smaller side is repeated until the larger is through.
    size
        Samples in a batch.
    epochs
        Passes over the larger side.
    generator
        What the order is drawn from.

    Returns
    -------
    list of torch.Tensor
        The indices of each batch.

    Examples
    --------
    >>> [sorted(batch.tolist()) for batch in balanced_batches(1, 4, 4, 1, torch.Generator())][0][:2]
    [0, 0]
    """
    half, larger = max(1, size // 2), epochs * max(own, public)
    sides = []
    for count, offset in ((own, 0), (public, own)):
        passes = [torch.randperm(count, generator=generator) for _ in range(-(-larger // count))]
        sides.append(torch.split(torch.cat(passes)[:larger] + offset, half))
    return [torch.cat(parts) for parts in zip(*sides, strict=True)]


def count_steps(own: int, public: int, size: int) -> int:
    """The training steps of all discriminators of a client.

    >>> count_steps(own=480, public=2000, size=32)
    626
    """
    return FOLDS * -(-EPOCHS * max(own, public - public // FOLDS) // max(1, size // 2))


def train_discriminators(
    build: Callable[[], nn.Module],
    private: Labelled,
    calibration: Labelled,
    public: torch.Tensor,
    *,
    client: str,
    seed: int,
    architecture: Hashable,
    training: Training,
    hardware: DeviceConfig,
) -> Generator[TrainingJob, None, tuple[torch.Tensor, torch.Tensor]]:
    """Score public samples by discriminators, as a generator that yields their training jobs.

    Parameters
    ----------
    build
        Builds the client's initial model. Of its logits, the first two stand for public and private.
    private
        The client's samples, which are compared with the public ones.
    calibration
        Samples of the client that no discriminator is trained on.
    public
        (N, ...): the public inputs.
    client, seed
        Name the random streams.
    architecture, training, hardware
        Of the client.

    Yields
    ------
    TrainingJob
        The training of one discriminator.

    Returns
    -------
    tuple of torch.Tensor
        The log-ratios of the public (N,) and the calibration samples (n,).
    """
    settings = {field.name: getattr(training, field.name) for field in fields(Training)}
    learns = DiscriminatorTraining(**settings)
    fold_of = torch.randperm(len(public), generator=torch_generator(seed, "discriminator folds", client)) % FOLDS
    scores, known = torch.zeros(len(public), dtype=torch.float64), torch.zeros(len(calibration), dtype=torch.float64)
    for fold in range(FOLDS):
        left = (fold_of == fold).nonzero().squeeze(1).to(public.device)
        seen = public[(fold_of != fold).nonzero().squeeze(1).to(public.device)]
        generator = torch_generator(seed, "discriminator", client, fold)
        model = hardware.to_device(build())
        job = TrainingJob(
            model,
            learns.make_optimizer(model.parameters()),
            torch.cat([private.inputs, seen]),
            torch.cat([torch.ones(len(private)), torch.zeros(len(seen))]).to(public.device, torch.int64),
            balanced_batches(len(private), len(seen), training.batch, EPOCHS, generator),
            int(torch.randint(2**62, (1,), generator=generator)),
            architecture,
            learns,
            hardware,
            training.augment,
        )
        yield job
        odds = log_odds(predict(model, torch.cat([public[left], calibration.inputs]), hardware))
        of_public, of_own = center_log_ratio(odds[: len(left)], odds[len(left) :])
        scores[left.cpu()] = of_public
        known += of_own / FOLDS
    return scores, known


def log_odds(logits: torch.Tensor) -> torch.Tensor:
    """Log P(private) / P(public) (n,), float64, of a discriminator's logits (n, C).

    >>> log_odds(torch.tensor([[1.0, 3.0, -9.0]])).tolist()
    [2.0]
    """
    return (logits[:, 1] - logits[:, 0]).cpu().to(torch.float64)

"""One client's learning: jobs of cross-entropy on hard or soft targets, prediction, accuracy.

A `TrainingJob` holds all of a training stage, the order of its batches included, so that an engine may run it
as it likes: alone (`train`), or together with the jobs of other clients.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from trustmix.data import Augment, augment_batch
from trustmix.errors import TrustmixError
from trustmix.learners.optimizers import OPTIMIZERS
from trustmix.metrics import ClassificationMetrics
from trustmix.models import ClassifierModel
from trustmix.privacy import DPSGDParams, dp_gradients, poisson_batches

MAX_EPOCHS, MAX_FIRST_EPOCHS = 10, 20
"""Epochs of distillation that "auto" takes at most, in later rounds and from the first teacher."""
MIN_RISE, PATIENCE = 0.01, 2
""""auto" ends after so many epochs in a row that do not raise the highest agreement by so much."""


Stages: TypeAlias = Literal["two", "mixed"]


@dataclass(frozen=True)
class Training:
    """How a client learns. `first_epochs` counts for its first private stage, `epochs` for all later ones."""

    optimizer: str = "adam"
    lr: float = 1e-3
    batch: int = 32
    first_epochs: int = 5
    epochs: int = 1
    public_epochs: int | Literal["auto"] = 1
    """Epochs of distillation; "auto" goes on until the agreement with the teacher no longer rises."""
    stages: Stages = "two"
    """Distil and then train on private labels, or learn from both in the same batches, for `public_epochs`."""
    augment: Augment = "none"
    """Random crops and flips of private images, drawn anew in every epoch."""
    calibrate: bool = False
    """Fit a temperature on held-out samples after distillation, for the client's own use of its model."""
    keep_optimizer: bool = True
    """Keep the optimiser's state over stages and rounds; otherwise every stage starts with a fresh one."""

    def max_public_epochs(self, stages: int) -> int:
        """The epochs of distillation at most, for a client with so many private stages behind it.

        >>> Training(public_epochs=3).max_public_epochs(1), Training(public_epochs="auto").max_public_epochs(2)
        (3, 10)
        """
        if self.public_epochs != "auto":
            return self.public_epochs
        return MAX_EPOCHS if stages > 1 else MAX_FIRST_EPOCHS

    def make_optimizer(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        """The optimiser of those parameters that are trainable."""
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        build = OPTIMIZERS.get(self.optimizer)
        return build(trainable, lr=self.lr, fused=True)  # type: ignore[call-arg]


@dataclass(frozen=True)
class DeviceConfig:
    """Where and how precisely a model computes."""

    device: str = "cpu"
    precision: str = "float32"
    """float32, or bfloat16: matrix products and convolutions in half the width, everything else as before."""

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which forward passes run."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bfloat16")

    @property
    def prediction_batch(self) -> int:
        """Samples predicted at a time: on a CPU as many as keep a layer in its cache, elsewhere enough to fill it."""
        return 128 if self.device == "cpu" else 1024

    def to_device(self, model: nn.Module) -> nn.Module:
        """The model on the device, convolutions in the memory order that is fastest for them."""
        model = model.to(self.device)
        convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
        if convolutions and not any(_is_unsafe_channels_last(convolution) for convolution in convolutions):
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model


def _is_unsafe_channels_last(convolution: nn.Conv2d) -> bool:
    """Whether gradients of a layer with its channels last may be written past a buffer of oneDNN.

    That happens to strided 1x1 convolutions with fewer input channels than a vector register of the CPU has numbers:
    https://github.com/uxlfoundation/oneDNN/issues/6035.
    """
    register = 16 if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else 8
    strided = convolution.kernel_size == (1, 1) and convolution.stride != (1, 1)
    return strided and convolution.in_channels < register


class Job(ABC):
    """A stage of learning of one client; an engine runs it, alone or stacked with jobs like it."""

    epochs: int
    """How many times the samples are gone through."""
    seconds: float
    """How long it took; of jobs that were done together, the job's share."""

    @abstractmethod
    def run(self) -> None:
        """Do the job alone."""

    def split_epochs(self) -> "Sequence[Job]":
        """Jobs that, done one after another, are this job; where it has no epochs, the job itself."""
        return [self]


@dataclass
class TrainingJob(Job):
    """One training stage of one client: epochs of cross-entropy from where the model and its optimiser are.

    targets are labels (n,) in the private stage and a teacher (n, C) in the public one.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: torch.Tensor
    targets: torch.Tensor
    order: list[torch.Tensor]
    """The samples of each step, over all epochs."""
    seed: int
    """Seeds what the model draws itself, such as dropout."""
    architecture: Hashable
    """Jobs of another architecture have models that compute something else."""
    training: Training
    hardware: DeviceConfig
    augment: Augment = "none"
    augmented: int | None = None
    """The number of samples, from the first on, that are augmented; None for all."""
    noise: DPSGDParams | None = None
    """What makes the training differentially private, if it is to be."""
    secret: torch.Generator | None = None
    """What its noise is drawn from, where no seed may repeat it."""
    epochs: int = 1
    seconds: float = 0.0

    @classmethod
    def of(
        cls,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        *,
        epochs: int,
        generator: torch.Generator,
        architecture: Hashable,
        training: Training,
        hardware: DeviceConfig,
        augment: Augment = "none",
        noise: DPSGDParams | None = None,
        secret: bool = False,
    ) -> "TrainingJob":
        """The job whose order and seed are drawn from the generator; and its noise too, if that is `secret`."""
        seed = int(torch.randint(2**62, (1,), generator=generator))
        sizes = token_lengths(inputs)
        if noise is None:
            order = [part for _ in range(epochs) for part in batches(len(inputs), training.batch, generator, sizes)]
        else:
            steps = epochs * math.ceil(len(inputs) / training.batch)
            order = poisson_batches(len(inputs), noise.sample_rate, steps, generator)
        made = cls(model, optimizer, inputs, targets, order, seed, architecture, training, hardware, augment)
        made.noise, made.secret = noise, generator if secret else None
        made.epochs = epochs
        return made

    def run(self) -> None:
        """Do the job alone."""
        train(self)

    def split_epochs(self) -> "list[TrainingJob]":
        """One job for each epoch: done one after another, they take the same steps as this job."""
        steps = len(self.order) // self.epochs
        return [
            replace(self, order=self.order[epoch * steps : (epoch + 1) * steps], seed=self.seed + epoch, epochs=1)
            for epoch in range(self.epochs)
        ]


POOL = 50
"""Batches of texts that are sorted by length together: more would save little padding and mix lengths less."""


def batches(
    samples: int, size: int, generator: torch.Generator, sizes: torch.Tensor | None = None
) -> Iterator[torch.Tensor]:
    """Indices of one epoch in random order; a last batch of one joins the one before (batch norm needs two).

    With `sizes`, the lengths of texts, a batch holds texts of like length: random pools of `POOL` batches are sorted,
    cut and the batches dealt in random order, so that little is computed on padding.

    >>> [len(batch) for batch in batches(9, 4, torch.Generator())]
    [4, 5]
    >>> sizes = torch.tensor([9, 1, 9, 1])
    >>> sorted(sizes[batch].tolist() for batch in batches(4, 2, torch.Generator(), sizes))
    [[1, 1], [9, 9]]
    """
    order = torch.randperm(samples, generator=generator)
    if sizes is not None:
        order = torch.cat([pool[sizes[pool].argsort(stable=True)] for pool in torch.split(order, POOL * size)])
    parts = list(torch.split(order, size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    if sizes is not None:
        parts = [parts[index] for index in torch.randperm(len(parts), generator=generator).tolist()]
    return iter(parts)


def mixed_batches(private: int, public: int, size: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Indices of one epoch over private samples, which come first, and public ones; each batch has its share of both.

    >>> batches = mixed_batches(6, 12, 9, torch.Generator())
    >>> [(int((batch < 6).sum()), int((batch >= 6).sum())) for batch in batches]
    [(3, 6), (3, 6)]
    """
    steps = max(1, (private + public) // size)
    own = torch.tensor_split(torch.randperm(private, generator=generator), steps)
    shared = torch.tensor_split(private + torch.randperm(public, generator=generator), steps)
    return [torch.cat(both) for both in zip(own, shared, strict=True)]


def token_lengths(inputs: torch.Tensor) -> torch.Tensor | None:
    """How long each text is, where inputs are token ids (n, longest) padded with -1; None for anything else.

    >>> token_lengths(torch.tensor([[5, 7, -1], [5, -1, -1]]))
    tensor([2, 1])
    >>> token_lengths(torch.zeros(2, 3)) is None
    True
    """
    if inputs.ndim != 2 or inputs.dtype not in (torch.int16, torch.int32, torch.int64):
        return None
    return (inputs >= 0).sum(1).cpu() if bool((inputs < 0).any()) else None


def train(job: TrainingJob) -> None:
    """Do the job."""
    begin = time.perf_counter()
    job.model.train()
    loss = torch.zeros(())
    draws = job.secret or torch.Generator().manual_seed(job.seed)
    with torch.random.fork_rng(devices=[job.hardware.device] if job.hardware.device.startswith("cuda") else []):
        torch.manual_seed(job.seed)
        for index in job.order:
            index = index.to(job.inputs.device)
            job.optimizer.zero_grad(set_to_none=True)
            inputs = _select_inputs(job, index, draws)
            if job.noise is not None:
                loss = dp_gradients(job.model, inputs, job.targets[index], job.noise, len(job.inputs), draws)
            else:
                with job.hardware.autocast():
                    loss = cross_entropy(job.model(inputs), job.targets[index])
                loss.backward()  # type: ignore[no-untyped-call]
            job.optimizer.step()
    validate_loss(float(loss.detach()))
    job.seconds = time.perf_counter() - begin


def _select_inputs(job: TrainingJob, index: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
    """The inputs of a step, augmented where the job asks for it."""
    inputs = job.inputs[index]
    if job.augment == "none" or job.augmented is None:
        return augment_batch(inputs, job.augment, draws)
    chosen = index < job.augmented
    inputs[chosen] = augment_batch(inputs[chosen], job.augment, draws)
    return inputs


def validate_loss(loss: float) -> None:
    """Refuse a model that has diverged, as a loss that is no number shows."""
    if not abs(loss) < float("inf"):
        raise TrustmixError(f"the loss became {loss}; a lower train.lr may help")


@torch.no_grad()
def predict(model: nn.Module, inputs: torch.Tensor, hardware: DeviceConfig) -> torch.Tensor:
    """Logits (n, C) in evaluation mode, float32; texts are taken by length, so that little padding is computed on."""
    model.eval()
    sizes = token_lengths(inputs)
    order = None if sizes is None else sizes.argsort(stable=True).to(inputs.device)
    size = model.prediction_batch if isinstance(model, ClassifierModel) else hardware.prediction_batch
    parts = torch.split(inputs if order is None else inputs[order], size)
    with hardware.autocast():
        logits = torch.cat([model(part).to(torch.float32) for part in parts])
    return logits if order is None else torch.empty_like(logits).index_copy_(0, order, logits)


def evaluate(
    model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, hardware: DeviceConfig, temperature: float = 1.0
) -> ClassificationMetrics:
    """What the model's predictions on labelled inputs are worth, at that temperature."""
    logits = predict(model, inputs, hardware).to("cpu", torch.float64)
    return ClassificationMetrics.of((logits / temperature).softmax(1), labels.cpu())


AGREEMENT_SAMPLES = 1000
"""Public samples at most that agreement is measured on: enough for one point, and less than a tenth of a training."""


def agreement_samples(samples: int, generator: torch.Generator) -> torch.Tensor:
    """Indices of the public samples that agreement is measured on, all or a random part of them.

    >>> agreement_samples(3, torch.Generator()).tolist(), len(agreement_samples(2000, torch.Generator()))
    ([0, 1, 2], 1000)
    """
    if samples <= AGREEMENT_SAMPLES:
        return torch.arange(samples)
    return torch.randperm(samples, generator=generator)[:AGREEMENT_SAMPLES].sort().values


def accuracy(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, hardware: DeviceConfig) -> float:
    """Fraction of inputs whose most probable class, among all classes, is the label."""
    return float((predict(model, inputs, hardware).argmax(1) == labels).double().mean())

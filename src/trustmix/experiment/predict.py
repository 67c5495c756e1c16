"""A trained client's answers about new samples, as a file that can be read, measured and mixed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trustmix.data import DATASETS, load
from trustmix.data.inference import InputSpec, Samples, read_samples
from trustmix.density import percentile_ranks
from trustmix.errors import TrustmixError
from trustmix.experiment.config import DataConfig
from trustmix.experiment.data import client_calibration
from trustmix.experiment.recipe import Recipe
from trustmix.experiment.saved_models import STUDENT, load_model, read_inputs
from trustmix.federation import DeviceConfig
from trustmix.federation.scoring import score_inputs
from trustmix.federation.training import predict as logits_of


@dataclass(frozen=True)
class PredictionResult:
    """What a model says about samples."""

    logits: torch.Tensor
    samples: Samples
    classes: tuple[str, ...]
    trust: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Where the client's own calibration samples are at hand: `scores` (n,), how familiar each sample looks to it,
    their `ranks` (n,) among its own, and `held` (C,), how many of each class those are."""

    @property
    def predicted(self) -> torch.Tensor:
        """(n,): the most probable class."""
        return self.logits.argmax(1)

    @property
    def accuracy(self) -> float | None:
        """Over the samples whose labels are known, if there are any."""
        known = self.samples.labels >= 0
        return float((self.predicted == self.samples.labels)[known].double().mean()) if bool(known.any()) else None

    def lines(self) -> Iterator[tuple[str, str, float]]:
        """Each sample's name or number, its most probable class by name, and how probable that is."""
        sure = torch.softmax(self.logits.double(), 1).amax(1)
        for number, (cls, probability) in enumerate(zip(self.predicted.tolist(), sure.tolist(), strict=True)):
            name = self.samples.ids[number] if self.samples.ids else f"sample {number}"
            yield name, self.classes[cls], probability

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """As an npz file holds them; `trustmix mix` takes it."""
        found = {
            "predictions": torch.softmax(self.logits.double(), 1).numpy(),
            "logits": self.logits.numpy(),
            "predicted": self.predicted.numpy(),
            "labels": self.samples.labels.numpy(),
            "classes": np.array(self.classes),
        }
        found |= {key: value.numpy() for key, value in self.trust.items()}
        return found | ({"id": np.array(self.samples.ids)} if self.samples.ids else {})


def predict(folder: str | Path, data: str | Path, client: int | str = 0) -> PredictionResult:
    """What a client of a run says about a file, a folder of images, or the test part of a data set by its name.

    >>> import tempfile, trustmix as tm
    >>> small = {"data": {"name": "digits"}, "clients": 5, "rounds": 1, "split": {"samples_per_client": 40}}
    >>> folder = tempfile.mkdtemp()
    >>> _ = tm.run(small, out=folder)
    >>> predict(folder, "digits", client=3).logits.shape
    torch.Size([359, 10])
    """
    model, inputs, recipe = load_model(folder, client), read_inputs(folder), Recipe.load(Path(folder) / "recipe.toml")
    samples = _samples(data, inputs, recipe.data)
    logits = logits_of(model, samples.inputs, DeviceConfig())
    return PredictionResult(logits, samples, inputs.classes, _trust(recipe, str(client), model, samples.inputs))


def _samples(data: str | Path, inputs: InputSpec, trained_on: DataConfig) -> Samples:
    place, options = Path(data).expanduser(), trained_on.model_extra or {}
    if place.exists():
        return read_samples(place, inputs, options)
    if str(data) not in DATASETS.names():
        raise TrustmixError(
            f'"{data}" is neither a file or folder nor a data set; there are {", ".join(DATASETS.names())}.'
        )
    own = str(data) == trained_on.name
    found = load(str(data), path=trained_on.path, **options) if own else load(str(data))
    theirs = InputSpec.from_dataset(found)
    if (theirs.shape, theirs.dtype) != (inputs.shape, inputs.dtype):
        raise TrustmixError(f'The data set "{data}" has {theirs}, but the model takes {inputs}.')
    known = theirs.classes == inputs.classes
    return Samples(found.test.inputs, found.test.labels if known else torch.full((len(found.test),), -1))


def _trust(recipe: Recipe, client: str, model: nn.Module, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the recipe's density says of the inputs, fitted on the client's own calibration samples.

    A run with [privacy] tells nothing of the kind: these samples are private, and nobody promised noise here.
    """
    if client == STUDENT or recipe.method.pooled_data or recipe.privacy.epsilon is not None:
        return {}
    try:
        own = client_calibration(recipe, int(client))
    except TrustmixError:
        return {}  # the run's data are not on this machine
    said = score_inputs(model, own, inputs, DeviceConfig(), recipe.density.kind, recipe.density.standardise)
    held = torch.bincount(own.labels, minlength=said.logits.shape[1])
    return {"scores": said.scores, "ranks": percentile_ranks(said.calibration_scores, said.scores), "held": held}

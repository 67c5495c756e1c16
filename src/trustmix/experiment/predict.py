"""The predictions of a trained client for new samples.

They can be written to a file of predictions, which `trustmix mix` reads.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from trustmix.data import DATASETS, load
from trustmix.data.inference import InputSpec, Samples, read_samples
from trustmix.data.text import default_tokenizer
from trustmix.density import DISCRIMINATOR
from trustmix.errors import TrustmixError
from trustmix.experiment.data import client_calibration
from trustmix.experiment.saved_models import load_model, model_name, read_inputs
from trustmix.learners import DeviceConfig
from trustmix.learners.scoring import score_inputs
from trustmix.learners.training import predict as predict_logits
from trustmix.models import WithTemperature
from trustmix.paths import expand_user
from trustmix.settings.config import DataConfig
from trustmix.settings.own_code import load_run_recipe
from trustmix.settings.recipe import Recipe


@dataclass(frozen=True)
class PredictionResult:
    """The predictions of a model.

    Parameters
    ----------
    logits : torch.Tensor
        (n, C), the outputs of the model.
    samples : Samples
        The samples, with labels and names where they are known.
    classes : tuple of str
        The names of the C classes.
    trust : mapping of str to torch.Tensor
        Empty without the client's calibration samples. Otherwise `scores` (n,), the density score of each sample,
        and `held` (C,), the number of calibration samples of each class.
    """

    logits: torch.Tensor
    samples: Samples
    classes: tuple[str, ...]
    trust: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def predicted(self) -> torch.Tensor:
        """(n,): the index of the most probable class."""
        return self.logits.argmax(1)

    @property
    def accuracy(self) -> float | None:
        """The accuracy on the samples with known labels, a fraction; None without any."""
        known = self.samples.labels >= 0
        return float((self.predicted == self.samples.labels)[known].double().mean()) if bool(known.any()) else None

    def lines(self) -> Iterator[tuple[str, str, float]]:
        """Iterate over the samples.

        Yields
        ------
        tuple of str, str and float
            The name or the number of a sample, the name of its most probable class, and the probability of that class.
        """
        largest = torch.softmax(self.logits.double(), 1).amax(1)
        for number, (cls, probability) in enumerate(zip(self.predicted.tolist(), largest.tolist(), strict=True)):
            name = self.samples.ids[number] if self.samples.ids else f"sample {number + 1}"
            yield name, self.classes[cls], probability

    def columns(self) -> dict[str, Sequence[object]]:
        """Return the contents of a csv file of predictions.

        Returns
        -------
        dict of str to sequence
            `id`, the name or the number of a sample counted from 1, a column of probabilities per class, `predicted`,
            and, where they are known, `label` and `score`.
        """
        labels = self.samples.labels.tolist()
        ids: Sequence[object] = self.samples.ids or range(1, len(labels) + 1)
        probabilities = torch.softmax(self.logits.double(), 1).T.tolist()
        found = {"id": ids, **dict(zip(self.classes, probabilities, strict=True))}
        found["predicted"] = [self.classes[index] for index in self.predicted.tolist()]
        if any(label >= 0 for label in labels):
            found["label"] = [self.classes[label] if label >= 0 else "" for label in labels]
        return found | ({"score": self.trust["scores"].tolist()} if "scores" in self.trust else {})

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the contents of a file of predictions.

        Returns
        -------
        dict of str to NumPy array
            `predictions` and `logits` (n, C), `predicted` and `labels` (n,), `classes` (C,), the arrays of `trust`, and
            `id` (n,) if the samples have names.
        """
        found: dict[str, npt.NDArray[np.generic]] = {
            "predictions": torch.softmax(self.logits.double(), 1).numpy(),
            "logits": self.logits.numpy(),
            "predicted": self.predicted.numpy(),
            "labels": self.samples.labels.numpy(),
            "classes": np.array(self.classes),
        }
        found |= {key: value.numpy() for key, value in self.trust.items()}
        return found | ({"id": np.array(self.samples.ids)} if self.samples.ids else {})


def predict(
    folder: str | Path, data: str | Path, client: int | str | None = None, *, allow_code: bool = False
) -> PredictionResult:
    """Predict samples with a client's model of a finished run, or with the model that a node has exported.

    Parameters
    ----------
    folder : str or Path
        The run directory, or the model folder of a node.
    data : str or Path
        A file, a folder of images, or the name of a data set, whose test part is predicted.
    client : int or str, optional
        The number of the client, the id of the node, or "student" for the server's model; by default the only model of
        the folder, or that of client 0.
    allow_code : bool
        Whether to import what the recipe names as code even if the directory is not below the current one.

    Returns
    -------
    PredictionResult
        The predictions; with scores if the data of the run are on this machine and the run is not a private one.

    Raises
    ------
    TrustmixError
        If there is no such model, the samples are not of the kind that the model takes, or the recipe names code that
        is not allowed.

    Examples
    --------
    >>> import tempfile, trustmix as tm
    >>> small = {"data": {"name": "digits"}, "clients": 5, "rounds": 1, "split": {"samples_per_client": 40}}
    >>> folder = tempfile.mkdtemp()
    >>> _ = tm.run(small, out=folder)
    >>> predict(folder, "digits", client=3).logits.shape
    torch.Size([359, 10])
    """
    name = model_name(folder, client)
    model, inputs = load_model(folder, name, allow_code=allow_code), read_inputs(folder)
    recipe = load_run_recipe(Path(folder), allow_code=allow_code)
    samples = _samples(data, inputs, recipe.data)
    logits = predict_logits(model, samples.inputs, DeviceConfig())
    raw = model.model if isinstance(model, WithTemperature) else model  # densities are of logits as they were sent
    return PredictionResult(logits, samples, inputs.classes, _trust(recipe, name, raw, samples.inputs))


def _samples(data: str | Path, inputs: InputSpec, trained_on: DataConfig) -> Samples:
    path, options = expand_user(data), trained_on.model_extra or {}
    if path.exists():
        tokenizer = default_tokenizer(trained_on.name)
        return read_samples(path, inputs, {**({"tokenizer": tokenizer} if tokenizer else {}), **options})
    if str(data) not in DATASETS.names():
        raise TrustmixError(
            f'"{data}" is neither a file or folder nor a data set; there are {", ".join(DATASETS.names())}.'
        )
    same_data = str(data) == trained_on.name
    found = load(str(data), path=trained_on.path, **options) if same_data else load(str(data))
    spec = InputSpec.from_dataset(found)
    if (spec.shape, spec.dtype) != (inputs.shape, inputs.dtype):
        raise TrustmixError(f'The data set "{data}" has {spec}, but the model takes {inputs}.')
    known = spec.classes == inputs.classes
    return Samples(found.test.inputs, found.test.labels if known else torch.full((len(found.test),), -1))


def _trust(recipe: Recipe, client: str, model: nn.Module, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Scores and class counts of the inputs, by the recipe's density fitted on the calibration samples.

    Nothing for a run with [privacy]: the scores would be computed from private samples without noise. Nothing for
    discriminators either, and nothing for a node, whose calibration samples are not in its model folder.
    """
    if not client.isdecimal() or recipe.method.pooled_data or recipe.privacy.epsilon is not None:
        return {}
    if recipe.density.kind == DISCRIMINATOR:
        return {}  # they are not kept after they have scored the public set
    try:
        own = client_calibration(recipe, int(client))
    except TrustmixError:
        return {}  # the run's data are not on this machine
    scored = score_inputs(model, own, inputs, DeviceConfig(), recipe.density.kind, recipe.density.standardise)
    held = torch.bincount(own.labels, minlength=scored.logits.shape[1])
    return {"scores": scored.scores, "held": held}

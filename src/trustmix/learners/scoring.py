"""What a client knows of inputs without labels: its logits, and how much it has seen of such samples.

The density is fitted anew on the calibration samples each time, since the model has changed. Scores may be kept over
rounds instead (`KeptScores`).
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import nn

from trustmix.data import Labelled
from trustmix.density import FEATURES, RATIO, Density, DensityRatio, resolve_density, standardize_scores
from trustmix.learners.training import DeviceConfig, predict
from trustmix.models import WithFeatures

Refresh: TypeAlias = Literal["every", "once"] | int
"""When a client scores the public set anew: in every round, once, or after that number of rounds."""


@dataclass(frozen=True)
class KeptScores:
    """The scores (N,) of the public samples, and the round they were made in."""

    round: int
    scores: torch.Tensor

    def are_due(self, round_: int, refresh: Refresh) -> bool:
        """Whether scores are made anew in a round.

        >>> kept = KeptScores(2, torch.zeros(5))
        >>> kept.are_due(4, "every"), kept.are_due(4, "once"), kept.are_due(4, 3), kept.are_due(5, 3)
        (True, False, False, True)
        """
        if refresh == "once":
            return False
        return refresh == "every" or round_ >= self.round + refresh


@dataclass(frozen=True)
class ScoredInputs:
    """Logits (N, C) and scores (N,) of inputs, the scores (n,) of the calibration samples, and what gave them."""

    logits: torch.Tensor
    scores: torch.Tensor
    calibration_scores: torch.Tensor
    density: Density


def density_samples(kind: str, private: Labelled, calibration: Labelled) -> Labelled:
    """The samples that a density of that kind is fitted on: the calibration samples, for the ratio all of the client's.

    >>> private, calibration = (Labelled(torch.rand(n, 4), torch.zeros(n)) for n in (8, 2))
    >>> len(density_samples("gaussians", private, calibration)), len(density_samples("ratio", private, calibration))
    (2, 10)
    """
    if kind != RATIO or torch.equal(private.inputs, calibration.inputs):  # none was held out: each sample counts once
        return calibration
    both = (private, calibration)
    return Labelled(torch.cat([part.inputs for part in both]), torch.cat([part.labels for part in both]))


def score_inputs(
    model: nn.Module,
    calibration: Labelled,
    inputs: torch.Tensor,
    hardware: DeviceConfig,
    kind: str = "gaussians",
    standardise: bool = False,
) -> ScoredInputs:
    """Predict and score the inputs by the density of that kind, in standard units of the calibration scores if wanted.

    >>> samples = Labelled(torch.rand(8, 4), torch.arange(8) % 2)
    >>> score_inputs(nn.Linear(4, 3), samples, torch.rand(5, 4), DeviceConfig()).scores.shape
    torch.Size([5])
    """
    _, seen = _views(model, calibration.inputs, hardware, kind)
    density = resolve_density(kind).fit(seen, calibration.labels)
    logits, points = _views(model, inputs, hardware, kind)
    if isinstance(density, DensityRatio):
        scores, known = density.score_both(points)
    else:
        scores, known = density.log_prob(points), density.log_prob(seen)
    if standardise:
        known, scores = standardize_scores(known, known), standardize_scores(known, scores)
    return ScoredInputs(logits, scores, known, density)


def predict_features(
    model: nn.Module, inputs: torch.Tensor, hardware: DeviceConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and features of inputs, on the CPU; features are the inputs of the model's last layer.

    Parameters
    ----------
    model
        A network with features (`trustmix.models.WithFeatures`).
    inputs
        (n, ...).
    hardware
        What computes.

    Returns
    -------
    tuple of torch.Tensor
        Logits (n, C) and features (n, D).

    >>> network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> [tuple(found.shape) for found in predict_features(network, torch.rand(5, 4), DeviceConfig())]
    [(5, 2), (5, 3)]
    """
    whole = WithFeatures(model)
    both = predict(whole, inputs, hardware).cpu()
    return both[:, : whole.classes], both[:, whole.classes :]


def _views(
    model: nn.Module, inputs: torch.Tensor, hardware: DeviceConfig, kind: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (n, C), and what the density is of: the same, or features (n, D)."""
    if kind in FEATURES:
        return predict_features(model, inputs, hardware)
    logits = predict(model, inputs, hardware).cpu()
    return logits, logits

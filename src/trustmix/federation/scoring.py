"""What a client knows of inputs without labels: its logits, and how much it has seen of such samples.

The density is fitted anew on the calibration samples each time, since the model has changed.
"""

from dataclasses import dataclass

import torch
from torch import nn

from trustmix.data import Labelled
from trustmix.density import FEATURES, Density, DensityRatio, resolve_density, standardize_scores
from trustmix.federation.training import DeviceConfig, predict
from trustmix.models import WithFeatures


@dataclass(frozen=True)
class ScoredInputs:
    """Logits (N, C) and scores (N,) of inputs, the scores (n,) of the calibration samples, and what gave them."""

    logits: torch.Tensor
    scores: torch.Tensor
    calibration_scores: torch.Tensor
    density: Density


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
    scores = density.log_prob(points)
    known = density.own_scores(points) if isinstance(density, DensityRatio) else density.log_prob(seen)
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

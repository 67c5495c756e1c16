"""What a client knows of inputs without labels: its logits, and how much it has seen of such samples.

The density is fitted anew on the calibration samples each time, since the model has changed.
"""

from dataclasses import dataclass

import torch
from torch import nn

from trustmix.data import Labelled
from trustmix.federation.training import Hardware, predict
from trustmix.models import WithFeatures
from trustmix.trust import DENSITIES, FEATURES, Density, in_own_units


@dataclass(frozen=True)
class Scored:
    """Logits (N, C) and scores (N,) of inputs, the scores (n,) of the calibration samples, and what gave them."""

    logits: torch.Tensor
    scores: torch.Tensor
    known: torch.Tensor
    density: Density


def scored(
    model: nn.Module,
    calibration: Labelled,
    inputs: torch.Tensor,
    hardware: Hardware,
    kind: str = "gaussians",
    standardise: bool = False,
) -> Scored:
    """Predict and score the inputs by the density of that kind, in standard units of the calibration scores if wanted.

    >>> samples = Labelled(torch.rand(8, 4), torch.arange(8) % 2)
    >>> scored(nn.Linear(4, 3), samples, torch.rand(5, 4), Hardware()).scores.shape
    torch.Size([5])
    """
    _, seen = _views(model, calibration.inputs, hardware, kind)
    density = DENSITIES.get(kind).fit(seen, calibration.labels)
    logits, points = _views(model, inputs, hardware, kind)
    known, scores = density.log_prob(seen), density.log_prob(points)
    if standardise:
        known, scores = in_own_units(known, known), in_own_units(known, scores)
    return Scored(logits, scores, known, density)


def _views(model: nn.Module, inputs: torch.Tensor, hardware: Hardware, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (n, C), and what the density is of: the same, or features (n, D)."""
    if kind != FEATURES:
        logits = predict(model, inputs, hardware).cpu()
        return logits, logits
    whole = WithFeatures(model)
    both = predict(whole, inputs, hardware).cpu()
    return both[:, : whole.classes], both[:, whole.classes :]

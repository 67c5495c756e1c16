"""Other answers to 'who has seen such a sample', behind the two methods of `ClassGaussians`: `fit` and `log_prob`.

`kernel` and `features` are densities of other shapes: Gaussian kernels on the calibration logits, and one Gaussian a
class on the inputs of the last layer (DDU, Mukhoti et al. 2023). `energy`, `entropy` and `max-probability` learn
nothing from the calibration samples; they only ask how sure of itself the model is.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch

from trustmix.arrays import ArraySpec, format_shape, to_finite_tensor
from trustmix.density.gaussians import FLOOR, ClassGaussians
from trustmix.errors import TrustmixError
from trustmix.registry import Registry


class DensityEstimator(Protocol):
    """What scores samples."""

    def log_prob(self, logits: Any, /) -> Any:
        """The score l(x) of each row: (N, C) -> (N,), in the kind of array given."""


class Family(Protocol):
    """What makes a density of calibration samples."""

    def fit(self, logits: Any, labels: Any, /) -> DensityEstimator:
        """The density of one client from calibration logits (n, C) and labels (n,)."""


class Kernels:
    """A Gaussian kernel on each calibration sample, all of one width: l(x) = log( 1/n * sum_j N(z; z_j, h^2 I) ).

    The width follows Scott's rule for one class: h = sigma * (n / K)^(-1 / (C + 4)), where sigma^2 is the variance
    within classes, averaged over classes and logits; between classes there is nothing to smooth over.

    >>> logits = torch.tensor([[4.0, 0.0], [5.0, 0.0], [0.0, 4.0], [0.0, 5.0]])
    >>> near, far = Kernels.fit(logits, [0, 0, 1, 1]).log_prob([[4.5, 0.0], [2.2, 2.2]])
    >>> bool(near > far + 5)
    True
    """

    def __init__(self, centres: torch.Tensor, width: float) -> None:
        self.centres = centres
        """(n, C), float64."""
        self.width = width
        """h."""

    @classmethod
    def fit(cls, logits: Any, labels: Any, *, floor: float = FLOOR) -> "Kernels":
        """Fit on calibration logits (n, C) and labels (n,); `floor` is that of `ClassGaussians`."""
        z, parts = _by_class(logits, labels, "logits")
        inside = torch.stack([part.var(0, correction=0).mean() for part in parts]).mean()
        sigma = math.sqrt(max(float(inside), floor * _spread(z)))
        return cls(z, sigma * (len(z) / len(parts)) ** (-1 / (z.shape[1] + 4)))

    def log_prob(self, logits: Any) -> Any:
        """l(x) of each row: (N, C) -> (N,)."""
        z = _rows(logits, "logits", self.centres.shape[1])
        constant = math.log(len(self.centres)) + z.shape[1] * math.log(self.width * math.sqrt(2 * math.pi))
        scores = [
            torch.logsumexp(-torch.cdist(some, self.centres, compute_mode=EXACT).square() / (2 * self.width**2), 1)
            for some in torch.split(z, max(1, TILE // len(self.centres)))
        ]
        return _restored(torch.cat(scores) - constant, logits)


class FeatureGaussians:
    """DDU's density of features: one Gaussian a class with a full covariance, weighted by how frequent the class is.

    A client has fewer calibration samples than the layer has units, where DDU has a whole training set. So all classes
    share the covariance within classes, shrunk towards its mean variance as much as Ledoit and Wolf (2004) find best,
    and `FLOOR` times the mean variance of all samples is added to its diagonal.

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = torch.arange(40) % 2
    >>> features = torch.randn(40, 3, generator=generator) + 9.0 * torch.eye(3)[labels]
    >>> seen, unseen = FeatureGaussians.fit(features, labels).log_prob([[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
    >>> bool(seen > unseen + 20)
    True
    """

    def __init__(self, means: torch.Tensor, factor: torch.Tensor, log_weights: torch.Tensor) -> None:
        self.means = means
        """(K, D), float64."""
        self.factor = factor
        """(D, D): the lower Cholesky factor of the covariance."""
        self.log_weights = log_weights
        """(K,)."""

    @classmethod
    def fit(cls, features: Any, labels: Any, *, floor: float = FLOOR) -> "FeatureGaussians":
        """Fit on calibration features (n, D) and labels (n,)."""
        x, parts = _by_class(features, labels, "features")
        means = torch.stack([part.mean(0) for part in parts])
        inside = torch.cat([part - mean for part, mean in zip(parts, means, strict=True)])
        smallest = floor * _spread(x) * torch.eye(x.shape[1], dtype=torch.float64)
        weights = torch.tensor([len(part) / len(x) for part in parts], dtype=torch.float64)
        return cls(means, torch.linalg.cholesky(shrunk_covariance(inside) + smallest), weights.log())

    def log_prob(self, features: Any) -> Any:
        """l(x) of each row: (N, D) -> (N,)."""
        x = _rows(features, "features", self.means.shape[1])
        white = torch.linalg.solve_triangular(self.factor, torch.cat([x, self.means]).T, upper=False).T
        distances = torch.cdist(white[: len(x)], white[len(x) :], compute_mode=EXACT)
        constant = self.factor.diagonal().log().sum() + x.shape[1] * math.log(2 * math.pi) / 2
        return _restored(torch.logsumexp(self.log_weights - distances.square() / 2, 1) - constant, features)


def shrunk_covariance(centred: torch.Tensor) -> torch.Tensor:
    """The covariance (D, D) of rows (n, D) of mean 0, shrunk towards mu I by Ledoit and Wolf's weight.

    With S = X^T X / n and mu its mean variance the weight is
    min( (mean ||x||^4 - ||S||^2) / (n ||S - mu I||^2), 1 ), which needs no choice of anybody's.

    >>> shrunk_covariance(torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64))
    tensor([[1., 1.],
            [1., 1.]], dtype=torch.float64)
    """
    covariance = centred.T @ centred / len(centred)
    even = covariance.trace() / len(covariance) * torch.eye(len(covariance), dtype=centred.dtype)
    apart = (covariance - even).square().sum()
    if apart == 0:
        return covariance
    noise = centred.square().sum(1).square().mean() - covariance.square().sum()
    weight = (noise / (len(centred) * apart)).clamp(0, 1)
    return (1 - weight) * covariance + weight * even


class Confidence:
    """A score of the logits alone; fitting it changes nothing.

    >>> Confidence(energy).fit([[1.0, 2.0]], [0]).log_prob([[0.0, 0.0]]).round(4).tolist()
    [0.6931]
    """

    def __init__(self, score: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.score = score

    def fit(self, logits: Any, labels: Any) -> "Confidence":  # noqa: ARG002 - that is the point of it
        """Itself."""
        return self

    def log_prob(self, logits: Any) -> Any:
        """l(x) of each row: (N, C) -> (N,)."""
        return _restored(self.score(_rows(logits, "logits")), logits)


def energy(logits: torch.Tensor) -> torch.Tensor:
    """Log sum_c exp z_c, minus the free energy (Liu et al. 2020).

    >>> energy(torch.tensor([[0.0, 0.0]]))
    tensor([0.6931])
    """
    return torch.logsumexp(logits, 1)


def negative_entropy(logits: torch.Tensor) -> torch.Tensor:
    """sum_c q_c log q_c of the softmax q: -log C where it is uniform, 0 where it is certain.

    >>> negative_entropy(torch.tensor([[0.0, 0.0]]))
    tensor([-0.6931])
    """
    log_q = torch.log_softmax(logits, 1)
    return (log_q.exp() * log_q).sum(1)


def log_max_probability(logits: torch.Tensor) -> torch.Tensor:
    """The logarithm of the softmax's largest probability.

    >>> log_max_probability(torch.tensor([[0.0, 0.0]]))
    tensor([-0.6931])
    """
    return torch.log_softmax(logits, 1).amax(1)


class PrecomputedScores:
    """Scores that are known already, where a density is asked for."""

    def __init__(self, scores: torch.Tensor) -> None:
        self.scores = scores

    def log_prob(self, logits: Any) -> Any:  # noqa: ARG002 - nothing is left to compute
        """The scores."""
        return self.scores


def standardize_scores(known: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Scores (N,) from the mean of the calibration scores `known` (n,), in their standard deviations.

    A client's own samples then have mean 0 and spread 1, whatever its model and density, and tau counts in that unit.

    >>> standardize_scores(torch.tensor([2.0, 6.0]), torch.tensor([4.0, 0.0])).tolist()
    [0.0, -2.0]
    """
    mean, spread = float(known.double().mean()), float(known.double().std(correction=0))
    return (scores - mean) / (spread or 1.0)


FEATURES = "features"
"""The kind that is fitted on the inputs of a model's last layer instead of its logits."""

DENSITIES: Registry[Family] = Registry("density")
DENSITIES.register("gaussians")(ClassGaussians)
DENSITIES.register("kernel")(Kernels)
DENSITIES.register(FEATURES)(FeatureGaussians)
DENSITIES.register("energy")(Confidence(energy))
DENSITIES.register("entropy")(Confidence(negative_entropy))
DENSITIES.register("max-probability")(Confidence(log_max_probability))

EXACT = "donot_use_mm_for_euclid_dist"
"""How distances are computed: by matrix products they would cancel where points are far from 0."""

TILE = 2**22
"""Distances held at a time."""


def _rows(points: Any, name: str, width: int | None = None) -> torch.Tensor:
    """Points as float64 (N, width)."""
    x = to_finite_tensor(points, name).cpu().to(torch.float64)
    if x.ndim != 2 or x.shape[1] != (width or x.shape[1]):
        raise TrustmixError(f"{name} have the shape {format_shape(x)}; this density takes (N, {width or 'C'}).")
    return x


def _by_class(points: Any, labels: Any, name: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """All calibration points (n, D) as float64, and those of each class."""
    x, y = _rows(points, name), torch.as_tensor(labels).cpu()
    if len(x) == 0 or y.shape != x.shape[:1]:
        raise TrustmixError(f"{len(x)} rows of {name} but labels {format_shape(y)}; a density needs one label a row.")
    return x, [x[y == one] for one in torch.unique(y)]


def _spread(x: torch.Tensor) -> float:
    """The mean variance of all samples; 1 where they are all the same."""
    return float(x.var(0, correction=0).mean()) or 1.0


def _restored(scores: torch.Tensor, like: Any) -> Any:
    return ArraySpec.of(like).at_least_float32().restore(scores)

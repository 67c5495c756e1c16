"""What all densities share: the two interfaces, the registry, and the checks of the arrays they take.

A density estimator is fitted on a client's calibration samples. The result is a density, whose `log_prob` is the score
l(x) of the paper: how much the client has seen of such samples.
"""

from typing import Protocol

import torch

from trustmix.arrays import A, ArrayLike, ArraySpec, format_shape, to_finite_tensor
from trustmix.errors import TrustmixError
from trustmix.imports import import_object
from trustmix.registry import Registry

VARIANCE_FLOOR = 1e-3
"""Smallest variance of a component, relative to the mean variance of all calibration samples (to 1 where that is 0).

It acts where a variance cannot be estimated, as with a single calibration sample of a class; there it keeps the
component from becoming a spike of unbounded density."""

EXACT_DISTANCES = "donot_use_mm_for_euclid_dist"
"""The mode of `torch.cdist`: distances from matrix products would cancel where points are far from 0."""


class Density(Protocol):
    """A fitted density, or anything else that scores samples."""

    def log_prob(self, logits: A, /) -> A:
        """The score l(x) of each row.

        Parameters
        ----------
        logits : array (N, C)
            A NumPy array or a torch tensor.

        Returns
        -------
        array (N,)
            Of the library and device of `logits`, at least float32.
        """


class DensityEstimator(Protocol):
    """What fits a density; a class whose `fit` is a class method is one."""

    def fit(self, logits: ArrayLike, labels: ArrayLike, /) -> Density:
        """The density of one client.

        Parameters
        ----------
        logits : array-like (n, C)
            The logits of the calibration samples.
        labels : array-like (n,)
            Their classes.

        Returns
        -------
        Density
            The fitted density.
        """


DENSITIES: Registry[DensityEstimator] = Registry("density", provided_by="trustmix.density")
"""The density estimators by the name that `density.kind` has in a recipe."""


def resolve_density(kind: str) -> DensityEstimator:
    """The density estimator of a recipe's `density.kind`.

    Parameters
    ----------
    kind : str
        A name in `DENSITIES`, or "package.module:Class" of the user's own.

    Returns
    -------
    DensityEstimator
        What fits densities of that kind.

    Raises
    ------
    TrustmixError
        If there is no such name, the class has no `fit`, or the kind is `DISCRIMINATOR`.

    Examples
    --------
    >>> resolve_density("kernel").__name__
    'KernelDensity'
    """
    if kind == DISCRIMINATOR:
        raise TrustmixError("A discriminator is trained on a client's inputs; it cannot be fitted on logits.")
    if ":" not in kind:
        return DENSITIES.get(kind)
    found = import_object(kind, "density.kind", function=False)
    if not callable(getattr(found, "fit", None)):
        raise TrustmixError(f'density.kind is "{kind}", which has no fit; it must be a density estimator.')
    estimator: DensityEstimator = found
    return estimator


FEATURES = ("features", "ratio", "duq")
"""The estimators that are fitted on the inputs of a model's last layer instead of its logits."""

UNFITTED = ("energy", "entropy", "max-probability")
"""The scores that are computed from the logits of a sample alone."""

RATIO = "ratio"
"""The estimator that compares a client's samples with the public ones."""


DISCRIMINATOR = "discriminator"
"""The ratio by models of the client's own architecture, which are trained on inputs: not one of `DENSITIES`."""


class PrecomputedScores:
    """Scores that are already known, in the place of a density.

    Parameters
    ----------
    scores : torch.Tensor (N,)
        The scores of the samples that `log_prob` will be asked for, in their order.

    Examples
    --------
    >>> PrecomputedScores(torch.tensor([-1.0, -2.0])).log_prob(torch.zeros(2, 3))
    tensor([-1., -2.])
    """

    def __init__(self, scores: torch.Tensor) -> None:
        self.scores = scores

    def log_prob(self, logits: A) -> A:
        """The scores (N,), as an array of the kind of `logits` (N, C)."""
        return restore_scores(self.scores, logits)


def validate_points(points: ArrayLike, name: str, width: int | None = None) -> torch.Tensor:
    """Convert points to float64 and check their shape.

    Parameters
    ----------
    points : array-like (N, D)
        Logits or features.
    name : str
        The name of the argument, for the error message.
    width : int, optional
        The D that is required; any if it is not given.

    Returns
    -------
    torch.Tensor (N, D)
        In float64, on the CPU.

    Raises
    ------
    TrustmixError
        If an entry is not finite or the shape is another.
    """
    x = to_finite_tensor(points, name).cpu().to(torch.float64)
    if x.ndim != 2 or x.shape[1] != (width or x.shape[1]):
        raise TrustmixError(f"{name} have the shape {format_shape(x)}; this density takes (N, {width or 'C'}).")
    return x


def split_by_class(points: ArrayLike, labels: ArrayLike, name: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Check calibration points and group them by class.

    Parameters
    ----------
    points : array-like (n, D)
        Logits or features.
    labels : array-like (n,)
        Their classes.
    name : str
        The name of the argument `points`, for the error message.

    Returns
    -------
    torch.Tensor (n, D)
        All points in float64.
    list of torch.Tensor (n_k, D)
        The points of each class that occurs, in the order of the classes.

    Raises
    ------
    TrustmixError
        If there are no points, or not one label for each.

    Examples
    --------
    >>> _, parts = split_by_class([[1.0], [2.0], [3.0]], [4, 0, 4], "logits")
    >>> [part.flatten().tolist() for part in parts]
    [[2.0], [1.0, 3.0]]
    """
    x, y = validate_points(points, name), torch.as_tensor(labels).cpu()
    if len(x) == 0 or y.shape != x.shape[:1]:
        raise TrustmixError(f"{len(x)} rows of {name} but labels {format_shape(y)}; a density needs one label a row.")
    return x, [x[y == one] for one in torch.unique(y)]


def mean_variance(x: torch.Tensor) -> float:
    """The variance of the columns of x (n, D), averaged; 1 where all rows are the same.

    >>> mean_variance(torch.tensor([[0.0, 0.0], [2.0, 0.0]])), mean_variance(torch.ones(3, 2))
    (0.5, 1.0)
    """
    return float(x.var(0, correction=0).mean()) or 1.0


def restore_scores(scores: torch.Tensor, like: A) -> A:
    """The scores as an array of the library and device of `like`, at least float32, as log-densities need.

    >>> import numpy as np
    >>> restore_scores(torch.tensor([-1.0]), np.zeros((1, 3), np.float16))
    array([-1.], dtype=float32)
    """
    restored: A = ArraySpec.of(like).at_least_float32().restore(scores)
    return restored

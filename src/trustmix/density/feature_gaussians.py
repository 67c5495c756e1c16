"""The density of features, the inputs of a model's last layer (DDU, Mukhoti et al. 2023).

One Gaussian per class with a full covariance, weighted by the frequency of the class:
l(x) = log( sum_k n_k/n * N(phi(x); mu_k, Sigma) ).
"""

import math

import torch

from trustmix.arrays import A, ArrayLike
from trustmix.density.base import (
    DENSITIES,
    EXACT_DISTANCES,
    VARIANCE_FLOOR,
    mean_variance,
    restore_scores,
    split_by_class,
    validate_points,
)


class FeatureGaussians:
    """One Gaussian per class on features, with a covariance that all classes share.

    A client has fewer calibration samples than the layer has units, where DDU has a whole training set. So the
    covariance within classes is shared, shrunk towards its mean variance by the weight of Ledoit and Wolf (2004), and
    `VARIANCE_FLOOR` times the mean variance of all samples is added to its diagonal.

    Parameters
    ----------
    means : torch.Tensor (K, D)
        The mean of each class, float64.
    factor : torch.Tensor (D, D)
        The lower Cholesky factor of the covariance.
    log_weights : torch.Tensor (K,)
        The logarithm of the frequency of each class.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = torch.arange(40) % 2
    >>> features = torch.randn(40, 3, generator=generator) + 9.0 * torch.eye(3)[labels]
    >>> points = torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
    >>> seen, unseen = FeatureGaussians.fit(features, labels).log_prob(points)
    >>> bool(seen > unseen + 20)
    True
    """

    def __init__(self, means: torch.Tensor, factor: torch.Tensor, log_weights: torch.Tensor) -> None:
        self.means = means
        self.factor = factor
        self.log_weights = log_weights

    @classmethod
    def fit(cls, features: ArrayLike, labels: ArrayLike, *, floor: float = VARIANCE_FLOOR) -> "FeatureGaussians":
        """Fit on calibration samples.

        Parameters
        ----------
        features : array-like (n, D)
            The features of the calibration samples.
        labels : array-like (n,)
            Their classes.
        floor : float
            What is added to the variances, relative to the mean variance of all samples.

        Returns
        -------
        FeatureGaussians
            The fitted density.

        Raises
        ------
        TrustmixError
            If there are no samples, or not one label for each, or an entry is not finite.
        """
        x, parts = split_by_class(features, labels, "features")
        means = torch.stack([part.mean(0) for part in parts])
        within = torch.cat([part - mean for part, mean in zip(parts, means, strict=True)])
        smallest = floor * mean_variance(x) * torch.eye(x.shape[1], dtype=torch.float64)
        weights = torch.tensor([len(part) / len(x) for part in parts], dtype=torch.float64)
        return cls(means, torch.linalg.cholesky(ledoit_wolf(within) + smallest), weights.log())

    def log_prob(self, features: A) -> A:
        """The score l(x) (N,) of each row of the features (N, D)."""
        x = validate_points(features, "features", self.means.shape[1])
        white = torch.linalg.solve_triangular(self.factor, torch.cat([x, self.means]).T, upper=False).T
        distances = torch.cdist(white[: len(x)], white[len(x) :], compute_mode=EXACT_DISTANCES)
        constant = self.factor.diagonal().log().sum() + x.shape[1] * math.log(2 * math.pi) / 2
        return restore_scores(torch.logsumexp(self.log_weights - distances.square() / 2, 1) - constant, features)


def ledoit_wolf(centred: torch.Tensor) -> torch.Tensor:
    """The covariance, shrunk towards mu I by the weight of Ledoit and Wolf (2004).

    With S = X^T X / n and mu its mean variance the weight is
    min( (mean ||x||^4 - ||S||^2) / (n ||S - mu I||^2), 1 ). There is nothing to choose.

    Parameters
    ----------
    centred : torch.Tensor (n, D)
        The samples X; each column has mean 0.

    Returns
    -------
    torch.Tensor (D, D)
        The shrunk covariance.

    Examples
    --------
    >>> ledoit_wolf(torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64))
    tensor([[1., 1.],
            [1., 1.]], dtype=torch.float64)
    """
    covariance = centred.T @ centred / len(centred)
    target = covariance.trace() / len(covariance) * torch.eye(len(covariance), dtype=centred.dtype)
    apart = (covariance - target).square().sum()
    if apart == 0:
        return covariance
    noise = centred.square().sum(1).square().mean() - covariance.square().sum()
    weight = (noise / (len(centred) * apart)).clamp(0, 1)
    return (1 - weight) * covariance + weight * target


DENSITIES.register("features")(FeatureGaussians)

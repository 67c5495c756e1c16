"""The distance of features to the nearest class centroid, which is the uncertainty of DUQ.

van Amersfoort, Smith, Teh and Gal, Uncertainty estimation using a single deep deterministic neural network, ICML 2020:
l(x) = max_c log exp(-|f(x) - e_c|^2 / (2 sigma^2)), where f are the inputs of the last layer and e_c is the mean of
class c. DUQ trains the network with this kernel, one linear map a class and a gradient penalty; here the model stays as
it is.
"""

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


@DENSITIES.register("duq")
class NearestCentroid:
    """The logarithm of a Gaussian kernel of the distance to the nearest class centroid.

    sigma^2 is the mean squared distance of a calibration sample to the centroid of its class, so that a typical sample
    of the client's own has the score -1/2.

    Parameters
    ----------
    centroids : torch.Tensor (K, D)
        The mean of each class, float64.
    variance : float
        sigma^2.

    Examples
    --------
    >>> density = NearestCentroid.fit([[0.0, 1.0], [0.0, -1.0], [8.0, 1.0], [8.0, -1.0]], [0, 0, 1, 1])
    >>> density.log_prob(torch.tensor([[0.0, 0.0], [8.0, 1.0], [4.0, 0.0]]))  # distances 0, 1 and 4; sigma = 1
    tensor([-0.0000, -0.5000, -8.0000])
    """

    def __init__(self, centroids: torch.Tensor, variance: float) -> None:
        self.centroids = centroids
        self.variance = variance

    @classmethod
    def fit(cls, features: ArrayLike, labels: ArrayLike, *, floor: float = VARIANCE_FLOOR) -> "NearestCentroid":
        """Fit on calibration samples.

        Parameters
        ----------
        features : array-like (n, D)
            The features of the calibration samples.
        labels : array-like (n,)
            Their classes.
        floor : float
            The smallest sigma^2, relative to the mean squared distance of all samples to their common mean.

        Returns
        -------
        NearestCentroid
            The fitted score.

        Raises
        ------
        TrustmixError
            If there are no samples, or not one label for each, or an entry is not finite.
        """
        x, parts = split_by_class(features, labels, "features")
        centroids = torch.stack([part.mean(0) for part in parts])
        within = sum(float((part - mean).square().sum()) for part, mean in zip(parts, centroids, strict=True)) / len(x)
        return cls(centroids, max(within, floor * x.shape[1] * mean_variance(x)))

    def log_prob(self, features: A) -> A:
        """The score l(x) (N,) of each row of the features (N, D)."""
        x = validate_points(features, "features", self.centroids.shape[1])
        nearest = torch.cdist(x, self.centroids, compute_mode=EXACT_DISTANCES).amin(1)
        return restore_scores(-nearest.square() / (2 * self.variance), features)

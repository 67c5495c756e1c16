"""Kernel density: a Gaussian kernel on each calibration sample, all of one width.

l(x) = log( 1/n * sum_j N(z(x); z_j, h^2 I) )
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

MAX_DISTANCES = 2**22
"""Distances that are in memory together."""


class KernelDensity:
    """A mixture of one Gaussian kernel on each calibration sample.

    The width follows Scott's rule for one class: h = sigma * (n / K)^(-1 / (C + 4)), where K is the number of classes
    and sigma^2 is the variance within classes, averaged over classes and logits. Between classes there is nothing to
    smooth over.

    Parameters
    ----------
    centres : torch.Tensor (n, C)
        The calibration logits, float64.
    width : float
        The width h of the kernels.

    Examples
    --------
    >>> logits = torch.tensor([[4.0, 0.0], [5.0, 0.0], [0.0, 4.0], [0.0, 5.0]])
    >>> near, far = KernelDensity.fit(logits, [0, 0, 1, 1]).log_prob(torch.tensor([[4.5, 0.0], [2.2, 2.2]]))
    >>> bool(near > far + 5)
    True
    """

    def __init__(self, centres: torch.Tensor, width: float) -> None:
        self.centres = centres
        self.width = width

    @classmethod
    def fit(cls, logits: ArrayLike, labels: ArrayLike, *, floor: float = VARIANCE_FLOOR) -> "KernelDensity":
        """Fit on calibration samples.

        Parameters
        ----------
        logits : array-like (n, C)
            The logits of the calibration samples.
        labels : array-like (n,)
            Their classes.
        floor : float
            The smallest sigma^2, relative to the mean variance of all samples.

        Returns
        -------
        KernelDensity
            The fitted density.

        Raises
        ------
        TrustmixError
            If there are no samples, or not one label for each, or an entry is not finite.
        """
        z, parts = split_by_class(logits, labels, "logits")
        within = torch.stack([part.var(0, correction=0).mean() for part in parts]).mean()
        sigma = math.sqrt(max(float(within), floor * mean_variance(z)))
        return cls(z, sigma * (len(z) / len(parts)) ** (-1 / (z.shape[1] + 4)))

    def log_prob(self, logits: A) -> A:
        """The score l(x) (N,) of each row of the logits (N, C)."""
        z = validate_points(logits, "logits", self.centres.shape[1])
        constant = math.log(len(self.centres)) + z.shape[1] * math.log(self.width * math.sqrt(2 * math.pi))
        scores = []
        for rows in torch.split(z, max(1, MAX_DISTANCES // len(self.centres))):
            squares = torch.cdist(rows, self.centres, compute_mode=EXACT_DISTANCES).square()
            scores.append(torch.logsumexp(-squares / (2 * self.width**2), 1))
        return restore_scores(torch.cat(scores) - constant, logits)


DENSITIES.register("kernel")(KernelDensity)

"""The density ratio: log p_i(x) / p_pub(x), estimated by a classifier of a client's samples against the public ones.

The unknown p_pub(x) is the same for all clients and cancels in the paper's weight p(x|i) / sum_j p(x|j), so scores of
different clients, models and architectures are comparable. The classifier is a ridge logistic regression on features,
fitted by a few Newton steps. A public sample is scored by a fit that has not seen it: otherwise memorised public
samples would all look public.
"""

import math

import torch
from torch.nn.functional import softplus

from trustmix.arrays import A, ArrayLike
from trustmix.density.base import DENSITIES, restore_scores, validate_points
from trustmix.errors import TrustmixError

FOLDS = 5
"""Parts of the public set, each scored by a fit on the others."""
RIDGE, STRONG_RIDGE = 3.0, 100.0
"""Penalties of the squared coefficients, divided by the number of the client's samples, against the mean loss."""
MIN_GAIN = 0.05
"""The strong penalty is taken where it lowers the loss on the samples left out by more than this, in nats."""
NEWTON_STEPS = 4
WIDE, DIMENSIONS, WIDE_RIDGE = 256, 64, 0.1
"""Features wider than `WIDE` are projected to the public set's principal directions, with a penalty of their own."""
MAX_STANDARD_DEVIATIONS = 10.0
"""Standardised features are clamped to this, so that one outlier does not decide a fit."""


@DENSITIES.register("ratio")
class DensityRatio:
    """The ratio of a client's density to that of the points it is asked about.

    Parameters
    ----------
    own
        (n, D), float64: features of the client's samples.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> public = torch.randn(400, 2, generator=generator)
    >>> own = torch.randn(200, 2, generator=generator) / 2 + torch.tensor([1.0, 0.0])
    >>> scores = DensityRatio.fit(own, torch.zeros(200)).log_prob(public)
    >>> bool(scores[public[:, 0] > 1].mean() > 1 > scores[public[:, 0] < -1].mean())
    True
    """

    def __init__(self, own: torch.Tensor) -> None:
        self.own = own

    @classmethod
    def fit(cls, features: ArrayLike, labels: ArrayLike) -> "DensityRatio":  # noqa: ARG003 - classes do not matter
        """Keep the features of the client's samples; the classifier is fitted when the public set is known.

        Parameters
        ----------
        features
            (n, D): the client's samples.
        labels
            (n,): not used.
        """
        return cls(_some_points(features))

    def log_prob(self, features: A) -> A:
        """Log p_i(x) / p_pub(x) of each public sample.

        Parameters
        ----------
        features
            (N, D): all public samples; they are the sample of p_pub.

        Returns
        -------
        array
            (N,), shifted so that the mean of the ratio is 1, as it is for the true one.
        """
        return self.score_both(features)[0]

    def score_both(self, features: A) -> tuple[A, torch.Tensor]:
        """Log-ratios of the public features (N, D), as an array of their kind, and of the client's samples (n,)."""
        points = _some_points(features, self.own.shape[1])
        of_public, of_own = cross_fitted_log_ratio(self.own, points)
        return restore_scores(of_public, features), of_own


def _some_points(features: ArrayLike, width: int | None = None) -> torch.Tensor:
    """Features as float64; a classifier needs samples of both sides."""
    points = validate_points(features, "features", width)
    if len(points) == 0:
        raise TrustmixError("there are 0 rows of features; a density ratio takes one or more of each side.")
    return points


def cross_fitted_log_ratio(own: torch.Tensor, public: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-ratios of public and of own samples, each by a fit that has not seen the sample.

    Parameters
    ----------
    own
        (n, D), float64: the client's samples.
    public
        (N, D), float64: the public samples.

    Returns
    -------
    tuple of torch.Tensor
        Public (N,) and own (n,) log-ratios.
    """
    x_own, x_public = _standardize(*_project(own, public))
    of_public, of_own = torch.zeros(len(public), dtype=torch.float64), torch.zeros(len(own), dtype=torch.float64)
    folds = min(FOLDS, len(public), len(own))
    generator = torch.Generator().manual_seed(0)  # which samples share a fold is not a matter of the run's seed
    public_fold = torch.randperm(len(public), generator=generator) % folds
    own_fold = torch.randperm(len(own), generator=generator) % folds
    penalty = WIDE_RIDGE if own.shape[1] > WIDE else RIDGE / len(own)
    for fold in range(folds):
        kept_own, kept_public = (own_fold != fold) | (folds == 1), (public_fold != fold) | (folds == 1)
        left_own, left_public = own_fold == fold, public_fold == fold
        coefficients = fit_balanced_logistic(x_own[kept_own], x_public[kept_public], penalty)
        if fold == 0 and own.shape[1] <= WIDE:
            strong = fit_balanced_logistic(x_own[kept_own], x_public[kept_public], STRONG_RIDGE / len(own))
            losses = [
                balanced_loss(x_own[left_own] @ beta, x_public[left_public] @ beta) for beta in (coefficients, strong)
            ]
            if losses[0] - losses[1] > MIN_GAIN:
                coefficients, penalty = strong, STRONG_RIDGE / len(own)
        of_public[left_public] = x_public[left_public] @ coefficients
        of_own[left_own] = x_own[left_own] @ coefficients
    return center_log_ratio(of_public, of_own)


def center_log_ratio(public: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Shift log-ratios of public (N,) and own (n,) samples so that the ratio has mean 1 over the public samples.

    >>> [part.exp().tolist() for part in center_log_ratio(torch.tensor([3.0, 3.0]), torch.tensor([3.0]))]
    [[1.0, 1.0], [1.0]]
    """
    shift = torch.logsumexp(public, 0) - math.log(len(public))
    return public - shift, own - shift


def fit_balanced_logistic(own: torch.Tensor, public: torch.Tensor, ridge: float) -> torch.Tensor:
    """The coefficients (D,) of a logistic regression of own against public samples, both sides of equal total weight.

    Its log-odds are then the log-ratio itself, whatever the numbers of samples.

    Parameters
    ----------
    own, public
        (n, D) and (N, D), the last column ones.
    ridge
        The penalty ridge / 2 * |beta|^2 beside the mean loss; the intercept is not penalised.

    Returns
    -------
    torch.Tensor
        beta, after `NEWTON_STEPS` Newton steps.
    """
    x = torch.cat([own, public])
    target = torch.cat([torch.ones(len(own)), torch.zeros(len(public))]).to(x.dtype)
    weight = torch.where(target > 0, 0.5 / len(own), 0.5 / len(public)).to(x.dtype)
    penalty = torch.full((x.shape[1],), ridge, dtype=x.dtype)
    penalty[-1] = 1e-9
    beta = torch.zeros(x.shape[1], dtype=x.dtype)
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(x @ beta)
        gradient = x.T @ (weight * (p - target)) + penalty * beta
        curvature = (weight * (p * (1 - p)).clamp_min(1e-4)).unsqueeze(1)
        hessian = (x * curvature).T @ x + torch.diag(penalty)
        beta = beta - torch.cholesky_solve(gradient.unsqueeze(1), torch.linalg.cholesky(hessian)).squeeze(1)
    return beta


def balanced_loss(own: torch.Tensor, public: torch.Tensor) -> float:
    """The mean logistic loss of log-odds of own (n,) and public (N,) samples, both sides of equal weight, in nats.

    >>> round(balanced_loss(torch.zeros(3), torch.zeros(5)), 4)
    0.6931
    """
    return float((softplus(-own).mean() + softplus(public).mean()) / 2)


def _project(own: torch.Tensor, public: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Wide features on the principal directions of the public set; narrow ones as they are."""
    if own.shape[1] <= WIDE:
        return own, public
    centred = public - public.mean(0)
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    directions = vectors[:, -DIMENSIONS:]
    return (own - public.mean(0)) @ directions, centred @ directions


def _standardize(own: torch.Tensor, public: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Features in standard deviations of the public set, constant ones 0, and a column of ones at the end."""
    mean, spread = public.mean(0), public.std(0, correction=0)
    spread = torch.where(spread > 1e-6 * spread.max().clamp_min(1e-12), spread, torch.inf)
    bound = MAX_STANDARD_DEVIATIONS
    scaled = [((x - mean) / spread).clamp(-bound, bound) for x in (own, public)]
    first, second = (torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1) for x in scaled)
    return first, second

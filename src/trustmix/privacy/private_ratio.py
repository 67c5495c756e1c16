"""The density ratio of private records to public samples, released once with differential privacy.

Output perturbation (Chaudhuri, Monteleoni and Sarwate 2011): the coefficients of a logistic regression with a strong
ridge move little with one record, and get Gaussian noise in proportion. Scores of public samples are computed from the
noisy coefficients and cost nothing more.
"""

import math

import torch

from trustmix.density import center_log_ratio

DIMENSIONS = 32
"""The principal directions of the public set that a record is described by."""
RIDGE = 0.01
"""The penalty ridge / 2 * |beta|^2 beside the mean loss, intercept included: its strong convexity."""
SCALE = 5.0
"""What log-odds are multiplied by afterwards, since so strong a penalty shrinks them."""
MAX_STEPS = 100
TOLERANCE = 1e-12
"""The largest norm of the gradient at the coefficients that are released."""


def release_log_ratio(
    own: torch.Tensor, public: torch.Tensor, noise_multiplier: float, generator: torch.Generator
) -> torch.Tensor:
    """Log p_i(x) / p_pub(x) of public samples, differentially private with respect to a record.

    Parameters
    ----------
    own : torch.Tensor (n, D)
        Features of the records, by a model that is itself private. The number n counts as known.
    public : torch.Tensor (N, D)
        Features of the public samples.
    noise_multiplier : float
        The standard deviation of the noise, in units of the most that one record moves the coefficients.
    generator : torch.Generator
        The generator of the noise.

    Returns
    -------
    torch.Tensor (N,)
        Log-ratios, float64, shifted so that the mean of the ratio is 1.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> public = torch.randn(500, 3, generator=generator)
    >>> own = public[public[:, 0] > 0]
    >>> scores = release_log_ratio(own, public, 2.0, generator)
    >>> bool(scores[public[:, 0] > 1].mean() > scores[public[:, 0] < -1].mean())
    True
    """
    x_own, x_public = _unit_rows(own.to(torch.float64), public.to(torch.float64))
    beta = fit_strongly_convex(x_own, x_public)
    spread = noise_multiplier * sensitivity(len(own))
    noisy = beta + spread * torch.randn(len(beta), generator=generator, dtype=torch.float64)
    scores = SCALE * (x_public @ noisy)
    return center_log_ratio(scores, scores)[0]


def sensitivity(records: int) -> float:
    """The most that the coefficients move, in norm, when one record is added or removed.

    The gradient of a record's loss is at most as long as its row, 1, and has the weight 1 / 2n. A function with a
    modulus of convexity `RIDGE` moves its minimum by at most the change of its gradient divided by that.

    >>> sensitivity(600)
    0.08333333333333333
    """
    return 1 / (2 * records * RIDGE)


def fit_strongly_convex(own: torch.Tensor, public: torch.Tensor) -> torch.Tensor:
    """The minimum (D,) of the balanced logistic loss with the penalty on all coefficients, by Newton steps.

    Parameters
    ----------
    own, public : torch.Tensor (n, D) and (N, D)
        Rows with a norm of at most 1. Each row of `own` has the weight 1 / 2n, each of `public` 1 / 2N.

    Returns
    -------
    torch.Tensor (D,)
        The coefficients.
    """
    x = torch.cat([own, public])
    target = torch.cat([torch.ones(len(own)), torch.zeros(len(public))]).to(x.dtype)
    weight = target / (2 * len(own)) + (1 - target) / (2 * len(public))
    beta = torch.zeros(x.shape[1], dtype=x.dtype)
    for _ in range(MAX_STEPS):
        p = torch.sigmoid(x @ beta)
        gradient = x.T @ (weight * (p - target)) + RIDGE * beta
        if float(gradient.norm()) < TOLERANCE:
            break
        hessian = (x * (weight * p * (1 - p)).unsqueeze(1)).T @ x
        hessian.diagonal().add_(RIDGE)
        beta = beta - torch.cholesky_solve(gradient.unsqueeze(1), torch.linalg.cholesky(hessian)).squeeze(1)
    return beta


def _unit_rows(own: torch.Tensor, public: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of norm at most 1: whitened principal components of the public set and a constant, each half of the norm.

    Only the public set decides the directions and the scale; a typical public sample has a norm of 1, and longer rows
    are scaled down.
    """
    mean = public.mean(0)
    values, vectors = torch.linalg.eigh((public - mean).T @ (public - mean) / len(public))
    kept = values[-DIMENSIONS:] > 1e-12 * values[-1].clamp_min(1e-300)
    directions = vectors[:, -DIMENSIONS:][:, kept] / values[-DIMENSIONS:][kept].sqrt()
    typical = ((public - mean) @ directions).norm(dim=1).median().clamp_min(1e-12) * math.sqrt(2)
    rows = []
    for points in (own, public):
        constant = torch.full((len(points), 1), math.sqrt(0.5), dtype=torch.float64)
        row = torch.cat([(points - mean) @ directions / typical, constant], 1)
        rows.append(row / row.norm(dim=1, keepdim=True).clamp_min(1.0))
    return rows[0], rows[1]

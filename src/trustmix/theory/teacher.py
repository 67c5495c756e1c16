"""The teacher error and what it consists of: bias, variance, correlation, and concentration chi (Lemma 1).

    eps_teach = E_x ||p_agg(x) - p*(x)||^2  <=  B_w^2 + sigma^2 (rho_c + (1 - rho_c) chi),   chi = E_x sum_i w_i(x)^2

Expectations over clients' predictions are means over S repeated draws, such as runs that differ in their seed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trustmix.arrays import ArrayLike, format_shape, to_finite_tensor, to_float_tensor
from trustmix.errors import TrustmixError


def weights(scores: ArrayLike, tau: float) -> torch.Tensor:
    """The weights of clients, w_i(x) = softmax_i(tau * l_i(x)).

    Parameters
    ----------
    scores : array-like (M, N) or (S, M, N)
        l_i(x) of M clients and N samples, in S draws.
    tau : float
        0 averages; infinity takes the most confident client alone.

    Returns
    -------
    torch.Tensor (M, N) or (S, M, N)
        Weights of sum 1 over clients, float64.

    Raises
    ------
    TrustmixError
        If tau is negative or the shape is another.

    Examples
    --------
    >>> weights([[0.0, 0.0], [0.0, -9e9]], tau=1.0).tolist()
    [[0.5, 1.0], [0.5, 0.0]]
    """
    if not tau >= 0:
        raise TrustmixError(f"tau is {tau}; it must be 0 (average), positive, or infinite (most confident).")
    score = to_float_tensor(scores, "scores").to(torch.float64)
    if score.ndim not in (2, 3) or 0 in score.shape:
        raise TrustmixError(f"scores have the shape {format_shape(score)}; they must be (M, N) or (S, M, N).")
    below = score - score.amax(-2, keepdim=True)
    share = torch.where(below == 0, torch.ones_like(below), torch.exp(tau * below))  # inf * 0 would be nan
    return share / share.sum(-2, keepdim=True)


def concentration(client_weights: ArrayLike) -> float:
    """The concentration of trust, chi = E_x sum_i w_i(x)^2.

    Parameters
    ----------
    client_weights : array-like (M, N) or (S, M, N)
        w_i(x), not negative, of sum 1 over the M clients of each sample; S is the number of draws.

    Returns
    -------
    float
        From 1/M (AVG) to 1 (one client alone).

    Raises
    ------
    TrustmixError
        If the shape is another, a weight is negative or weights do not sum to one.

    Examples
    --------
    >>> concentration([[0.5], [0.5]])
    0.5
    """
    return float(_validate_weights(client_weights).square().sum(-2).mean())


def effective_clients(client_weights: ArrayLike) -> float:
    """The number of equally trusted clients that would be as concentrated, 1/chi.

    Parameters
    ----------
    client_weights : array-like (M, N) or (S, M, N)
        w_i(x), not negative, of sum 1 over the M clients of each sample; S is the number of draws.

    Returns
    -------
    float
        From 1 (one client alone) to M (AVG).

    Raises
    ------
    TrustmixError
        If the shape is another, a weight is negative or weights do not sum to one.

    Examples
    --------
    >>> effective_clients([[0.25]] * 4)
    4.0
    """
    return 1 / concentration(client_weights)


def teacher_error(teacher: ArrayLike, reference: ArrayLike) -> float:
    """The teacher error, eps_teach = E_x ||p_agg(x) - p*(x)||^2.

    Parameters
    ----------
    teacher : array-like (N, C) or (S, N, C)
        p_agg, of one draw or of S.
    reference : array-like (N, C)
        p*.

    Returns
    -------
    float
        The error; its mean over several draws.

    Raises
    ------
    TrustmixError
        If shapes do not fit or an entry is not finite.

    Examples
    --------
    >>> teacher_error([[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]])
    0.25
    """
    p, star = to_finite_tensor(teacher, "teacher").double(), to_finite_tensor(reference, "reference").double()
    if p.shape[-2:] != star.shape or star.ndim != 2 or 0 in p.shape:
        raise TrustmixError(
            f"the teacher is {format_shape(p)} and the reference {format_shape(star)}; both are (N, C)."
        )
    return float((p - star).square().sum(-1).mean())


def bias_variance(teachers: ArrayLike, reference: ArrayLike) -> tuple[float, float]:
    """Squared bias and variance of the teacher, given x; their sum is the mean teacher error.

    The variance is unbiased (S - 1 in the denominator), so that with few draws chance does not count as bias.

    Parameters
    ----------
    teachers : array-like (S, N, C)
        p_agg of S draws, S of 2 or more.
    reference : array-like (N, C)
        p*.

    Returns
    -------
    float
        The squared bias, a mean over samples.
    float
        The variance, a mean over samples.

    Raises
    ------
    TrustmixError
        If shapes do not fit, there is one draw only, or an entry is not finite.

    Examples
    --------
    >>> bias, variance = bias_variance([[[0.6, 0.4]], [[0.8, 0.2]]], [[1.0, 0.0]])
    >>> round(bias, 9), round(variance, 9)
    (0.16, 0.04)
    """
    p = to_finite_tensor(teachers, "teachers").double()
    if p.ndim != 3 or len(p) < 2:
        raise TrustmixError(
            f"teachers have the shape {format_shape(p)}; a variance needs (S, N, C) with S of 2 or more."
        )
    variance = float(p.var(0).sum(-1).mean())
    return teacher_error(p, reference) - variance, variance


@dataclass(frozen=True)
class TeacherErrorDecomposition:
    """Lemma 1 on S draws: the measured error, its parts, and the bound.

    error = bias + own + shared + coupling, exactly. With weights that are the same in every draw, as the lemma assumes,
    coupling is 0 and the bound holds for the draws themselves, whatever their number.
    """

    error: float
    """eps_teach, measured."""
    bias: float
    """B_w^2 = E_x ||sum_i w_i E[xi_i]||^2."""
    own: float
    """E_x sum_i w_i^2 E||xi_i - E xi_i||^2: the contribution of each client's own variance."""
    shared: float
    """E_x sum_{i != j} w_i w_j E<xi_i - E xi_i, xi_j - E xi_j>: the contribution of common errors."""
    coupling: float
    """The rest, which is not 0 where weights vary with the draw and depend on the errors."""
    sigma2: float
    """sigma^2, the largest variance of any client on any sample."""
    rho: float
    """rho_c, the largest |covariance| of two clients on any sample, relative to sigma^2."""
    chi: float
    """The concentration of trust."""

    @property
    def variance(self) -> float:
        """The error without the bias."""
        return self.own + self.shared + self.coupling

    @property
    def bound(self) -> float:
        """B_w^2 + sigma^2 (rho_c + (1 - rho_c) chi)."""
        return self.bias + self.sigma2 * (self.rho + (1 - self.rho) * self.chi)


def teacher_error_decomposition(
    predictions: ArrayLike, client_weights: ArrayLike, reference: ArrayLike
) -> TeacherErrorDecomposition:
    """Lemma 1 on repeated draws of the clients' predictions.

    Parameters
    ----------
    predictions : array-like (S, M, N, C)
        q_i(x) of M clients in S draws.
    client_weights : array-like (M, N) or (S, M, N)
        w_i(x), the same for all draws or one set per draw.
    reference : array-like (N, C)
        p*.

    Returns
    -------
    TeacherErrorDecomposition
        The error, its parts and the bound.

    Raises
    ------
    TrustmixError
        If shapes do not fit, an entry is not finite, or weights do not sum to one.

    Examples
    --------
    >>> q = torch.tensor([[[[0.9, 0.1]], [[0.7, 0.3]]], [[[0.9, 0.1]], [[0.5, 0.5]]]])    # S = 2, M = 2, N = 1
    >>> found = teacher_error_decomposition(q, [[0.5], [0.5]], [[1.0, 0.0]])
    >>> found.error <= found.bound, round(found.bias, 4), round(found.variance, 4)
    (True, 0.125, 0.005)
    """
    q, star = to_finite_tensor(predictions, "predictions").double(), to_finite_tensor(reference, "reference").double()
    w = _validate_weights(client_weights)
    if (
        q.ndim != 4
        or q.shape[2:] != star.shape
        or w.shape[-2:] != q.shape[1:3]
        or w.shape[:-2] not in ((), q.shape[:1])
    ):
        raise TrustmixError(
            f"predictions are {format_shape(q)}, weights {format_shape(w)} and the reference {format_shape(star)}; "
            "they must be (S, M, N, C), (M, N) or (S, M, N), and (N, C)."
        )
    xi = q - star
    mean = xi.mean(0)
    centred = xi - mean
    w_each = w if w.ndim == 3 else w.expand(len(q), *w.shape)
    covariance = torch.einsum("sinc,sjnc->nij", centred, centred) / len(q)
    variance = covariance.diagonal(dim1=1, dim2=2)
    sigma2 = float(variance.max())
    between = covariance - torch.diag_embed(variance)
    pairs = torch.einsum("sin,sjn->nij", w_each, w_each) / len(q)
    own = float((pairs.diagonal(dim1=1, dim2=2) * variance).sum(1).mean())
    error = teacher_error(torch.einsum("sin,sinc->snc", w_each, q), star)
    bias = float(torch.einsum("sin,inc->snc", w_each, mean).square().sum(-1).mean())
    shared = float((pairs * between).sum((1, 2)).mean())
    return TeacherErrorDecomposition(
        error=error,
        bias=bias,
        own=own,
        shared=shared,
        coupling=error - bias - own - shared,
        sigma2=sigma2,
        rho=float(between.abs().max()) / sigma2 if sigma2 > 0 else 0.0,
        chi=concentration(w),
    )


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation; equal values share their mean rank.

    Parameters
    ----------
    first, second : sequence of float
        Pairs, two or more.

    Returns
    -------
    float
        From -1 to 1; NaN where all values of one side are the same.

    Raises
    ------
    TrustmixError
        If there are fewer than two pairs or a value without a partner.

    Examples
    --------
    >>> rank_correlation([1.0, 2.0, 3.0], [0.9, 0.5, 0.1])
    -1.0
    """
    if len(first) != len(second) or len(first) < 2:
        raise TrustmixError(f"a rank correlation needs pairs, two or more; got {len(first)} and {len(second)} values.")
    a, b = (_ranks(values) for values in (first, second))
    scale = math.sqrt(float(a.square().sum() * b.square().sum()))
    return round(float((a * b).sum()) / scale, 12) if scale else math.nan


def _ranks(values: Sequence[float]) -> torch.Tensor:
    """Ranks of mean 0."""
    v = torch.tensor(values, dtype=torch.float64)
    rank = (v[:, None] > v).double().sum(1) + (v[:, None] == v).double().sum(1) / 2
    return rank - rank.mean()


def _validate_weights(client_weights: ArrayLike) -> torch.Tensor:
    """Weights as float64 (M, N) or (S, M, N), not negative, summing to one over clients."""
    w = to_finite_tensor(client_weights, "weights").double()
    if w.ndim not in (2, 3) or 0 in w.shape:
        raise TrustmixError(f"weights have the shape {format_shape(w)}; they must be (M, N) or (S, M, N).")
    total = w.sum(-2)
    if bool((w < 0).any()) or bool(((total - 1).abs() > 1e-3).any()):
        raise TrustmixError("weights must not be negative and must sum to one over the clients of each sample.")
    return w

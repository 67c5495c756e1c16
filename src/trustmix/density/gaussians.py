"""The paper's density: a Gaussian mixture on a client's logits (section 3.4 and appendix A.4).

One component per local class, equal weights 1/|C_i|, diagonal covariance, closed form (mean and standard deviation
of each class), no EM:  l_i(x) = log( 1/|C_i| * sum_k N(z_i(x); mu_ik, diag sigma_ik^2) ).
The squared distances come from two matrix products in float64, z^2 W + z V + c, in tiles that fit the cache, never from
an N x K x C temporary.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload

import torch

from trustmix import storage
from trustmix.arrays import A, AnyArray, ArrayLike, ArraySpec, format_shape, to_finite_tensor
from trustmix.density.base import DENSITIES, VARIANCE_FLOOR
from trustmix.errors import TrustmixError

TILE_ROWS = 10_000
"""Rows of logits that are worked on together."""


class ClassGaussians:
    """The density of one client, or of M clients at once.

    Parameters
    ----------
    means : torch.Tensor (K, C) or (M, K, C)
        mu of each component, float64.
    variances : torch.Tensor (K, C) or (M, K, C)
        sigma^2 of each component.
    log_weights : torch.Tensor (K,) or (M, K)
        The logarithm of the weight of each component, -inf where a client has fewer classes than K.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 2, 100)
    >>> logits = rng.normal(size=(100, 3)) + 5 * np.eye(3)[labels]
    >>> density = ClassGaussians.fit(logits, labels)
    >>> seen, unseen = density.log_prob(np.array([[5.0, 0, 0], [0, 0, 9.0]]))
    >>> bool(seen > unseen + 20)
    True
    """

    def __init__(self, means: torch.Tensor, variances: torch.Tensor, log_weights: torch.Tensor) -> None:
        self.means = means
        self.variances = variances
        self.log_weights = log_weights

    @classmethod
    def fit(cls, logits: ArrayLike, labels: ArrayLike, *, floor: float = VARIANCE_FLOOR) -> "ClassGaussians":
        """Fit on the calibration samples of one client, or of several clients together.

        Parameters
        ----------
        logits : array-like (n, C), (M, n, C), or a list of M arrays (n_i, C)
            The logits of the calibration samples. A list is for clients with different numbers of samples.
        labels : array-like (n,), (M, n), or a list of M arrays (n_i,)
            Their classes. The class sets of clients may differ in any way.
        floor : float
            The smallest variance, relative to the mean variance of a client's calibration logits.

        Returns
        -------
        ClassGaussians
            The fitted density.

        Raises
        ------
        TrustmixError
            If a client has no samples, or not one label for each, or an entry is not finite.
        """
        clients, single = _clients(logits, "logits", 2)
        all_labels, _ = _clients(labels, "labels", 1)
        if len(clients) != len(all_labels):
            raise TrustmixError(f"logits are of {len(clients)} clients and labels of {len(all_labels)}.")
        padded = [_one_hot(z, y) for z, y in zip(clients, all_labels, strict=True)]
        size, width = max(len(h) for h in padded), max(h.shape[1] for h in padded)
        z = torch.stack([torch.nn.functional.pad(z, (0, 0, 0, size - len(z))) for z in clients])
        members = torch.stack([_pad(h, size, width) for h in padded])
        means, variances, log_weights = _moments(z, members, floor)
        return cls(means[0], variances[0], log_weights[0]) if single else cls(means, variances, log_weights)

    @overload
    def log_prob(self, logits: A) -> A: ...

    @overload
    def log_prob(self, logits: Sequence[A]) -> A: ...

    def log_prob(self, logits: AnyArray | Sequence[AnyArray]) -> AnyArray:
        """The score l(x) of each row.

        Parameters
        ----------
        logits : array (N, C), or (M, N, C) for a density of M clients, or a list of M arrays (N, C)
            NumPy arrays or torch tensors.

        Returns
        -------
        array (N,) or (M, N)
            Of the library and device of `logits`. At least float32: log-densities of hundreds of nats are common and
            overflow half precision.

        Raises
        ------
        TrustmixError
            If the shape is another or an entry is not finite.
        """
        of_tensors = isinstance(logits, Sequence) and len(logits) > 0 and isinstance(logits[0], torch.Tensor)
        stacked = torch.stack([torch.as_tensor(one) for one in logits]) if of_tensors else logits
        z = to_finite_tensor(stacked, "logits")
        wanted = (*self.means.shape[:-2], z.shape[-2] if z.ndim > 1 else "N", self.means.shape[-1])
        if tuple(z.shape) != wanted:
            raise TrustmixError(f"logits have the shape {format_shape(z)}; this density takes {wanted}.")
        scores = _log_likelihood(z.cpu(), self.means, self.variances, self.log_weights)
        restored: AnyArray = ArraySpec.of(stacked).at_least_float32().restore(scores)
        return restored

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The density as named tensors; `from_state_dict` takes them back."""
        return {"means": self.means, "variances": self.variances, "log_weights": self.log_weights}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, torch.Tensor]) -> "ClassGaussians":
        """Rebuild a density from the named tensors of `state_dict`, which may come from outside.

        Parameters
        ----------
        state : mapping of str to torch.Tensor
            `means`, `variances` and `log_weights`; other names are ignored.

        Returns
        -------
        ClassGaussians
            The density.

        Raises
        ------
        TrustmixError
            If a tensor is missing, shapes do not fit, a variance is not positive or weights do not sum to one.
        """
        missing = {"means", "variances", "log_weights"} - set(state)
        if missing:
            raise TrustmixError(f"a saved density lacks {', '.join(sorted(missing))}.")
        means, variances = (to_finite_tensor(state[name], name).to(torch.float64) for name in ("means", "variances"))
        log_weights = state["log_weights"].to(torch.float64)
        if means.ndim not in (2, 3) or variances.shape != means.shape or log_weights.shape != means.shape[:-1]:
            raise TrustmixError(f"a saved density has means of shape {format_shape(means)} and other shapes beside it.")
        total = torch.logsumexp(log_weights, -1)
        if not bool((variances > 0).all()) or not bool((total.abs() < 1e-3).all()):
            raise TrustmixError("a saved density needs positive variances and weights that sum to one.")
        return cls(means, variances, log_weights)

    def save(self, path: str | Path) -> None:
        """Write the density to a safetensors file."""
        storage.write_tensors(Path(path), self.state_dict())

    @classmethod
    def load(cls, path: str | Path) -> "ClassGaussians":
        """Read a density that `save` has written."""
        return cls.from_state_dict(storage.read_tensors(Path(path))[0])


DENSITIES.register("gaussians")(ClassGaussians)


def _clients(array: ArrayLike, name: str, ndim: int) -> tuple[list[torch.Tensor], bool]:
    """The array as one tensor per client, and whether it is of a single client."""
    if isinstance(array, Sequence) and len(array) and getattr(array[0], "ndim", 0) == ndim:
        clients = [to_finite_tensor(one, f"{name}[{index}]").cpu().to(torch.float64) for index, one in enumerate(array)]
        single = False
    else:
        tensor = to_finite_tensor(array, name).cpu().to(torch.float64)
        single = tensor.ndim == ndim
        clients = [tensor] if single else list(tensor)
    for index, client in enumerate(clients):
        if client.ndim != ndim or client.shape[0] == 0:
            where = name if single else f"{name}[{index}]"
            raise TrustmixError(
                f"{where} has the shape {format_shape(client)}; it takes {'(n, C)' if ndim == 2 else '(n,)'}, n > 0."
            )
    return clients, single


def _one_hot(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(n, K) membership of one client's samples in its own classes."""
    if len(z) != len(y):
        raise TrustmixError(f"{len(z)} rows of logits but {len(y)} labels; a client needs one label a row.")
    classes, index = torch.unique(y, return_inverse=True)
    return torch.nn.functional.one_hot(index, len(classes)).to(torch.float64)


def _pad(members: torch.Tensor, size: int, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(members, (0, width - members.shape[1], 0, size - members.shape[0]))


def _moments(z: torch.Tensor, members: torch.Tensor, floor: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean and variance of each class; z (M, n, C), members (M, n, K) with zero rows where a client is shorter."""
    counts = members.sum(1)
    present = counts > 0
    share = members.transpose(1, 2) / counts.clamp_min(1).unsqueeze(-1)
    means = share @ z
    variances = share @ (z - members @ means).square()
    used = members.sum(2, keepdim=True)
    size = used.sum(1, keepdim=True)
    centre = (used * z).sum(1, keepdim=True) / size
    spread = ((used * (z - centre)).square().sum(1, keepdim=True) / size).mean(-1, keepdim=True)
    smallest = floor * torch.where(spread > 0, spread, torch.ones_like(spread))
    weights = present.to(torch.float64) / present.sum(-1, keepdim=True)
    return means, torch.maximum(variances, smallest), weights.log()


def _log_likelihood(
    z: torch.Tensor, means: torch.Tensor, variances: torch.Tensor, log_weights: torch.Tensor
) -> torch.Tensor:
    """(..., N) from z (..., N, C). Distances are taken from the mixture's centre, which spares cancellation."""
    if z.ndim == 2:
        return _log_likelihood(z[None], means[None], variances[None], log_weights[None])[0]
    centre = means.mean(-2, keepdim=True)
    means = means - centre
    precision = variances.reciprocal()
    constant = log_weights - (means.square() * precision + variances.log() + math.log(2 * math.pi)).sum(-1) / 2
    square, linear = -precision / 2, means * precision
    scores = torch.empty(z.shape[:2], dtype=torch.float64)
    for some, rows in _tiles(*z.shape[:2]):
        # samples along the last axis, y (m, C, n) and terms (m, K, n), so that every sum adds a few long vectors
        part = z[some, rows].mT
        y = torch.empty(part.shape, dtype=torch.float64).copy_(part).sub_(centre[some].mT)
        terms = torch.baddbmm(constant[some].unsqueeze(2), linear[some], y)
        terms.baddbmm_(square[some], y.square_())
        peak = terms.amax(1)
        terms -= peak.unsqueeze(1)
        scores[some, rows] = terms.exp_().sum(1).log_().add_(peak)
    return scores


def _tiles(clients: int, samples: int) -> Iterator[tuple[slice, slice]]:
    """Slices of clients and rows that cover everything, each small enough for the cache."""
    rows = max(1, min(samples, TILE_ROWS))
    together = TILE_ROWS // rows
    for first in range(0, clients, together):
        for row in range(0, samples, rows):
            yield slice(first, first + together), slice(row, row + rows)

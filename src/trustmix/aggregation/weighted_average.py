"""The teacher: p_agg(x) = sum_i w_i(x) q_i(x) with w_i(x) = softmax_i(tau * l_i(x)) (sections 3.2 and 3.4).

One rule, one number: tau = 0 is AVG, 1 is UWA, 0.25 is sUWA, infinity picks the most confident client.
The sum is folded one upload at a time in O(N*C) memory, whatever the number of clients, by the running maximum of
the scores; two folds merge into the fold of all their uploads, so servers may form a tree.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import torch

from trustmix import storage
from trustmix.arrays import A, ArraySpec, format_shape, to_finite_tensor, to_float_tensor
from trustmix.errors import TrustmixError

LARGEST_SCORE = 1e300
"""Scores are clamped to this: -inf ('never seen') then differs from any other score by a finite amount."""


@dataclass(frozen=True)
class Teacher(Generic[A]):
    """The mixed soft labels, and how concentrated the trust behind each of them is."""

    probabilities: A
    """(N, C): p_agg."""
    concentration: A
    """(N,): chi(x) = sum_i w_i(x)^2, between 1/M (everybody alike) and 1 (one client alone)."""
    clients: int
    """M: how many uploads are in it."""

    @property
    def effective_clients(self) -> A:
        """(N,): 1/chi(x), the number of equally trusted clients that would be as concentrated."""
        return 1 / self.concentration


def mix(predictions: Any, scores: Any = None, *, tau: float = 0.25) -> Teacher[Any]:
    """Mix the clients' predictions, sample by sample, by their scores.

    predictions: (M, N, C), probabilities; scores: (M, N), log-likelihoods, or None where all are trusted alike.
    Both may also be lists of one array a client.

    >>> import numpy as np
    >>> q = np.array([[[0.9, 0.1]], [[0.2, 0.8]]])
    >>> teacher = mix(q, np.array([[0.0], [-50.0]]), tau=1.0)
    >>> teacher.probabilities.round(6).tolist(), teacher.effective_clients.round(6).tolist()
    ([[0.9, 0.1]], [1.0])
    >>> mix(q).probabilities.round(6).tolist()
    [[0.55, 0.45]]
    """
    if scores is not None and len(predictions) != len(scores):
        raise TrustmixError(f"predictions are of {len(predictions)} clients and scores of {len(scores)}.")
    accumulator = Accumulator(tau)
    for index, client in enumerate(predictions):
        accumulator.add(client, None if scores is None else scores[index], name=f"client {index}")
    return accumulator.finish()


class Accumulator:
    """A teacher in the making: a value that can be added to, merged, saved and resumed.

    >>> import numpy as np
    >>> edge, centre = Accumulator(tau=0), Accumulator(tau=0)
    >>> edge.add(np.array([[1.0, 0.0]])); centre.add(np.array([[0.0, 1.0]]))
    >>> centre.merge(edge)
    >>> centre.finish().probabilities.tolist()
    [[0.5, 0.5]]
    """

    def __init__(self, tau: float = 0.25) -> None:
        if not tau >= 0:
            raise TrustmixError(f"tau is {tau}; it must be 0 (average), positive, or infinite (most confident).")
        self.tau = float(tau)
        self.clients = 0
        self._kind: ArraySpec | None = None
        self._parts: tuple[torch.Tensor, ...] | None = None

    def add(
        self,
        predictions: Any,
        scores: Any = None,
        *,
        name: str = "upload",
        weight: float = 1.0,
        **told: Any,  # noqa: ARG002
    ) -> None:
        """Fold in one client: predictions q (N, C) on the simplex, scores l (N,). `name` is for the error messages.

        A client of weight 2 counts as two. What a client tells of its label set does not count here. A refused upload
        leaves the accumulator as it was.
        """
        q = validate_predictions(predictions, name).cpu()
        score = torch.zeros(len(q), dtype=torch.float64) if scores is None else validate_scores(scores, len(q), name)
        whole = torch.full_like(score, weight)
        self._fold(q.to(torch.float64), score, whole, whole.square(), name, times=weight)
        self.clients += 1
        self._kind = self._kind or ArraySpec.of(predictions)

    def merge(self, other: "Accumulator") -> None:
        """Fold in everything another accumulator of the same tau has seen. The other stays as it is."""
        if other.tau != self.tau:
            raise TrustmixError(f"cannot merge an accumulator of tau = {other.tau} into one of tau = {self.tau}.")
        if other._parts is not None:
            peak, weight, square, mixed = other._parts
            self._fold(mixed, peak, weight, square, "the merged accumulator")
            self.clients += other.clients
            self._kind = self._kind or other._kind

    def finish(self) -> Teacher[Any]:
        """The teacher of everything added so far; adding may go on afterwards."""
        if self._parts is None or self._kind is None:
            raise TrustmixError("there is nothing to mix: no upload has been added.")
        _, weight, square, mixed = self._parts
        teacher = mixed / weight.unsqueeze(-1)
        chi = square / weight.square()
        return Teacher(self._kind.restore(teacher), self._kind.restore(chi), self.clients)

    def shares(self, scores: Any) -> torch.Tensor:
        """The weights w_i(x) = softmax_i(tau * l_i(x)), (M, N), that clients of the scores l (M, N) have in a teacher.

        >>> Accumulator(tau=1.0).shares([[0.0, 0.0], [0.0, -50.0]]).round(decimals=3).tolist()
        [[0.5, 1.0], [0.5, 0.0]]
        """
        score = to_float_tensor(scores, "scores").cpu().to(torch.float64).clamp(-LARGEST_SCORE, LARGEST_SCORE)
        weight = _shrink(score - score.amax(0), self.tau)
        return weight / weight.sum(0)

    def _fold(
        self,
        mixed: torch.Tensor,
        peak: torch.Tensor,
        weight: torch.Tensor,
        square: torch.Tensor,
        name: str,
        times: float = 1.0,
    ) -> None:
        """Add sums that are relative to exp(tau * peak), `mixed` so many times, to ours, all at the larger peak."""
        if self._parts is None:
            # copies: the caller may reuse its buffers, and from now on these are changed in place
            self._parts = peak.clone(), weight.clone(), square.clone(), mixed * times
            return
        our_peak, our_weight, our_square, our_mixed = self._parts
        if mixed.shape != our_mixed.shape:
            wanted = format_shape(our_mixed)
            raise TrustmixError(f"{name}: predictions have the shape {format_shape(mixed)}; those before had {wanted}.")
        top = torch.maximum(our_peak, peak)
        ours, theirs = _shrink(our_peak - top, self.tau), _shrink(peak - top, self.tau)
        our_peak.copy_(top)
        our_weight.mul_(ours).add_(weight * theirs)
        our_mixed.mul_(ours.unsqueeze(-1)).addcmul_(mixed, theirs.unsqueeze(-1), value=times)
        our_square.mul_(ours.square_()).add_(square * theirs.square_())

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The accumulator as named tensors and JSON-able metadata."""
        kind = self._kind or ArraySpec("numpy", torch.float64)
        metadata = {
            "tau": "inf" if math.isinf(self.tau) else self.tau,
            "clients": self.clients,
            "package": kind.package,
            "dtype": str(kind.dtype).removeprefix("torch."),
        }
        return dict(zip(PARTS, self._parts or (), strict=False)), metadata

    @classmethod
    def from_state(cls, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any]) -> "Accumulator":
        """The accumulator of `state`."""
        try:
            accumulator = cls(float(metadata["tau"]))
            accumulator.clients = int(metadata["clients"])
            if accumulator.clients:
                accumulator._parts = tuple(tensors[name].clone() for name in PARTS)
                accumulator._kind = ArraySpec(metadata["package"], getattr(torch, metadata["dtype"]))
        except (KeyError, AttributeError, TypeError) as error:
            raise TrustmixError(f"this is not a saved accumulator: {error} is missing or wrong.") from error
        return accumulator

    def save(self, path: str | Path) -> None:
        """Write the accumulator to a safetensors file."""
        storage.write_tensors(Path(path), *self.state())

    @classmethod
    def load(cls, path: str | Path) -> "Accumulator":
        """Read an accumulator written by `save`."""
        return cls.from_state(*storage.read_tensors(Path(path)))


PARTS = ("peak", "weight", "square", "mixed")
"""The running maximum of l, and, relative to it, sum w, sum w^2 (N,) and sum w q (N, C)."""


def _shrink(below: torch.Tensor, tau: float) -> torch.Tensor:
    """exp(tau * below) for below <= 0, where exp(inf * 0) counts as 1: the most confident client keeps its say."""
    return torch.where(below == 0, torch.ones_like(below), torch.exp(tau * below))


def validate_predictions(predictions: Any, name: str) -> torch.Tensor:
    """Predictions as a tensor (N, C), N and C > 0, each row on the simplex up to the type's rounding."""
    q = to_float_tensor(predictions, f"{name}: predictions")
    if q.ndim != 2 or q.numel() == 0:
        raise TrustmixError(
            f"{name}: predictions have the shape {format_shape(q)}; they must be (N, C), none of them 0."
        )
    tolerance = 2e-2 if q.dtype in (torch.float16, torch.bfloat16) else 1e-3
    on = (q.sum(1, dtype=torch.promote_types(q.dtype, torch.float32)) - 1).abs() <= tolerance  # false for NaN too
    if bool(on.all()) and float(q.min()) >= 0:
        return q
    to_finite_tensor(q, f"{name}: predictions")
    row = int(torch.nonzero(~on | (q < 0).any(1))[0])
    raise TrustmixError(
        f"{name}: row {row} of the predictions sums to {q[row].sum():.4g}, smallest entry {q[row].min():.4g}; "
        "they must be probabilities (the softmax of the logits)."
    )


def validate_scores(scores: Any, samples: int, name: str) -> torch.Tensor:
    """Scores as a float64 tensor (N,), clamped to what can be subtracted; NaN is refused."""
    score = to_float_tensor(scores, f"{name}: scores").cpu().to(torch.float64)
    if score.shape != (samples,):
        raise TrustmixError(
            f"{name}: scores have the shape {format_shape(score)}; they must be ({samples},), one a sample."
        )
    if bool(score.isnan().any()):
        raise TrustmixError(
            f"{name}: the score of sample {int(score.isnan().nonzero()[0])} is nan; it must be a number."
        )
    return score.clamp(-LARGEST_SCORE, LARGEST_SCORE)

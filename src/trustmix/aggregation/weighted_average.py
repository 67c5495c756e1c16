"""The teacher: p_agg(x) = sum_i w_i(x) q_i(x) with w_i(x) = softmax_i(tau * l_i(x)) (sections 3.2 and 3.4).

One rule, one number: tau = 0 is AVG, 1 is UWA, 0.25 is sUWA, infinity picks the most confident client.
The sum is folded one upload at a time in O(N*C) memory, whatever the number of clients, by the running maximum of
the scores; two folds merge into the fold of all their uploads, so servers may form a tree.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Self

import torch

from trustmix.aggregation.base import Aggregator, StateDict
from trustmix.aggregation.client_weights import client_weights, shrink
from trustmix.aggregation.sparse import SparsePredictions
from trustmix.aggregation.upload import Upload
from trustmix.errors import TrustmixError

PARTS = ("peak", "weight", "square", "mixed")
"""The running maximum of l, and, relative to it, sum w, sum w^2 (N,) and sum w q (N, C)."""


class Accumulator(Aggregator):
    """The weighted average of predictions, folded as they arrive: a value that can be merged, saved and resumed.

    Parameters
    ----------
    tau
        The temperature, 0 or more; infinity picks the most confident client.

    >>> import numpy as np
    >>> edge, centre = Accumulator(tau=0), Accumulator(tau=0)
    >>> edge.update(np.array([[1.0, 0.0]])); centre.update(np.array([[0.0, 1.0]]))
    >>> centre.merge(edge)
    >>> centre.compute().probabilities.tolist()
    [[0.5, 0.5]]
    """

    def __init__(self, tau: float = 0.25) -> None:
        super().__init__()
        if not tau >= 0:
            raise TrustmixError(f"tau is {tau}; it must be 0 (average), positive, or infinite (most confident).")
        self.tau = float(tau)
        self._parts: tuple[torch.Tensor, ...] | None = None
        self._common: torch.Tensor | None = None
        """(N,): what every class of a sample has beside `mixed`, of sparse predictions; relative to the peak, too."""
        self._tracked_scores: dict[str, tuple[torch.Tensor, float]] = {}

    def fold(self, upload: Upload) -> None:
        """Add w and w q at the running maximum of the scores; without scores, l counts as 0."""
        rows, weight = upload.sparse, upload.weight
        score = torch.zeros(upload.shape[0], dtype=torch.float64) if upload.scores is None else upload.scores
        q = upload.predictions.to(torch.float64) if rows is None else rows
        self._add(q, score, weight, weight**2, times=weight)
        if self.tracked is not None:
            self._tracked_scores[upload.client] = score[self.tracked].clone(), weight

    def estimate(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum w q / sum w, and sum w^2 / (sum w)^2."""
        _, weight, square, mixed = self._filled()
        return mixed / weight.unsqueeze(-1), square / weight.square()

    def make_part(self, clients: Sequence[str]) -> Self:  # noqa: ARG002 - it remembers no clients
        """An empty accumulator to fold these clients' uploads elsewhere, whose result is merged into this one."""
        part = copy.copy(self)
        part.reset()
        return part

    def merge(self, other: Self) -> None:
        """Fold in everything that another accumulator of the same temperature has folded."""
        if isinstance(other, Accumulator) and other.tau != self.tau:
            raise TrustmixError(f"cannot merge an accumulator of tau = {other.tau} into one of tau = {self.tau}.")
        super().merge(other)

    def merge_state(self, other: Self) -> None:
        """Add the other's sums at the larger maximum."""
        peak, weight, square, mixed = other._filled()
        self._add(mixed, peak, weight, square)
        self._tracked_scores |= other._tracked_scores

    def _filled(self) -> tuple[torch.Tensor, ...]:
        """The sums, with what the classes of a sample have in common spread over them."""
        if self._parts is None:
            raise TrustmixError("the accumulator is empty.")
        if self._common is not None:
            self._parts[3].add_(self._common.unsqueeze(1)).clamp_min_(0)  # below 0 by the rounding of a difference
            self._common = None
        return self._parts

    def _add(
        self,
        mixed: torch.Tensor | SparsePredictions,
        peak: torch.Tensor,
        weight: torch.Tensor | float,
        square: torch.Tensor | float,
        times: float = 1.0,
    ) -> None:
        """Add sums that are relative to exp(tau * peak), `mixed` so many times, to ours, all at the larger peak."""
        if self._parts is None:
            # copies: the caller may reuse its buffers, and from now on these are changed in place
            nothing = torch.zeros_like(peak)
            self._parts = peak.clone(), nothing, nothing.clone(), torch.zeros(mixed.shape, dtype=torch.float64)
        self._raise_peak(peak)
        our_peak, our_weight, our_square, our_mixed = self._parts
        theirs = shrink(peak - our_peak, self.tau)
        our_weight.add_(theirs * weight)
        our_square.add_(theirs.square() * square)
        if isinstance(mixed, torch.Tensor):
            our_mixed.addcmul_(mixed, theirs.unsqueeze(1), value=times)
        else:
            theirs, rest = times * theirs, mixed.rest.to(torch.float64)
            our_mixed.scatter_add_(1, mixed.classes, (mixed.values - rest.unsqueeze(1)) * theirs.unsqueeze(1))
            rest = rest * theirs
            self._common = rest if self._common is None else self._common.add_(rest)

    def _raise_peak(self, peak: torch.Tensor) -> None:
        """Make our sums relative to a larger peak, in the samples where it is larger: fewer with every upload."""
        if self._parts is None:
            return
        our_peak = self._parts[0]
        rises = (peak > our_peak).nonzero().squeeze(1)
        if len(rises) == 0:
            return
        ours = shrink(our_peak[rises] - peak[rises], self.tau)
        our_peak[rises] = peak[rises]
        for total, factor in zip(self._parts[1:], (ours, ours.square(), ours.unsqueeze(1)), strict=True):
            total[rises] *= factor
        if self._common is not None:
            self._common[rises] *= ours

    def client_weights(self) -> Mapping[str, torch.Tensor] | None:
        """softmax_i(tau * l_i(x)) times the uploads' weights, in the tracked samples."""
        if not self._tracked_scores:
            return None
        scores, weights = zip(*self._tracked_scores.values(), strict=True)
        shares = client_weights(torch.stack(scores), self.tau) * torch.tensor(weights, dtype=torch.float64)[:, None]
        return dict(zip(self._tracked_scores, shares / shares.sum(0), strict=True))

    def reset(self) -> None:
        """Forget the sums."""
        super().reset()
        self._parts = self._common = None
        self._tracked_scores = {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The temperature and the sums."""
        if self._parts is None:
            return super().state_dict()
        tau = {"tau": torch.tensor(self.tau, dtype=torch.float64)}
        return {**super().state_dict(), **tau, **dict(zip(PARTS, self._filled(), strict=True))}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over sums of the same temperature."""
        if not state:
            super().load_state_dict(state)
            self._parts, self._common, self._tracked_scores = None, None, {}
            return
        try:
            tau, parts = float(state["tau"]), tuple(state[name].clone() for name in PARTS)
        except KeyError as error:
            raise TrustmixError(f"this is not the state of an accumulator: {error} is missing.") from error
        if tau != self.tau:
            raise TrustmixError(f"the state is of tau = {tau}, and this accumulator has tau = {self.tau}.")
        super().load_state_dict(state)
        self._parts, self._common, self._tracked_scores = parts, None, {}

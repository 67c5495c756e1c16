"""The rule `trust` under guard: no client moves a teacher further than a few honest ones would let it.

All holders of a class estimate the same number, p(c|x) = r_i q_i(c) / (C pi_i(c)). Under guard the teacher of a class
is not their mean but a robust location, so that what one client can do is bounded whatever it sends:

- *location*: the weighted median over clients, plus the mean of the differences to it, each clipped to `CLIP`. Fewer
  than half of the votes for a class cannot move its median beyond what honest clients say.
- *votes*: a client's vote for a class is the share pi_i(c) of it in its data, so that all its votes sum to 1: one that
  claims every class has a small vote for each. No vote is larger than the largest one of the median client.
- *precision*: estimates of one number count by the inverse of their variance. A client's is the square of its mean
  distance from the location, over the classes it votes for; those that are nearer than the median client count alike.

All uploads of a round are held until it is finished: M * N * C numbers.
"""

from typing import Self

import torch

from trustmix.aggregation.base import Aggregator, StateDict, Upload, copy_upload, pack_uploads, unpack_uploads
from trustmix.aggregation.trust import FLOOR, ClassShares, predictions_within
from trustmix.errors import TrustmixError

CLIP = 0.1
"""How far a client's estimate can be from the median and still be averaged as it is."""
N_ITERATIONS = 2
"""How often the location is found anew with the weights that follow from it."""
MIN_VOTERS = 2.5
"""Classes with fewer effective voters do not count in distances: of two clients none is the majority."""
REPORT_THRESHOLD = 0.5
"""A client whose weight falls below this is reported."""
TILE = 2**23
"""Numbers of all clients' estimates that are sorted at a time."""


class RobustTrust(Aggregator):
    """Trust by robust locations.

    >>> honest, lie = [[0.9, 0.1], [0.1, 0.9], [0.8, 0.2], [0.2, 0.8]], [[0.0, 1.0], [1.0, 0.0]] * 2
    >>> rule = RobustTrust()
    >>> for _ in range(4):
    ...     rule.update(honest, [0.0] * 4)
    >>> rule.update(Upload.from_arrays("liar", lie, [0.0] * 4))
    >>> rule.compute().probabilities.argmax(1).tolist(), list(rule.report())
    ([0, 1, 0, 1], ['liar'])
    """

    def __init__(self) -> None:
        super().__init__()
        self.shares = ClassShares()
        self._uploads: list[Upload] = []
        self._report: dict[str, dict[str, float]] = {}

    def validate(self, upload: Upload) -> None:
        """Refuse a client's second upload of a round."""
        super().validate(upload)
        if any(earlier.client == upload.client for earlier in self._uploads):
            raise TrustmixError(f"client {upload.client}: a client has one upload a round, and this is its second.")

    def fold(self, upload: Upload) -> None:
        """Hold the upload until all of them are there."""
        self._uploads.append(copy_upload(upload))

    def estimate(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The robust location over clients, normalised; chi of the clients' ratios."""
        ratios, estimates, shares = zip(
            *(class_estimates(upload, self.shares) for upload in self._uploads), strict=True
        )
        ratio, weights = torch.stack(ratios), torch.tensor([u.weight for u in self._uploads], dtype=torch.float64)
        votes = bounded_votes(torch.stack(shares)) * weights.unsqueeze(1)
        location, precision = robust_location(torch.stack(estimates), votes)
        self._report = {
            upload.client: {"weight": round(weight, 3)}
            for upload, weight in zip(self._uploads, precision.tolist(), strict=True)
            if weight < REPORT_THRESHOLD
        }
        trust = ratio * (weights * precision).unsqueeze(1)
        for upload, one in zip(self._uploads, trust, strict=True):
            self.keep_weights(upload.client, one)
        teacher = location.clamp_min(0) + FLOOR
        return teacher / teacher.sum(1, keepdim=True), trust.square().sum(0) / trust.sum(0).square()

    def report(self) -> dict[str, dict[str, float]]:
        """The clients that the guard weighed down, and the weight that they kept."""
        return self._report

    def merge_state(self, other: Self) -> None:
        """Hold the other's uploads too."""
        for upload in other._uploads:
            self.validate(upload)
        self._uploads += other._uploads
        self.shares.merge(other.shares)

    def reset(self) -> None:
        """Forget the uploads."""
        super().reset()
        self._uploads, self._report = [], {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The uploads that are held, and the shares of classes that are remembered over rounds."""
        held = pack_uploads(self._uploads) if self._uploads else {}
        return {**super().state_dict(), **held, **self.shares.state_dict()}

    def load_state_dict(self, state: StateDict) -> None:
        """Hold the uploads of a state, and remember what it remembers."""
        super().load_state_dict(state)
        self.shares.load_state_dict(state)
        self._uploads, self._report = unpack_uploads(state) if "clients" in state else [], {}


def class_estimates(upload: Upload, known: ClassShares) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a client says of each class.

    Parameters
    ----------
    upload
        The upload of one client.
    known
        What is known of the clients' classes.

    Returns
    -------
    tuple of torch.Tensor
        Its ratio r (N,), its estimates (N, C) of p(c|x), float32, at most 1, and the shares pi (C,) of its classes.

    >>> upload = Upload.from_arrays("north", [[0.9, 0.1, 0.0], [0.1, 0.9, 0.0]], class_counts=[1, 1, 0])
    >>> class_estimates(upload, ClassShares())[1].tolist()[0]  # with r = 1, what it does not hold is the rest
    [0.6000000238418579, 0.06666667014360428, 0.0]
    """
    ratio, shares = known.ratio_and_shares(upload)
    q = predictions_within(upload, shares)
    scale = torch.where(shares > 0, 1 / (q.shape[1] * shares), 0.0)
    return ratio, (q * ratio.unsqueeze(1) * scale).clamp(max=1).to(torch.float32), shares


def bounded_votes(shares: torch.Tensor) -> torch.Tensor:
    """The votes (M, C) of clients with these shares of classes (M, C): none above the median client's largest.

    >>> bounded_votes(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])).tolist()
    [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.0]]
    """
    return shares.clamp(max=float(shares.amax(1).median()))


def robust_location(estimates: torch.Tensor, votes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The location of the clients' estimates, weighed by votes and by how near they are to it.

    Parameters
    ----------
    estimates
        (M, N, C).
    votes
        (M, C), not negative.

    Returns
    -------
    tuple of torch.Tensor
        The location (N, C), float64, and the precision (M,) of clients, at most 1.
    """
    clients, _, classes = estimates.shape
    rows = max(1, TILE // (clients * classes))
    voters = votes.sum(0).square() / votes.square().sum(0).clamp_min(torch.finfo(votes.dtype).tiny)
    counted = votes * (voters >= MIN_VOTERS)
    precision = torch.ones(clients, dtype=torch.float64)
    for iteration in range(N_ITERATIONS + 1):
        weights = votes * precision.unsqueeze(1)
        tiles, distance = [], torch.zeros(clients, classes, dtype=torch.float64)
        for tile in torch.split(estimates, rows, 1):
            location = clipped_mean(tile, weights)
            tiles.append(location)
            distance += (tile - location).abs().sum(1)
        if iteration < N_ITERATIONS:
            precision = _precision((distance * counted).sum(1) / counted.sum(1), counted.sum(1) > 0)
    return torch.cat(tiles), precision


def _precision(distance: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """(M,): the inverse square of each distance, relative to the median one, at most 1; 1 where it is not known."""
    if not bool(known.any()):
        return torch.ones_like(distance)
    median = distance[known].median().clamp_min(torch.finfo(distance.dtype).tiny)
    return torch.where(known, (median / distance.clamp_min(median)).square(), torch.ones_like(distance))


def clipped_mean(estimates: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted median over clients plus the weighted mean of the differences to it, clipped.

    Parameters
    ----------
    estimates
        (M, N, C).
    weights
        (M, C), not negative.

    Returns
    -------
    torch.Tensor
        (N, C), float64; 0 for a class without weights.

    >>> three = torch.tensor([0.4, 0.5, 9.0]).reshape(3, 1, 1)
    >>> round(float(clipped_mean(three, torch.ones(3, 1))), 6)
    0.5
    """
    ordered, place = estimates.sort(0)
    spread = weights.to(torch.float64).unsqueeze(1).expand(estimates.shape)
    below = spread.gather(0, place).cumsum(0)
    total = below[-1]
    tolerance = 1e-9 * total
    lower, upper = ((below >= total / 2 + side * tolerance).to(torch.int8).argmax(0) for side in (-1, 1))
    median = (ordered.gather(0, lower.unsqueeze(0)) + ordered.gather(0, upper.unsqueeze(0))).squeeze(0) / 2
    clipped = ((estimates - median).clamp(-CLIP, CLIP) * spread).sum(0)
    return torch.where(total > 0, median + clipped / total.clamp_min(torch.finfo(torch.float64).tiny), 0.0)

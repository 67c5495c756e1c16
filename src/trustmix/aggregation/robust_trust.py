"""The rule `trust` under guard: no client moves a teacher further than a few honest ones would let it.

All holders of a class estimate the same number, p(c|x) = r_i q_i(c) / (C pi_i(c)). Under guard the teacher of a class
is not their mean but a robust location, so that what one client can do is bounded whatever it sends:

- *location*: the weighted median over clients, plus the mean of the differences to it, each clipped to `CLIP`. Fewer
  than half of the votes for a class cannot move its median beyond what honest clients say.
- *votes*: a client's vote for a class is the share pi_i(c) of it in its data, so that all its votes sum to 1: one that
  claims every class has a small vote for each. No vote is larger than the largest one of the median client.
- *precision*: estimates of one number count by the inverse of their variance. A client's is the square of its mean
  distance from the location, over the classes it votes for; those that are nearer than the median client count alike.

What clients say is read several times from a `Spool`, a few samples at a time: memory does not grow with the number of
clients. With more than `MAX_VOTERS` holders of a class its median is that of so many, drawn at random, and with more
than `MAX_SAMPLES` public samples a client's distance is its mean over so many. The clipped mean is always of all.
"""

import hashlib
import json
from array import array
from collections.abc import Iterator
from typing import Self

import numpy as np
import torch

from trustmix.aggregation.base import Aggregator, StateDict, Upload
from trustmix.aggregation.spool import Spool
from trustmix.aggregation.trust import FLOOR, ClassShares
from trustmix.arrays import tensor_to_text, text_to_tensor
from trustmix.errors import TrustmixError
from trustmix.seeds import numpy_generator

CLIP = 0.1
"""How far a client's estimate can be from the median and still be averaged as it is."""
N_ITERATIONS = 2
"""How often the location is found anew with the weights that follow from it."""
MIN_VOTERS = 2.5
"""Classes with fewer effective voters do not count in distances: of two clients none is the majority."""
REPORT_THRESHOLD = 0.5
"""A client whose weight falls below this is reported."""
MAX_VOTERS = 1000
"""A median is that of at most so many holders of a class."""
MAX_SAMPLES = 8192
"""A distance is the mean over at most so many public samples."""
TILE = 2**17
"""Numbers of all clients' estimates that are looked at together; they and what is made of them fit the cache."""


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
        self._clients: dict[str, float] = {}
        self._held = array("d")
        self._estimates, self._ratios = Spool(torch.float32), Spool(torch.float64)
        self._report: dict[str, dict[str, float]] = {}

    def validate(self, upload: Upload) -> None:
        """Refuse a client's second upload of a round."""
        super().validate(upload)
        self._refuse_second(upload.client)

    def _refuse_second(self, client: str) -> None:
        if client in self._clients:
            raise TrustmixError(f"client {client}: a client has one upload a round, and this is its second.")

    def fold(self, upload: Upload) -> None:
        """Keep the client's ratio, its shares of classes, and its estimates of the classes that it holds."""
        ratio, estimates, shares = class_estimates(upload, self.shares)
        self._estimates.append(estimates)
        self._ratios.append(ratio.unsqueeze(1))
        self._held.frombytes(shares.numpy().tobytes())
        self._clients[upload.client] = upload.weight

    def estimate(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The robust location over clients, normalised; chi of the clients' ratios."""
        weights = torch.tensor(list(self._clients.values()), dtype=torch.float64)
        shares = self._class_shares()
        votes = bounded_votes(shares) * weights.unsqueeze(1)
        location, precision = robust_location(self._estimates, shares > 0, votes)
        self._report = {
            client: {"weight": round(weight, 3)}
            for client, weight in zip(self._clients, precision.tolist(), strict=True)
            if weight < REPORT_THRESHOLD
        }
        teacher = location.clamp_min(0) + FLOOR
        return teacher / teacher.sum(1, keepdim=True), self._concentration(weights * precision)

    def _class_shares(self) -> torch.Tensor:
        """(M, C): the shares of classes."""
        return torch.frombuffer(self._held, dtype=torch.float64).view(len(self._clients), -1)

    def _concentration(self, weights: torch.Tensor) -> torch.Tensor:
        """Chi (N,) of the ratios times these weights (M,), which are kept for the tracked samples."""
        clients, first = list(self._clients), 0
        total = square = torch.zeros((), dtype=torch.float64)
        for chunk in self._ratios.chunks():
            trust = chunk * weights[first : first + chunk.shape[1]]
            if self.tracked is not None:
                for client, one in zip(clients[first:], trust.unbind(1), strict=False):
                    self.keep_weights(client, one)
            total, square = total + trust.sum(1), square + trust.square().sum(1)
            first += chunk.shape[1]
        return square / total.square()

    def report(self) -> dict[str, dict[str, float]]:
        """The clients that the guard weighed down, and the weight that they kept."""
        return self._report

    def merge_state(self, other: Self) -> None:
        """Keep what the other kept."""
        for client in other._clients:
            self._refuse_second(client)
        for ours, theirs in ((self._estimates, other._estimates), (self._ratios, other._ratios)):
            for chunk in theirs.chunks():
                ours.append(chunk)
        self._held += other._held
        self._clients |= other._clients
        self.shares.merge(other.shares)

    def reset(self) -> None:
        """Forget the uploads."""
        super().reset()
        self._estimates.clear()
        self._ratios.clear()
        self._clients, self._held, self._report = {}, array("d"), {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What was kept of the uploads, and the shares of classes that are remembered over rounds."""
        if not self._clients:
            return {**super().state_dict(), **self.shares.state_dict()}
        return {
            **super().state_dict(),
            **self.shares.state_dict(),
            "clients": text_to_tensor(json.dumps(self._clients)),
            "held": self._class_shares().clone(),
            "estimates": torch.cat(list(self._estimates.chunks()), 1),
            "ratios": torch.cat(list(self._ratios.chunks()), 1),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what was kept, and remember what the state remembers."""
        self.reset()
        super().load_state_dict(state)
        self.shares.load_state_dict(state)
        if "clients" in state:
            self._clients = json.loads(tensor_to_text(state["clients"]))
            self._held.frombytes(state["held"].numpy().tobytes())
            self._estimates.append(state["estimates"])
            self._ratios.append(state["ratios"])


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
        Its ratio r (N,), its estimates of p(c|x) for the classes that it holds, (N, so many), float32, at most 1, and
        the shares pi (C,) of all classes.

    >>> upload = Upload.from_arrays("north", [[0.9, 0.1, 0.0], [0.1, 0.9, 0.0]], class_counts=[1, 1, 0])
    >>> class_estimates(upload, ClassShares())[1].tolist()[0]  # with r = 1, what it does not hold is the rest
    [0.6000000238418579, 0.06666667014360428]
    """
    ratio, shares = known.ratio_and_shares(upload)
    held = shares.nonzero().squeeze(1)
    q = upload.select(held).to(torch.float64)
    scale = 1 / (len(shares) * shares[held])
    q.div_(q.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny))  # first: a ratio over tiny is infinite
    return ratio, q.mul_(ratio.unsqueeze(1)).mul_(scale).clamp_(max=1).to(torch.float32), shares


def bounded_votes(shares: torch.Tensor) -> torch.Tensor:
    """The votes (M, C) of clients with these shares of classes (M, C): none above the median client's largest.

    >>> bounded_votes(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])).tolist()
    [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.0]]
    """
    return shares.clamp(max=float(shares.amax(1).median()))


class Holders:
    """Who holds each class: the clients of a class have the seats 0, 1, ... in it, and H is the largest number of them.

    Parameters
    ----------
    held
        (M, C): whether a client holds a class.
    """

    def __init__(self, held: torch.Tensor) -> None:
        self.clients, self.classes = held.shape
        client, class_ = held.nonzero(as_tuple=True)
        seat = (held.cumsum(0) - 1)[client, class_]
        self.counts = held.sum(0)
        self.seats = max(1, int(self.counts.max()))
        self._place = class_ * self.seats + seat
        self._client = client
        self.column = torch.zeros(self.classes * self.seats, dtype=torch.int64)
        """(C * H,): the column of each seat among the columns of all clients in turn; 0 for an empty one."""
        self.column[self._place] = torch.arange(len(client))

    def seat(self, numbers: torch.Tensor) -> torch.Tensor:
        """(C, H) of numbers (M, C), 0 on empty seats."""
        seated = torch.zeros(self.classes * self.seats, dtype=numbers.dtype)
        seated[self._place] = numbers[self._client, self._place // self.seats]
        return seated.view(self.classes, self.seats)

    def sum_over_classes(self, numbers: torch.Tensor) -> torch.Tensor:
        """(M,): the sums of numbers (C, H) over the classes of each client."""
        total = torch.zeros(self.clients, dtype=numbers.dtype)
        return total.index_add_(0, self._client, numbers.flatten()[self._place])

    def draw(self, most: int, generator: np.random.Generator) -> torch.Tensor | None:
        """(C, at most `most`): seats at random, all of a class if there are no more; None if all seats are few."""
        if self.seats <= most:
            return None
        drawn = torch.empty(self.classes, most, dtype=torch.int64)
        for class_, count in enumerate(self.counts.tolist()):
            if count <= most:
                drawn[class_] = torch.arange(most)  # those beyond the count are empty
            else:
                drawn[class_] = torch.from_numpy(generator.choice(count, most, replace=False))
        return drawn


def robust_location(estimates: Spool, held: torch.Tensor, votes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The location of the clients' estimates, weighed by votes and by how near they are to it.

    Parameters
    ----------
    estimates
        For each client in turn, (N, classes that it holds), float32, not negative.
    held
        (M, C): whether a client holds a class.
    votes
        (M, C), not negative, 0 for classes that are not held.

    Returns
    -------
    tuple of torch.Tensor
        The location (N, C), float64, and the precision (M,) of clients, at most 1.
    """
    holders, samples = Holders(held), estimates.samples
    generator = numpy_generator(0, "median", hashlib.sha256(votes.contiguous().numpy().data).hexdigest())
    drawn = holders.draw(MAX_VOTERS, generator)
    size = max(1, TILE // len(holders.column))
    tiles = [(start, min(start + size, samples)) for start in range(0, samples, size)]
    few = tiles
    if samples > MAX_SAMPLES:  # no client knows the others' shares of classes, so none knows the tiles
        few = [tiles[index] for index in generator.permutation(len(tiles))[: max(1, MAX_SAMPLES // size)]]
    voters = votes.sum(0).square() / votes.square().sum(0).clamp_min(torch.finfo(votes.dtype).tiny)
    counted = votes * (voters >= MIN_VOTERS)
    seated, total = holders.seat(counted), counted.sum(1)
    precision = torch.ones(holders.clients, dtype=torch.float64)
    for _ in range(N_ITERATIONS):
        weights, distance = holders.seat(votes * precision.unsqueeze(1)), torch.zeros_like(seated)
        for tile in _read_tiles(estimates, holders, few):
            distance += (tile - clipped_mean(tile, weights, drawn).unsqueeze(2)).abs_().sum(0)
        precision = _precision(holders.sum_over_classes(distance * seated) / total, total > 0)
    weights = holders.seat(votes * precision.unsqueeze(1))
    location = torch.empty(samples, holders.classes, dtype=torch.float64)  # many small tensors would break up the heap
    for (start, stop), tile in zip(tiles, _read_tiles(estimates, holders, tiles), strict=True):
        location[start:stop] = clipped_mean(tile, weights, drawn)
    return location, precision


def _read_tiles(estimates: Spool, holders: Holders, tiles: list[tuple[int, int]]) -> Iterator[torch.Tensor]:
    """Estimates (rows, C, H) of some samples by all holders of each class; empty seats have any number."""
    for start, stop in tiles:
        tile = estimates.rows(start, stop).index_select(1, holders.column)
        yield tile.view(stop - start, holders.classes, holders.seats)


def _precision(distance: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """(M,): the inverse square of each distance, relative to the median one, at most 1; 1 where it is not known."""
    if not bool(known.any()):
        return torch.ones_like(distance)
    median = distance[known].median().clamp_min(torch.finfo(distance.dtype).tiny)
    return torch.where(known, (median / distance.clamp_min(median)).square(), torch.ones_like(distance))


def clipped_mean(tile: torch.Tensor, weights: torch.Tensor, drawn: torch.Tensor | None = None) -> torch.Tensor:
    """The weighted median over clients plus the weighted mean of the differences to it, clipped.

    Parameters
    ----------
    tile
        (N, C, H), float32, not negative: the estimates of H clients.
    weights
        (C, H), not negative.
    drawn
        (C, some of H): the clients whose median is taken; all if it is None.

    Returns
    -------
    torch.Tensor
        (N, C), float64; 0 for a class without weights.

    >>> three = torch.tensor([0.4, 0.5, 9.0]).reshape(1, 1, 3)
    >>> round(float(clipped_mean(three, torch.ones(1, 3))), 6)
    0.5
    """
    weights = weights.to(torch.float64)
    total = weights.sum(1)
    if drawn is None:
        median = weighted_median(tile, weights)
    else:
        median = weighted_median(tile.gather(2, drawn.expand(len(tile), -1, -1)), weights.gather(1, drawn))
    clipped = (tile - median.unsqueeze(2)).clamp_(-CLIP, CLIP).mul(weights).sum(2)
    return torch.where(total > 0, median + clipped / total.clamp_min(torch.finfo(torch.float64).tiny), 0.0)


def weighted_median(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The median over the last dimension; where half of the weight lies on each side, the middle of both neighbours.

    Values and their places are sorted together as integers of 64 bits, which NumPy does an order of magnitude faster
    than torch sorts numbers: the bits of floats that are not negative have their order.

    Parameters
    ----------
    values
        (N, C, H), float32, not negative.
    weights
        (C, H), float64, not negative.

    Returns
    -------
    torch.Tensor
        (N, C), float32.

    >>> weighted_median(torch.tensor([[[3.0, 1.0, 2.0]]]), torch.tensor([[1.0, 1.0, 2.0]]).double()).tolist()
    [[2.0]]
    """
    keys = values.contiguous().view(torch.int32).to(torch.int64) << 32 | torch.arange(weights.numel()).view_as(weights)
    keys.numpy().sort(-1)
    below = weights.take(keys.bitwise_and(2**32 - 1)).cumsum_(-1)
    total = below[..., -1:]
    half = torch.cat([total * (0.5 - 1e-9), total * (0.5 + 1e-9)], -1)
    sides = torch.searchsorted(below, half).clamp_(max=weights.shape[1] - 1)
    ordered = keys.gather(-1, sides).bitwise_right_shift_(32).to(torch.int32).view(torch.float32)
    return ordered.sum(-1) / 2

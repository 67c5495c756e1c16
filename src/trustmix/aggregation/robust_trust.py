"""The rule `trust` under guard: no client moves a teacher further than a few honest ones would let it.

All holders of a class estimate the same number, p(c|x) = r_i q_i(c) / (C pi_i(c)). Under guard the teacher of a class
is not their mean but a robust location, so that what one client can do is bounded whatever it sends:

- *location*: the weighted median over clients, plus the mean of the differences to it, each clipped to `CLIP`. Fewer
  than half of the votes for a class cannot move its median beyond what honest clients say.
- *votes*: a client's vote for a class is the share pi_i(c) of it in its data, so that all its votes sum to 1: one that
  claims every class has a small vote for each. No vote is larger than the largest one of the median client.
- *precision*: a client counts less, the further its estimates of the classes it votes for are from the consensus of
  all clients, in which all classes are equally common; those that are nearer than the median client count alike.

A late upload counts for a part of a client, in the votes, in the consensus and where the median client is looked for.

The consensus is over all classes at once (`joint_consensus`). A client that holds others rates a sample as
none of its own, which is evidence for the classes that are left. Liars with the majority in a class, who give its
samples away, contradict its holders and the holders of the classes that they give them to; and since no class may run
empty, what they took comes back where most clients agree with it.

What clients say is read several times from a `Spool`, a few samples at a time: memory does not grow with the number of
clients. With more than `MAX_VOTERS` holders of a class its median is that of so many, drawn at random, and with more
than `MAX_SAMPLES` public samples a client's distance is its mean over so many. The clipped mean is always of all.
"""

import json
from array import array
from collections.abc import Iterator
from typing import Self

import numpy as np
import torch

from trustmix.aggregation.base import Aggregator, StateDict
from trustmix.aggregation.holders import Holders
from trustmix.aggregation.joint_consensus import balance_classes, opinion_odds
from trustmix.aggregation.spool import Spool
from trustmix.aggregation.trust import FLOOR, PACKED, ClassShares, unpack_shares
from trustmix.aggregation.upload import Upload
from trustmix.arrays import tensor_to_text, text_to_tensor
from trustmix.errors import TrustmixError
from trustmix.seeds import numpy_generator

CLIP = 0.1
"""How far a client's estimate can be from the median and still be averaged as it is."""
N_ITERATIONS = 3
"""How often the consensus is found anew with the weights that follow from it."""
POWER = 4
"""The power of the distance by which a client loses weight."""
REPORT_THRESHOLD = 0.25
"""A client whose weight falls below this, at 1.4 times the median distance, is reported."""
MAX_VOTERS = 1000
"""A median is that of at most so many holders of a class."""
MAX_SAMPLES = 8192
"""A distance is the mean over at most so many public samples."""
ROWS = 256
"""Samples whose ratios are looked at together."""
AHEAD = 2**21
"""Bytes of samples next to each other that are read from disk at once."""


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
        self._clients: dict[str, bytes] = {}
        """By client, its packed shares of classes."""
        self._weights = array("d")
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
        self._clients[upload.client] = self.shares.pack(upload.client, shares)
        self._weights.append(upload.weight)

    def estimate(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The robust location over clients, normalised; chi of the clients' ratios."""
        _, classes = self._shape or (0, 0)
        weights = torch.tensor(self._weights, dtype=torch.float64)
        holders, shares = self._holders(classes)
        votes = shares.clamp_(max=largest_vote(holders.largest(shares), weights)).mul_(weights[holders.client])
        location, precision = robust_location(self._estimates, holders, votes, weights)
        self._report = {
            client: {"weight": round(weight, 3)}
            for client, weight in zip(self._clients, precision.tolist(), strict=True)
            if weight < REPORT_THRESHOLD
        }
        teacher = location.clamp_min_(0).add_(FLOOR)
        return teacher.div_(teacher.sum(1, keepdim=True)), self._concentration(weights * precision)

    def _holders(self, classes: int) -> tuple["Holders", torch.Tensor]:
        """Who holds what, and how much (K,) of it."""
        entries = np.frombuffer(b"".join(self._clients.values()), PACKED)
        lengths = np.fromiter((len(packed) // PACKED.itemsize for packed in self._clients.values()), np.int32)
        client, class_ = np.arange(len(lengths), dtype=np.int32).repeat(lengths), entries["class"].astype(np.int32)
        holders = Holders(torch.from_numpy(client), torch.from_numpy(class_), len(lengths), classes)
        return holders, torch.from_numpy(entries["share"].copy())

    def _concentration(self, weights: torch.Tensor) -> torch.Tensor:
        """Chi (N,) of the ratios times these weights (M,), which are kept for the tracked samples."""
        total, square = (torch.zeros(self._ratios.samples, dtype=torch.float64) for _ in range(2))
        for start in range(0, self._ratios.samples, ROWS):
            for trust in self._weighted_ratios(weights, start, start + ROWS):
                total[start : start + ROWS] += trust.sum(1)
                square[start : start + ROWS] += trust.square_().sum(1)
        if self.tracked is not None:
            clients = iter(self._clients)
            for trust in self._weighted_ratios(weights):
                for one in trust.unbind(1):
                    self.keep_weights(next(clients), one)
        return square / total.square()

    def _weighted_ratios(
        self, weights: torch.Tensor, start: int = 0, stop: int | None = None
    ) -> Iterator[torch.Tensor]:
        """The ratios of some samples times these weights (M,), some clients at a time."""
        first = 0
        for ratios in self._ratios.chunks(start, stop):
            yield ratios.mul_(weights[first : first + ratios.shape[1]])
            first += ratios.shape[1]

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
        self._clients |= other._clients
        self._weights += other._weights
        self.shares.merge(other.shares)

    def reset(self) -> None:
        """Forget the uploads."""
        super().reset()
        self._estimates.clear()
        self._ratios.clear()
        self._clients, self._weights, self._report = {}, array("d"), {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What was kept of the uploads, and the shares of classes that are remembered over rounds."""
        if not self._clients or self._shape is None:
            return {**super().state_dict(), **self.shares.state_dict()}
        held = [unpack_shares(packed, self._shape[1]) for packed in self._clients.values()]
        return {
            **super().state_dict(),
            **self.shares.state_dict(),
            "clients": text_to_tensor(json.dumps(dict(zip(self._clients, self._weights, strict=True)))),
            "held": torch.stack(held),
            "estimates": torch.cat(list(self._estimates.chunks()), 1),
            "ratios": torch.cat(list(self._ratios.chunks()), 1),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what was kept, and remember what the state remembers."""
        self.reset()
        super().load_state_dict(state)
        self.shares.load_state_dict(state)
        if "clients" in state:
            weights = json.loads(tensor_to_text(state["clients"]))
            self._clients = {c: self.shares.pack(c, held) for c, held in zip(weights, state["held"], strict=True)}
            self._weights.extend(weights.values())
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
    return shares.clamp(max=largest_vote(shares.amax(1), torch.ones(len(shares))))


def largest_vote(largest: torch.Tensor, weights: torch.Tensor) -> float:
    """The bound of votes: the median of the clients' largest shares (M,), each client counted by its weight (M,)."""
    return float(_median_client(largest, weights))


def _median_client(numbers: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The smallest of numbers (M,) with half of the weight (M,) up to it; for equal weights, torch's median."""
    ordered, order = numbers.sort()
    below = weights[order].cumsum(0)
    return ordered[int(torch.searchsorted(below, below[-1:] / 2))]


def robust_location(
    estimates: Spool, holders: Holders, votes: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The location of the clients' estimates, weighed by votes and by how near they are to it.

    Parameters
    ----------
    estimates
        Of each pair of a client and a class that it holds, a column (N,), float32, not negative.
    holders
        The pairs.
    votes
        (K,): of each pair, not negative.
    weights
        (M,): how many clients each one counts for; the votes have them already.

    Returns
    -------
    tuple of torch.Tensor
        The location (N, C), float64, and the precision (M,) of clients, at most 1.
    """
    samples, size = estimates.samples, holders.rows
    generator = numpy_generator(0, "median", holders.digest(votes))
    for group in holders.groups:
        group.draw(MAX_VOTERS, generator)
    tiles = [(start, min(start + size, samples)) for start in range(0, samples, size)]
    few = tiles
    if samples > MAX_SAMPLES:  # no client knows the others' shares of classes, so none knows the tiles
        few = [tiles[index] for index in generator.permutation(len(tiles))[: max(1, MAX_SAMPLES // size)]]
    total = holders.sum_over_classes(votes)
    precision = torch.ones(holders.clients, dtype=torch.float64)
    for _ in range(N_ITERATIONS):
        distance = _distances(estimates, holders, _consensus(estimates, holders, precision * weights, few), few)
        precision = _precision(holders.sum_over_classes(distance.mul_(votes)) / total, total > 0, weights)
    seated = _seated_weights(holders, votes, precision)
    location = torch.empty(samples, holders.classes, dtype=torch.float64)  # many small tensors would break up the heap
    for start, stop, rows in _read_tiles(estimates, tiles):
        for group, weight in zip(holders.groups, seated, strict=True):
            location[start:stop, group.classes] = clipped_mean(group.read(rows), weight, group.drawn)
    return location, precision


def _read_tiles(estimates: Spool, tiles: list[tuple[int, int]]) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Where each tile starts and stops, and its rows of all pairs; tiles next to each other are read at once."""
    most, first = AHEAD // max(1, estimates.width * estimates.dtype.itemsize), 0
    while first < len(tiles):
        begin, last = tiles[first][0], first + 1
        while last < len(tiles) and tiles[last][0] == tiles[last - 1][1] and tiles[last][1] - begin <= most:
            last += 1
        rows = estimates.rows(begin, tiles[last - 1][1])
        yield from ((start, stop, rows[start - begin : stop - begin]) for start, stop in tiles[first:last])
        first = last


def _seated_weights(holders: Holders, votes: torch.Tensor, precision: torch.Tensor) -> list[torch.Tensor]:
    """Of each group of classes, the votes times the precision of clients."""
    weights = precision[holders.client].mul_(votes)
    return [group.seat(weights) for group in holders.groups]


def _consensus(estimates: Spool, holders: Holders, weights: torch.Tensor, tiles: list[tuple[int, int]]) -> torch.Tensor:
    """What clients of these weights (M,) make of the samples of some tiles: (samples, C), float32."""
    odds = torch.empty(sum(stop - start for start, stop in tiles), holders.classes, dtype=torch.float64)
    done = 0
    for _, _, rows in _read_tiles(estimates, tiles):
        opinions = opinion_odds(rows, holders.rest(rows), holders.client, weights)
        for group in holders.groups:
            odds[done : done + len(rows), group.classes] = (
                group.read(opinions).mul_(group.taken).sum(2, dtype=torch.float64)
            )
        done += len(rows)
    return balance_classes(odds).to(torch.float32)


def _distances(
    estimates: Spool, holders: Holders, consensus: torch.Tensor, tiles: list[tuple[int, int]]
) -> torch.Tensor:
    """(K,): the sum of each pair's distances from the consensus in some tiles of samples."""
    found, done = torch.zeros(len(holders.client), dtype=torch.float64), 0
    for _, _, rows in _read_tiles(estimates, tiles):
        part = consensus[done : done + len(rows)].index_select(1, holders.class_)
        found += part.sub_(rows).abs_().sum(0, dtype=torch.float64)
        done += len(rows)
    return found


def _precision(distance: torch.Tensor, known: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """(M,): the inverse power of each distance, relative to the median one, at most 1; 1 where it is not known."""
    if not bool(known.any()):
        return torch.ones_like(distance)
    median = _median_client(distance[known], weights[known]).clamp_min(torch.finfo(distance.dtype).tiny)
    return torch.where(known, (median / distance.clamp_min(median)).pow(POWER), torch.ones_like(distance))


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

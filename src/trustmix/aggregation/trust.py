"""The rule `trust`: the teacher of a class is made by the clients that hold it.

Let r_i(x) = p_i(x) / p_pub(x) and pi_i(c) the share of class c in the data of client i. By Bayes' rule

    p(c|x) = r_i(x) q_i(c|x) P_pub(c) / pi_i(c),

so all holders of c estimate the same number, and the more of c a client holds the better it does. With weights pi_i(c)
and classes that are equally common in the public set their mean is a quotient of two sums over clients:

    teacher(c|x) ~ sum_i r_i(x) q_i(c|x) / sum_i pi_i(c),    normalised over c.

Shares that a client does not send are estimated from its first upload: the mean of r_i q_i over the public set is the
mean of q_i over the client's own data. Where all clients hold all classes alike, the rule is AVG.
"""

import math
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import torch

from trustmix.aggregation.base import StateDict, SumAggregator
from trustmix.aggregation.upload import Upload

FLOOR = 1e-12
"""Added to every class, so that a sample of which no client has seen any like it still has a label."""
MIN_PRIOR = 0.05
"""A class that the clients hold less of than this part of an equal share counts as held so much: the few predictions of
a class that no client holds are not blown up to a class's full size."""
MIN_HELD = 0.3
"""A class of which a client seems to hold less than this part of the most frequent one is not held."""
PRIOR_STEPS = 4
"""How often the bound of a ratio and the estimated shares are found, each of which follows from the other."""
MIN_RATIO = 1e-100
"""A smaller ratio counts as this one, whose square is still a number."""
MAX_LABEL_SETS = 32
"""What sparse predictions give to all classes of a label set is added up for so many label sets before it is spread."""


def bounded_ratio(scores: torch.Tensor, largest: float) -> torch.Tensor:
    """The density ratio of log-ratio scores, at most `largest`, with mean 1 over the public set.

    A true ratio has mean 1, and with equally common classes it is at most C times the largest share of a class in the
    client's data. A client that raises all its scores changes nothing.

    Parameters
    ----------
    scores
        (N,): log r, up to a constant.
    largest
        The bound, at least 1.

    Returns
    -------
    torch.Tensor
        (N,): r.

    >>> bounded_ratio(torch.tensor([1000.0, 1000.0, 0.0, 0.0]), largest=2.0).round(decimals=9).tolist()
    [2.0, 2.0, 0.0, 0.0]
    """
    return _Tails(scores).bounded(largest)


class _Tails:
    """Scores (N,) in order and the log-sums of their tails, from which the ratio of any bound follows."""

    def __init__(self, scores: torch.Tensor) -> None:
        self.log_ratio = scores.to(torch.float64)
        self.ordered = self.log_ratio.sort(descending=True).values
        self.rest = torch.logcumsumexp(self.ordered.flip(0), 0).flip(0)
        self.places = torch.arange(len(scores), dtype=torch.float64)

    def bounded(self, largest: float) -> torch.Tensor:
        """The ratio (N,), at most `largest`, with mean 1."""
        left = len(self.places) - largest * self.places  # with that many samples at the bound
        shift = left.clamp_min(0).log() - self.rest
        fits = (left > 0) & (self.ordered + shift <= math.log(largest) + 1e-12)
        n_bounded = int(fits.to(torch.int8).argmax()) if bool(fits.any()) else int((left > 0).sum()) - 1
        return (self.log_ratio + shift[n_bounded]).clamp(max=math.log(largest)).exp().clamp_min(MIN_RATIO)


class ClassShares:
    """What part of its data each class is, by client: as shared, or estimated from its first upload and remembered.

    In the first round a client knows its own classes alone. Later ones have taught it the others, and what it holds is
    harder to see.

    >>> upload = Upload.from_arrays("north", [[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.4, 0.6, 0.0]], [0.0, 0.0, -50.0])
    >>> ratio, shares = ClassShares().ratio_and_shares(upload)
    >>> ratio.round(decimals=2).tolist(), shares.round(decimals=2).tolist()
    ([1.5, 1.5, 0.0], [0.55, 0.45, 0.0])
    """

    def __init__(self) -> None:
        self._packed: dict[str, bytes] = {}  # a tensor for each client would take ten times the memory
        self._classes = 0

    def ratio_and_shares(self, upload: Upload) -> tuple[torch.Tensor, torch.Tensor]:
        """How familiar each sample is to a client, and what part of its data each class is.

        Parameters
        ----------
        upload
            The scores are log-ratios up to a constant; without scores every sample is as familiar.

        Returns
        -------
        tuple of torch.Tensor
            r (N,), of mean 1, and pi (C,), of sum 1.
        """
        scores = upload.scores
        if scores is None:
            scores = torch.zeros(upload.shape[0], dtype=torch.float64)
        tails = _Tails(scores)
        if upload.class_counts is not None:
            shares = (upload.class_counts / upload.class_counts.sum()).to(torch.float64)
        elif upload.client in self._packed:
            shares = unpack_shares(self._packed[upload.client], self._classes)
        else:
            shares = _estimate_shares(_weighted_sum(upload), upload.shape[1], tails)
            self._remember(upload.client, shares)
        return tails.bounded(largest_ratio(shares)), shares

    def restrict(self, clients: Sequence[str]) -> "ClassShares":
        """What is remembered of these clients."""
        part = ClassShares()
        part._packed = {client: self._packed[client] for client in clients if client in self._packed}
        part._classes = self._classes
        return part

    def pack(self, client: str, shares: torch.Tensor) -> bytes:
        """The shares (C,) of a client as bytes, the same object as what is remembered if they are equal."""
        packed, remembered = pack_shares(shares), self._packed.get(client)
        return remembered if remembered is not None and remembered == packed else packed

    def merge(self, other: "ClassShares") -> None:
        """Take over what the other remembers of further clients."""
        self._packed = {**other._packed, **self._packed}
        self._classes = self._classes or other._classes

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What is remembered."""
        return {f"{SHARES}{client}": unpack_shares(one, self._classes) for client, one in self._packed.items()}

    def load_state_dict(self, state: StateDict) -> None:
        """Remember what another one did."""
        self._packed, self._classes = {}, 0
        for key, shares in state.items():
            if key.startswith(SHARES):
                self._remember(key[len(SHARES) :], shares)

    def _remember(self, client: str, shares: torch.Tensor) -> None:
        self._packed[client], self._classes = pack_shares(shares), len(shares)


SHARES = "shares/"
"""What the names of remembered shares in a state begin with."""


PACKED = np.dtype([("class", "<u4"), ("share", "<f8")])
"""A class and the share of it, in packed shares."""


def pack_shares(shares: torch.Tensor) -> bytes:
    """The shares (C,) of classes as bytes: the classes that are held, and how much of them.

    >>> unpack_shares(pack_shares(torch.tensor([0.0, 0.25, 0.75])), 3).tolist()
    [0.0, 0.25, 0.75]
    """
    held = shares.nonzero().squeeze(1)
    packed = np.empty(len(held), PACKED)
    packed["class"], packed["share"] = held.numpy(), shares[held].numpy()
    return packed.tobytes()


def unpack_shares(packed: bytes, classes: int) -> torch.Tensor:
    """The shares (C,), float64, of `pack_shares`."""
    entries, shares = np.frombuffer(packed, PACKED), torch.zeros(classes, dtype=torch.float64)
    shares[torch.from_numpy(entries["class"].astype(np.int64))] = torch.from_numpy(entries["share"].copy())
    return shares


def largest_ratio(shares: torch.Tensor) -> float:
    """The largest density ratio that a client with these shares of classes (C,) can have, at least 1."""
    return max(1.0, len(shares) * float(shares.max()))


def estimate_shares(predictions: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The shares (C,) of classes in the data of a client: the mean of r q over the public set.

    Parameters
    ----------
    predictions
        (N, C): q, float64.
    scores
        (N,): log r, up to a constant.

    Returns
    -------
    torch.Tensor
        Of sum 1; 0 for classes that the client seems not to hold.
    """
    return _estimate_shares(lambda ratio: ratio @ predictions, predictions.shape[1], _Tails(scores))


def _weighted_sum(upload: Upload) -> Callable[[torch.Tensor], torch.Tensor]:
    """What gives the sum (C,) of weights (N,) times the predictions."""
    if upload.sparse is not None:
        return upload.sparse.weighted_sum
    predictions = upload.predictions.to(torch.float64)
    return lambda weights: weights @ predictions


def _estimate_shares(weighted_sum: Callable[[torch.Tensor], torch.Tensor], classes: int, tails: _Tails) -> torch.Tensor:
    largest = float(classes)
    for _ in range(PRIOR_STEPS):
        seen = weighted_sum(tails.bounded(largest))
        shares = torch.where(seen >= MIN_HELD * seen.max(), seen, 0.0)
        shares = shares / shares.sum()
        largest = largest_ratio(shares)
    return shares


class Trust(SumAggregator):
    """What the clients see of each class, divided by how much of it they hold.

    >>> import numpy as np
    >>> rule = Trust()
    >>> sure = np.array([[0.9, 0.1, 0.0], [0.5, 0.5, 0.0]])
    >>> rule.update(Upload.from_arrays("north", sure, [5.0, -5.0], class_counts=[1, 1, 0]))
    >>> rule.update(Upload.from_arrays("south", sure[:, ::-1], [-5.0, 5.0], class_counts=[0, 1, 1]))
    >>> rule.compute().probabilities.argmax(1).tolist()  # the second sample is familiar to south, not to north: class 2
    [0, 2]
    """

    def __init__(self) -> None:
        super().__init__()
        self.shares = ClassShares()
        self._common: dict[bytes, torch.Tensor] = {}
        """By label set, as the bytes of a mask (C,): what every class of it has in each sample (N,) beside the sums."""

    def fold(self, upload: Upload) -> None:
        """Add the upload's terms; sparse predictions are not made dense for it."""
        if upload.sparse is None:
            super().fold(upload)
            return
        q, rest = upload.sparse, upload.sparse.rest.to(torch.float64)
        ratio, shares = self.shares.ratio_and_shares(upload)
        weight, held = upload.weight * ratio, shares > 0
        self.keep_weights(upload.client, weight)
        self._add({"held": upload.weight * shares, "weight": weight, "square": weight.square()})
        kept = held[q.classes]
        values = q.values.to(torch.float64) * kept
        total = values.sum(1) + rest * (held.sum() - kept.sum(1))
        scale = weight / total.clamp_min(torch.finfo(torch.float64).tiny)
        mass = self.sums.setdefault("mass", torch.zeros(upload.shape, dtype=torch.float64))
        mass.scatter_add_(1, q.classes, (values - rest.unsqueeze(1) * kept) * scale.unsqueeze(1))
        label_set, rest = held.numpy().tobytes(), rest * scale
        self._common[label_set] = self._common[label_set] + rest if label_set in self._common else rest
        if len(self._common) == MAX_LABEL_SETS:
            self._spread_common()

    def _spread_common(self) -> None:
        """Add what the classes of label sets have in common to the sums, in one product of matrices."""
        if self._common:
            sets = torch.stack([torch.frombuffer(bytearray(one), dtype=torch.bool) for one in self._common])
            common = torch.stack(list(self._common.values()), 1)
            self.sums["mass"].addmm_(common, sets.to(torch.float64)).clamp_min_(0)  # below 0 by rounding
            self._common = {}

    def estimate(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What follows from the sums."""
        self._spread_common()
        return super().estimate()

    def reset(self) -> None:
        """Forget the sums; what is remembered of clients stays."""
        super().reset()
        self._common = {}

    def terms(self, upload: Upload) -> dict[str, torch.Tensor]:
        """r_i q_i, the shares of classes, and the weights themselves."""
        ratio, shares = self.shares.ratio_and_shares(upload)
        weight = upload.weight * ratio
        self.keep_weights(upload.client, weight)
        mass = predictions_within(upload, shares) * weight.unsqueeze(1)
        return {"mass": mass, "held": upload.weight * shares, "weight": weight, "square": weight.square()}

    def from_sums(self, sums: StateDict) -> tuple[torch.Tensor, torch.Tensor]:
        """The quotient, normalised; chi of the clients' ratios."""
        held = sums["held"].clamp_min(MIN_PRIOR * float(sums["held"].mean()))
        mean = sums["mass"] / held + FLOOR
        return mean / mean.sum(1, keepdim=True), sums["square"] / sums["weight"].square()

    def merge_state(self, other: Self) -> None:
        """Add the other's sums and take over what it remembers."""
        other._spread_common()
        super().merge_state(other)
        self.shares.merge(other.shares)

    def make_part(self, clients: Sequence[str]) -> Self:
        """An empty one with the remembered shares of these clients."""
        part = super().make_part(clients)
        part.shares = self.shares.restrict(clients)
        return part

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The sums, and the shares that are remembered over rounds."""
        self._spread_common()
        return {**super().state_dict(), **self.shares.state_dict()}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over sums and shares."""
        self._common = {}
        super().load_state_dict(state)
        self.shares.load_state_dict(state)


def predictions_within(upload: Upload, shares: torch.Tensor) -> torch.Tensor:
    """The predictions (N, C), float64, within the classes of which a client holds a share."""
    own = upload.predictions.to(torch.float64) * (shares > 0)
    return own / own.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)

"""The rule `trust`: coupling, in which a client's odds weigh by how likely the sample is one of its own classes.

A client's log-likelihoods are ranked among those of its own calibration samples: over samples of its classes the rank p
is then spread evenly from 0 to 1, whatever the model. Over the public set it has the density f(p), higher near 0, where
foreign samples lie. By Bayes' rule a public sample at rank p is 1 / f(p) times as likely as any other to be one of the
client's, and that is its weight. Where the density is uninformative f is flat and all weights are 1: coupling remains.
Own samples alone make f at least 1/(C w), w being the largest share of a class in the client's data, if classes are
equally common in the public set; f is not let below that, so that no client can save up its weight for a few samples.
"""

from typing import Self

import torch

from trustmix.aggregation.base import Aggregator, StateDict, Upload
from trustmix.aggregation.coupling import RIDGE, label_set, laplacian, log_odds, mask_unheld_classes, regularize

BINS = 20
"""Steps of the histogram that f is read from."""
TILE = 2**22
"""Numbers in the linear systems that are solved at a time."""


def competence(ranks: torch.Tensor, own: float) -> torch.Tensor:
    """1 / f(p), the weight of a client in each public sample, f made decreasing by isotonic regression.

    Parameters
    ----------
    ranks
        (N,): p over the public set.
    own
        What f cannot fall below: k/C for a client that holds k of C classes alike.

    Returns
    -------
    torch.Tensor
        (N,), at most 1 / own.

    >>> half_foreign = torch.cat([torch.zeros(500), torch.arange(500) / 500])
    >>> weights = competence(half_foreign, own=0.5)
    >>> round(float(weights[0]), 2), round(float(weights[-1]), 2)
    (0.1, 1.96)
    """
    bins = (ranks * BINS).long().clamp(0, BINS - 1)
    counts = torch.bincount(bins, minlength=BINS) + 1  # nowhere impossible
    return 1 / _decreasing(counts * BINS / counts.sum()).clamp_min(own)[bins]


def _decreasing(values: torch.Tensor) -> torch.Tensor:
    """The nearest decreasing sequence in the least-squares sense: neighbours that rise are pooled into their mean."""
    pools: list[tuple[float, int]] = []
    for value in values.tolist():
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            (before, many), (after, few) = pools[-2:]
            pools[-2:] = [((before * many + after * few) / (many + few), many + few)]
    return torch.cat([torch.full((size,), mean, dtype=torch.float64) for mean, size in pools])


class Trust(Aggregator):
    """Coupling weighed by competence, sample by sample; a client without ranks weighs 1 everywhere.

    Beside the sum of odds it keeps one weight a client and sample, and it solves a system of C equations a sample.

    >>> import numpy as np
    >>> one, other = np.array([[0.8, 0.2]] * 100), np.array([[0.3, 0.7]] * 100)
    >>> ranks, both = np.arange(100) / 100 > 0.7, [1, 1]
    >>> rule = Trust()
    >>> rule.update(Upload.from_arrays("one", one, class_counts=both, ranks=0.9 * ranks))
    >>> rule.update(Upload.from_arrays("other", other, class_counts=both, ranks=0.9 * ~ranks))
    >>> rule.compute().probabilities.argmax(1)[[0, 99]].tolist()  # each counts where its density is high
    [1, 0]
    """

    needs_label_sets = True
    compares_classes = True

    def __init__(self) -> None:
        super().__init__()
        self._odds: torch.Tensor | None = None
        self._weights: list[torch.Tensor] = []
        self._counts: list[torch.Tensor] = []

    def fold(self, upload: Upload) -> None:
        """Add the client's odds, weighed by its competence."""
        counts = label_set(upload)
        weights = torch.full((len(upload.predictions),), upload.weight, dtype=torch.float64)
        if upload.ranks is not None:
            weights *= competence(upload.ranks, float(counts.sum() / (counts.max() * len(counts))))
        odds = log_odds(upload.predictions, counts) * weights.unsqueeze(1)
        self._odds = odds if self._odds is None else self._odds + odds
        self._weights.append(weights)
        self._counts.append(counts)
        self.keep_weights(upload.client, weights)

    def estimate(self) -> tuple[torch.Tensor, torch.Tensor]:
        """One system of C equations a sample, many at a time."""
        assert self._odds is not None  # noqa: S101 - there is an upload
        weights = torch.stack(self._weights, 1)  # (N, M)
        total = weights.sum(1, keepdim=True)
        shares, odds = weights / total, self._odds / total
        graphs = torch.stack([laplacian(counts) for counts in self._counts])
        rows = max(1, TILE // graphs[0].numel())
        tiles = (slice(row, row + rows) for row in range(0, len(odds), rows))
        return torch.cat([_solve(shares[tile], graphs, odds[tile]) for tile in tiles]), shares.square().sum(1)

    def merge_state(self, other: Self) -> None:
        """Add the other's odds and take over its weights."""
        assert other._odds is not None  # noqa: S101 - there is an upload
        self._odds = other._odds if self._odds is None else self._odds + other._odds
        self._weights += other._weights
        self._counts += other._counts

    def reset(self) -> None:
        """Forget odds and weights."""
        super().reset()
        self._odds, self._weights, self._counts = None, [], []

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The sum of odds, the weights (M, N) and the label sets (M, C)."""
        if self._odds is None:
            return super().state_dict()
        own = {"odds": self._odds, "weights": torch.stack(self._weights), "counts": torch.stack(self._counts)}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over odds, weights and label sets."""
        super().load_state_dict(state)
        self._odds, self._weights, self._counts = None, [], []
        if "odds" in state:
            self._odds, self._weights, self._counts = state["odds"], list(state["weights"]), list(state["counts"])


def _solve(shares: torch.Tensor, graphs: torch.Tensor, odds: torch.Tensor) -> torch.Tensor:
    """Teachers (n, C) of n samples, in which the clients have the shares (n, M)."""
    graph = torch.einsum("nm,mcd->ncd", shares, graphs)
    scores = torch.linalg.solve(regularize(graph, RIDGE), odds)
    return torch.softmax(mask_unheld_classes(scores, graph), 1)

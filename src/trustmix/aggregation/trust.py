"""The rule `trust`: coupling, in which a client's word weighs by how likely the sample is one of its own classes.

A client's log-likelihoods are ranked among those of its own calibration samples: over samples of its classes the rank p
is then spread evenly from 0 to 1, whatever the model. Over the public set it has the density f(p), higher near 0, where
foreign samples lie. By Bayes' rule a public sample at rank p is 1 / f(p) times as likely as any other to be one of the
client's, and that is its weight. Where the density tells nothing f is flat and all weights are 1: coupling remains.
Own samples alone make f at least 1/(C w), w being the largest share of a class in the client's data, if classes are
equally common in the public set; f is not let below that, so that nobody can save up its trust for a few samples.
"""

from typing import Any

import torch

from trustmix.aggregation.coupling import RIDGE, laplacian, log_odds, mask_unheld_classes, regularize, validate_counts
from trustmix.aggregation.weighted_average import Teacher, validate_predictions
from trustmix.arrays import ArraySpec, format_shape, to_finite_tensor
from trustmix.errors import TrustmixError

BINS = 20
"""Steps of the histogram that f is read from."""
TILE = 2**22
"""Numbers in the linear systems that are solved at a time."""


def competence(ranks: torch.Tensor, own: float) -> torch.Tensor:
    """1 / f(p) (N,) of ranks p (N,) over the public set, f made decreasing by isotonic regression.

    `own` is what f cannot fall below: k/C for a client that holds k of C classes alike.

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


class Trust:
    """Coupling weighed by competence, sample by sample; a client that tells no ranks weighs 1 everywhere.

    Beside the sums it keeps one weight a client and sample, and it solves a system of C equations for each sample.

    >>> import numpy as np
    >>> one, other = np.array([[0.8, 0.2]] * 100), np.array([[0.3, 0.7]] * 100)
    >>> ranks, both = np.arange(100) / 100 > 0.7, np.array([1, 1])
    >>> rule = Trust()
    >>> rule.add(one, classes=both, ranks=0.9 * ranks); rule.add(other, classes=both, ranks=0.9 * ~ranks)
    >>> rule.finish().probabilities.argmax(1)[[0, 99]].tolist()  # each is believed where its density is high
    [1, 0]
    """

    def __init__(self) -> None:
        self._kind: ArraySpec | None = None
        self._odds: torch.Tensor | None = None
        self._weights: list[torch.Tensor] = []
        self._graphs: list[torch.Tensor] = []

    def add(
        self,
        predictions: Any,
        scores: Any = None,  # noqa: ARG002 - the ranks say it
        *,
        classes: Any = None,
        ranks: Any = None,
        name: str = "upload",
        weight: float = 1.0,
    ) -> None:
        """Fold in one client: predictions q (N, C), what it holds of each class, and its ranks (N,)."""
        q = validate_predictions(predictions, name).cpu()
        counts = validate_counts(classes, q.shape[1], name)
        own = torch.full((len(q),), weight, dtype=torch.float64)
        if ranks is not None:
            own *= competence(_checked_ranks(ranks, len(q), name), float(counts.sum() / (counts.max() * len(counts))))
        odds = log_odds(q, counts) * own.unsqueeze(1)
        if self._odds is not None and odds.shape != self._odds.shape:
            wanted = format_shape(self._odds)
            raise TrustmixError(f"{name}: predictions have the shape {format_shape(odds)}; those before had {wanted}.")
        self._odds = odds if self._odds is None else self._odds + odds
        self._weights.append(own)
        self._graphs.append(laplacian(counts))
        self._kind = self._kind or ArraySpec.of(predictions)

    def latest(self) -> torch.Tensor:
        """The weights (N,) of the client that was added last."""
        return self._weights[-1]

    def finish(self) -> Teacher[Any]:
        """The teacher of everything added so far; adding may go on afterwards."""
        if self._odds is None or self._kind is None:
            raise TrustmixError("there is nothing to couple: no upload has been added.")
        weights = torch.stack(self._weights, 1)  # (N, M)
        total = weights.sum(1, keepdim=True)
        shares, odds = weights / total, self._odds / total
        graphs = torch.stack(self._graphs)
        rows = max(1, TILE // graphs[0].numel())
        tiles = (slice(row, row + rows) for row in range(0, len(odds), rows))
        teacher = torch.cat([_solve(shares[tile], graphs, odds[tile]) for tile in tiles])
        chi = shares.square().sum(1)
        return Teacher(self._kind.restore(teacher), self._kind.restore(chi), len(self._weights))


def _solve(shares: torch.Tensor, graphs: torch.Tensor, odds: torch.Tensor) -> torch.Tensor:
    """Teachers (n, C) of n samples, of which client i has the shares (n, M)."""
    graph = torch.einsum("nm,mcd->ncd", shares, graphs)
    scores = torch.linalg.solve(regularize(graph, RIDGE), odds)
    return torch.softmax(mask_unheld_classes(scores, graph), 1)


def _checked_ranks(ranks: Any, samples: int, name: str) -> torch.Tensor:
    p = to_finite_tensor(ranks, f"{name}: ranks").cpu().to(torch.float64)
    if p.shape != (samples,) or not bool(((p >= 0) & (p <= 1)).all()):
        raise TrustmixError(f"{name}: ranks must be {samples} numbers from 0 to 1, one a sample.")
    return p

"""Rules that other work proposes against clients that lie. They need all predictions of a round at once, M * N * C.

- `median`: the median over clients of each probability, brought back to the simplex.
- `geometric-median`: the point of least total distance to the clients' predictions of a sample (Weiszfeld's steps).
- `cronus`: Chang et al., *Cronus*, 2019, after Diakonikolas et al., 2017. Per sample, those whose predictions lie
  furthest along the direction of largest variance are left out, a quarter of the clients in two steps.
- `expguard`: Roux, Zimmer and Pokutta, 2025. A client's weight shrinks by exp(-distance to the Cronus consensus),
  round after round; the teacher is the weighted mean.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from trustmix.aggregation.rules import RULES, Memory
from trustmix.aggregation.weighted_average import Teacher, validate_predictions
from trustmix.arrays import ArraySpec, format_shape
from trustmix.errors import TrustmixError

FILTERED = 0.125
"""Part of the clients that Cronus leaves out in each of its two steps: it is made for up to a quarter of liars."""
STEPS, NEAR = 20, 1e-6
"""Of Weiszfeld: how many there are, and the distance below which a client counts as being at the median."""
STEP_SIZE = 1.0
"""Of ExpGuard: how fast a distance is held against a client."""

Consensus: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


def median(q: torch.Tensor) -> torch.Tensor:
    """(M, N, C) -> (N, C): the median of each coordinate, its rows divided by their sums.

    >>> median(torch.tensor([[[0.9, 0.1]], [[0.8, 0.2]], [[0.0, 1.0]]])).tolist()
    [[0.800000011920929, 0.20000000298023224]]
    """
    middle = q.quantile(0.5, 0) + torch.finfo(q.dtype).tiny
    return middle / middle.sum(1, keepdim=True)


def geometric_median(q: torch.Tensor) -> torch.Tensor:
    """(M, N, C) -> (N, C): the geometric median of each sample.

    >>> geometric_median(torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]])).round(decimals=3).tolist()
    [[1.0, 0.0]]
    """
    point = q.mean(0)
    for _ in range(STEPS):
        closeness = 1 / torch.linalg.vector_norm(q - point, dim=2).clamp_min(NEAR)
        point = torch.einsum("mn,mnc->nc", closeness / closeness.sum(0), q)
    return point


def cronus(q: torch.Tensor) -> torch.Tensor:
    """(M, N, C) -> (N, C): the mean of those who are left after two steps of filtering."""
    for _ in range(2):
        centred = (q - q.mean(0)).transpose(0, 1)
        direction = torch.linalg.eigh(centred.mT @ centred).eigenvectors[:, :, -1:]
        distance = (centred @ direction).squeeze(2).abs().T
        keep = distance.topk(max(1, round(len(q) * (1 - FILTERED))), dim=0, largest=False).indices
        q = q.gather(0, keep.unsqueeze(2).expand(-1, -1, q.shape[2]))
    return q.mean(0)


class BatchAggregator:
    """A rule that looks at all predictions of a round together."""

    def __init__(self, consensus: Consensus) -> None:
        self.consensus = consensus
        self.names: list[str] = []
        self._said: list[torch.Tensor] = []
        self._kind: ArraySpec | None = None

    def add(self, predictions: Any, scores: Any = None, *, name: str = "upload", **told: Any) -> None:  # noqa: ARG002
        """Hold one client's predictions q (N, C); scores and label sets do not count."""
        q = validate_predictions(predictions, name).cpu().to(torch.float64)
        if self._said and q.shape != self._said[0].shape:
            wanted = format_shape(self._said[0])
            raise TrustmixError(f"{name}: predictions have the shape {format_shape(q)}; those before had {wanted}.")
        self._kind = self._kind or ArraySpec.of(predictions)
        self.names.append(name)
        self._said.append(q)

    def finish(self) -> Teacher[Any]:
        """The teacher of everything added; it does not say who is behind it, so its concentration is 1/M."""
        if self._kind is None:
            raise TrustmixError("there is nothing to mix: no upload has been added.")
        teacher = self.mixed(torch.stack(self._said))
        chi = torch.full((len(teacher),), 1 / len(self._said), dtype=torch.float64)
        return Teacher(self._kind.restore(teacher), self._kind.restore(chi), len(self._said))

    def mixed(self, q: torch.Tensor) -> torch.Tensor:
        """(M, N, C) -> (N, C)."""
        return self.consensus(q)


class ExpGuard(BatchAggregator):
    """A weighted mean whose weights remember every round."""

    def __init__(self) -> None:
        super().__init__(cronus)
        self._weights: dict[str, float] = {}

    def mixed(self, q: torch.Tensor) -> torch.Tensor:
        """The mean of all, by weights that shrink with the distance to the consensus."""
        distance = torch.linalg.vector_norm(q - self.consensus(q), dim=2).mean(1)
        for name, shrunk in zip(self.names, torch.exp(-STEP_SIZE * distance).tolist(), strict=True):
            self._weights[name] = self._weights.get(name, 1.0) * shrunk
        largest = max(self._weights.values())
        self._weights = {name: weight / largest for name, weight in self._weights.items()}
        weights = torch.tensor([self._weights[name] for name in self.names], dtype=torch.float64)
        return torch.einsum("m,mnc->nc", weights / weights.sum(), q)

    def recall(self, memory: Memory) -> None:
        """Begin with the weights of the round before."""
        self._weights = {name: float(weight) for name, weight in memory.items()}

    def memory(self) -> Memory:
        """The weights."""
        return {name: torch.tensor(weight, dtype=torch.float64) for name, weight in self._weights.items()}


RULES.register("median")(lambda: BatchAggregator(median))
RULES.register("geometric-median")(lambda: BatchAggregator(geometric_median))
RULES.register("cronus")(lambda: BatchAggregator(cronus))
RULES.register("expguard")(ExpGuard)

"""Rules that other work proposes against clients that lie. They need all predictions of a round at once, M * N * C.

- `median`: the median over clients of each probability, brought back to the simplex.
- `geometric-median`: the point of least total distance to the clients' predictions of a sample (Weiszfeld's steps).
- `cronus`: Chang et al., *Cronus*, 2019, after Diakonikolas et al., 2017. Per sample, those whose predictions lie
  furthest along the direction of largest variance are left out, a quarter of the clients in two steps.
- `expguard`: Roux, Zimmer and Pokutta, 2025. A client's weight shrinks by exp(-distance to the Cronus consensus),
  round after round; the teacher is the weighted mean.
"""

from collections.abc import Callable
from typing import Self, TypeAlias

import torch

from trustmix.aggregation.base import Aggregator, StateDict
from trustmix.aggregation.upload import Upload, pack_uploads, unpack_uploads

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


class BatchAggregator(Aggregator):
    """A rule that looks at all predictions of a round together.

    Parameters
    ----------
    consensus
        (M, N, C) -> (N, C), float64.
    """

    takes_weights = False

    def __init__(self, consensus: Consensus) -> None:
        super().__init__()
        self.consensus = consensus
        self.uploads: list[Upload] = []

    def fold(self, upload: Upload) -> None:
        """Hold the upload; scores and label sets do not count."""
        self.uploads.append(Upload(upload.client, upload.predictions.clone(), spec=upload.spec))

    def estimate(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The consensus; the rule has no weights, so its concentration is 1/M."""
        teacher = self.combine(torch.stack([upload.predictions.to(torch.float64) for upload in self.uploads]))
        return teacher, torch.full((len(teacher),), 1 / len(self.uploads), dtype=torch.float64)

    def combine(self, q: torch.Tensor) -> torch.Tensor:
        """(M, N, C) -> (N, C)."""
        return self.consensus(q)

    def merge_state(self, other: Self) -> None:
        """Hold the other's uploads too."""
        self.uploads += other.uploads

    def reset(self) -> None:
        """Forget the uploads."""
        super().reset()
        self.uploads = []

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The uploads that are held."""
        return {**super().state_dict(), **(pack_uploads(self.uploads) if self.uploads else {})}

    def load_state_dict(self, state: StateDict) -> None:
        """Hold the uploads of a state."""
        super().load_state_dict(state)
        self.uploads = unpack_uploads(state) if "clients" in state else []


class Median(BatchAggregator):
    """The median of each coordinate."""

    def __init__(self) -> None:
        super().__init__(median)


class GeometricMedian(BatchAggregator):
    """The geometric median of each sample."""

    def __init__(self) -> None:
        super().__init__(geometric_median)


class Cronus(BatchAggregator):
    """The mean of those that two steps of filtering leave."""

    def __init__(self) -> None:
        super().__init__(cronus)


class ExpGuard(BatchAggregator):
    """A weighted mean whose weights remember every round."""

    def __init__(self) -> None:
        super().__init__(cronus)
        self._weights: dict[str, float] = {}
        self._new_weights: dict[str, float] = {}

    def combine(self, q: torch.Tensor) -> torch.Tensor:
        """The mean of all, by weights that shrink with the distance to the consensus."""
        distance = torch.linalg.vector_norm(q - self.consensus(q), dim=2).mean(1)
        shrunk = dict(self._weights)
        clients = [upload.client for upload in self.uploads]
        for client, factor in zip(clients, torch.exp(-STEP_SIZE * distance).tolist(), strict=True):
            shrunk[client] = shrunk.get(client, 1.0) * factor
        largest = max(shrunk.values())
        self._new_weights = {client: weight / largest for client, weight in shrunk.items()}
        weights = torch.tensor([self._new_weights[client] for client in clients], dtype=torch.float64)
        return torch.einsum("m,mnc->nc", weights / weights.sum(), q)

    def reset(self) -> None:
        """Forget the uploads; the weights stay for the next round."""
        super().reset()
        self._weights = self._new_weights or self._weights
        self._new_weights = {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The weights, and the uploads that are held."""
        known = self._weights if self.uploads else self._new_weights or self._weights
        weights = {f"{WEIGHT}{client}": torch.tensor(value, dtype=torch.float64) for client, value in known.items()}
        return {**super().state_dict(), **weights}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over weights and uploads."""
        super().load_state_dict(state)
        self._new_weights = {}
        self._weights = {key[len(WEIGHT) :]: float(value) for key, value in state.items() if key.startswith(WEIGHT)}


WEIGHT = "weight/"
"""What the names of weights in a state begin with."""

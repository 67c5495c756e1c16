"""Coupling: what a client can honestly say is how the classes it holds compare with each other.

Client i with label set C_i (k_i classes, mask m_i) tells log-odds e_i(x) within C_i and nothing about other classes.
The scores that agree best with all clients, in the least-squares sense, solve one small linear system:

    ( mean_i A_i + ridge I ) s(x) = mean_i e_i(x),    A_i = diag(m_i) - m_i m_i^T / k_i,    teacher = softmax(s)

A_i is the Laplacian of the complete graph on C_i, so odds travel along chains of clients that share a class. The sums
fold one upload at a time and merge like those of `mixing`: memory O(N*C + C^2), one factorisation for all samples.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trustmix import storage
from trustmix.aggregation.weighted_average import Teacher, validate_predictions
from trustmix.arrays import ArraySpec, format_shape, to_finite_tensor, to_float_tensor
from trustmix.errors import TrustmixError

FLOOR = 1e-4
"""Added to a client's probabilities: it bounds the log-odds that one client can claim to log(1 / FLOOR), about 9."""
RIDGE = 1e-3
"""Draws scores towards each other a little: it decides where no chain of clients does, and damps long chains."""


def couple(logits: Any, label_sets: Sequence[Iterable[int]] | None = None, *, counts: Any = None) -> Teacher[Any]:
    """Couple the clients' logits (M, N, C), each client holding the classes of its label set.

    Where clients hold very different numbers of samples of a class, give `counts` (M, C) instead of sets: a client's
    prior for its frequent classes is then taken out of its odds first.

    >>> import numpy as np
    >>> odds = np.log([[[4.0, 1.0, 1.0]], [[1.0, 3.0, 1.0]]])  # 4 : 1 for class 0 against 1, 3 : 1 for 1 against 2
    >>> teacher = couple(odds, [{0, 1}, {1, 2}])
    >>> teacher.probabilities.round(2).tolist()  # 12 : 3 : 1
    [[0.75, 0.19, 0.06]]
    """
    if (label_sets is None) == (counts is None):
        raise TrustmixError("couple takes either label_sets, one set of classes a client, or counts (M, C).")
    told = counts if label_sets is None else [_as_counts(held, logits[0]) for held in label_sets]
    if len(told) != len(logits):
        raise TrustmixError(f"logits are of {len(logits)} clients, and what they hold is told of {len(told)}.")
    coupling = Coupling()
    for index, (client, held) in enumerate(zip(logits, told, strict=True)):
        z = to_finite_tensor(client, f"client {index}: logits")
        predictions = ArraySpec.of(client).restore(torch.softmax(z.to(torch.float64), -1))
        coupling.add(predictions, classes=held, name=f"client {index}")
    return coupling.finish()


def _as_counts(held: Iterable[int], like: Any) -> torch.Tensor:
    classes, counts = sorted(set(held)), torch.zeros(like.shape[-1], dtype=torch.int64)
    if not classes or classes[0] < 0 or classes[-1] >= len(counts):
        raise TrustmixError(f"a label set is {classes}; it must name some of the classes 0 to {len(counts) - 1}.")
    counts[classes] = 1
    return counts


def log_odds(q: torch.Tensor, counts: torch.Tensor, floor: float = FLOOR) -> torch.Tensor:
    """E (N, C): what predictions q (N, C) say within the classes held, centred over them, 0 outside.

    Predictions carry the client's own class frequencies as a prior; counts + 1 divide it out.

    >>> log_odds(torch.tensor([[0.6, 0.2, 0.2]]), torch.tensor([1, 1, 0])).exp().round(decimals=3).tolist()
    [[1.732, 0.577, 1.0]]
    """
    held = (counts > 0).to(torch.float64)
    own = q.to(torch.float64) * held / (counts + 1)
    own = own / own.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    logs = torch.where(held > 0, own + floor, 1.0).log()
    return (logs - logs.sum(1, keepdim=True) / held.sum()) * held


def laplacian(counts: torch.Tensor) -> torch.Tensor:
    """A (C, C): the Laplacian of the complete graph on the classes held, each edge 1/k."""
    held = (counts > 0).to(torch.float64)
    return torch.diag(held) - torch.outer(held, held) / held.sum()


def validate_connected(held: Mapping[str, Any], classes: int) -> None:
    """Refuse label sets whose classes cannot all be compared: one that nobody holds, or islands that nobody connects.

    >>> validate_connected({"north": [0, 1], "south": [2, 3]}, 4)
    Traceback (most recent call last):
    ...
    trustmix.errors.TrustmixError: no chain of clients that share a class leads from class 0 to class 2: ...
    """
    sets = [set(torch.as_tensor(labels).tolist()) for labels in held.values()]
    missing = sorted(set(range(classes)) - set().union(*sets))
    if missing:
        raise TrustmixError(f"nobody holds class {missing[0]}, so no client can compare it with others.")
    island, waiting = set(sets[0]), sets[1:]
    while joining := [labels for labels in waiting if labels & island]:
        waiting = [labels for labels in waiting if not labels & island]
        island |= set().union(*joining)
    if waiting:
        raise TrustmixError(
            f"no chain of clients that share a class leads from class {min(island)} to class {min(waiting[0])}: their "
            "odds cannot be known; let some client hold classes of both, or use a rule that does not couple."
        )


class Coupling:
    """A coupled teacher in the making: a value that can be added to, merged, saved and resumed.

    >>> import numpy as np
    >>> north, south = Coupling(), Coupling()
    >>> north.add(np.array([[0.8, 0.2, 0.0]]), classes=np.array([1, 1, 0]))
    >>> south.add(np.array([[0.0, 0.5, 0.5]]), classes=np.array([0, 1, 1]))
    >>> north.merge(south)
    >>> north.finish().probabilities.round(2).tolist()
    [[0.67, 0.17, 0.17]]
    """

    def __init__(self, *, floor: float = FLOOR, ridge: float = RIDGE) -> None:
        self.floor, self.ridge = floor, ridge
        self.clients = 0
        self._kind: ArraySpec | None = None
        self._parts: dict[str, torch.Tensor] = {}

    def add(
        self,
        predictions: Any,
        scores: Any = None,  # noqa: ARG002 - a density has no say here
        *,
        classes: Any = None,
        name: str = "upload",
        weight: float = 1.0,
        **told: Any,  # noqa: ARG002
    ) -> None:
        """Fold in one client: predictions q (N, C), and how many samples of each class it holds (or 1 for some)."""
        q = validate_predictions(predictions, name).cpu()
        counts = validate_counts(classes, q.shape[1], name)
        total = torch.tensor(weight, dtype=torch.float64)
        odds, graph = weight * log_odds(q, counts, self.floor), weight * laplacian(counts)
        self._fold({"odds": odds, "graph": graph, "weight": total, "square": total.square()}, name)
        self.clients += 1
        self._kind = self._kind or ArraySpec.of(predictions)

    def merge(self, other: "Coupling") -> None:
        """Fold in everything another coupling has seen. The other stays as it is."""
        if other._parts:
            self._fold(other._parts, "the merged coupling")
            self.clients += other.clients
            self._kind = self._kind or other._kind

    def _fold(self, parts: Mapping[str, torch.Tensor], name: str) -> None:
        if self._parts and parts["odds"].shape != self._parts["odds"].shape:
            found, wanted = format_shape(parts["odds"]), format_shape(self._parts["odds"])
            raise TrustmixError(f"{name}: predictions have the shape {found}; those before had {wanted}.")
        for part, value in parts.items():
            self._parts[part] = self._parts[part].add_(value) if part in self._parts else value.clone()

    def finish(self) -> Teacher[Any]:
        """The teacher of everything added so far; adding may go on afterwards."""
        if not self._parts or self._kind is None:
            raise TrustmixError("there is nothing to couple: no upload has been added.")
        odds, graph, weight, square = (self._parts[part] for part in ("odds", "graph", "weight", "square"))
        factor = torch.linalg.cholesky(regularize(graph / weight, self.ridge))
        scores = torch.cholesky_solve((odds / weight).T, factor).T
        teacher = torch.softmax(mask_unheld_classes(scores, graph), 1)
        chi = (square / weight.square()).repeat(len(odds))
        return Teacher(self._kind.restore(teacher), self._kind.restore(chi), self.clients)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The coupling as named tensors and JSON-able metadata."""
        kind = self._kind or ArraySpec("numpy", torch.float64)
        facts = {"floor": self.floor, "ridge": self.ridge, "clients": self.clients}
        return dict(self._parts), {**facts, "package": kind.package, "dtype": str(kind.dtype).removeprefix("torch.")}

    @classmethod
    def from_state(cls, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any]) -> "Coupling":
        """The coupling of `state`."""
        try:
            coupling = cls(floor=float(metadata["floor"]), ridge=float(metadata["ridge"]))
            coupling.clients = int(metadata["clients"])
            if coupling.clients:
                coupling._parts = {part: tensors[part].clone() for part in ("odds", "graph", "weight", "square")}
                coupling._kind = ArraySpec(metadata["package"], getattr(torch, metadata["dtype"]))
        except (KeyError, AttributeError, TypeError) as error:
            raise TrustmixError(f"this is not a saved coupling: {error} is missing or wrong.") from error
        return coupling

    def save(self, path: str | Path) -> None:
        """Write the coupling to a safetensors file."""
        storage.write_tensors(Path(path), *self.state())

    @classmethod
    def load(cls, path: str | Path) -> "Coupling":
        """Read a coupling written by `save`."""
        return cls.from_state(*storage.read_tensors(Path(path)))


def regularize(graph: torch.Tensor, ridge: float) -> torch.Tensor:
    """The system with the sum of scores, which no client can know, fixed to zero, and the ridge added."""
    size = graph.shape[-1]
    return graph + torch.full((size, size), 1 / size, dtype=graph.dtype) + ridge * torch.eye(size, dtype=graph.dtype)


def mask_unheld_classes(scores: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
    """Scores (N, C) in which a class that nobody holds is ruled out, unless nobody compares any."""
    unheld = graph.diagonal(dim1=-2, dim2=-1) == 0
    return scores.masked_fill(unheld & ~unheld.all(-1, keepdim=True), -torch.inf)


def validate_counts(classes: Any, width: int, name: str) -> torch.Tensor:
    """What a client tells of its label set as a tensor (C,) of whole numbers, 0 for a class it does not hold."""
    if classes is None:
        raise TrustmixError(f"{name} tells no label set, and this rule compares classes within it; set wire.labels.")
    counts = to_float_tensor(classes, f"{name}: classes").cpu()
    if counts.shape != (width,) or not bool((counts >= 0).all()) or not bool(counts.any()):
        raise TrustmixError(
            f"{name}: classes have the shape {format_shape(counts)} and the sum {float(counts.sum()):g}; "
            f"they must be ({width},), the number of samples of each class, some of them above 0."
        )
    return counts

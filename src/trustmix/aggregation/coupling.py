"""Coupling: what a client can honestly say is how the classes it holds compare with each other.

Client i with label set C_i (k_i classes, mask m_i) tells log-odds e_i(x) within C_i and nothing about other classes.
The scores that agree best with all clients, in the least-squares sense, solve one small linear system:

    ( mean_i A_i + ridge I ) s(x) = mean_i e_i(x),    A_i = diag(m_i) - m_i m_i^T / k_i,    teacher = softmax(s)

A_i is the Laplacian of the complete graph on C_i, so odds travel along chains of clients that share a class. The sums
fold one upload at a time and merge by addition: memory O(N*C + C^2), one factorisation for all samples.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import torch

from trustmix.aggregation.base import StateDict, SumAggregator, Teacher, Upload
from trustmix.arrays import AnyArray, ArrayLike, ArraySpec, to_finite_tensor
from trustmix.errors import TrustmixError

FLOOR = 1e-4
"""Added to a client's probabilities: it bounds the log-odds that one client can claim to log(1 / FLOOR), about 9."""
RIDGE = 1e-3
"""Draws scores towards each other a little: it decides where no chain of clients does, and damps long chains."""


def couple(
    logits: AnyArray | Sequence[ArrayLike],
    label_sets: Sequence[Iterable[int]] | None = None,
    *,
    counts: AnyArray | Sequence[ArrayLike] | None = None,
) -> Teacher[Any]:
    """Couple the clients' logits, each client holding the classes of its label set.

    Parameters
    ----------
    logits
        (M, N, C); or a list of one array (N, C) a client.
    label_sets
        The classes that each client holds.
    counts
        (M, C), instead of label sets: how many samples of each class a client holds. A client's prior for its frequent
        classes is then taken out of its odds first.

    Returns
    -------
    Teacher
        In the kind of array that the logits came as.

    Raises
    ------
    TrustmixError
        If an array has the wrong shape, or a label set names classes that there are not.

    >>> import numpy as np
    >>> odds = np.log([[[4.0, 1.0, 1.0]], [[1.0, 3.0, 1.0]]])  # 4 : 1 for class 0 against 1, 3 : 1 for 1 against 2
    >>> teacher = couple(odds, [{0, 1}, {1, 2}])
    >>> teacher.probabilities.round(2).tolist()  # 12 : 3 : 1
    [[0.75, 0.19, 0.06]]
    """
    if (label_sets is None) == (counts is None):
        raise TrustmixError("couple takes either label_sets, one set of classes a client, or counts (M, C).")
    held = counts if label_sets is None else [_as_counts(classes, logits[0]) for classes in label_sets]
    if held is None or len(held) != len(logits):
        raise TrustmixError(f"logits are of {len(logits)} clients, and what they hold is given of {len(held or [])}.")
    coupling = Coupling()
    for index, client in enumerate(logits):
        z = to_finite_tensor(client, f"client {index}: logits")
        predictions = ArraySpec.of(client).restore(torch.softmax(z.to(torch.float64), -1))
        coupling.update(Upload.from_arrays(str(index), predictions, class_counts=held[index]))
    return coupling.compute()


def _as_counts(held: Iterable[int], like: ArrayLike) -> torch.Tensor:
    width = to_finite_tensor(like, "logits").shape[-1]
    classes, counts = sorted(set(held)), torch.zeros(width, dtype=torch.int64)
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


def validate_connected(held: Mapping[str, Iterable[int] | torch.Tensor], classes: int) -> None:
    """Refuse label sets whose classes cannot all be compared: a class without a holder, or islands without a link.

    >>> validate_connected({"north": [0, 1], "south": [2, 3]}, 4)
    Traceback (most recent call last):
    ...
    trustmix.errors.TrustmixError: no chain of clients that share a class leads from class 0 to class 2: ...
    """
    sets = [set(torch.as_tensor(labels).tolist()) for labels in held.values()]
    missing = sorted(set(range(classes)) - set().union(*sets))
    if missing:
        raise TrustmixError(f"no client holds class {missing[0]}, so it cannot be compared with others.")
    island, waiting = set(sets[0]), sets[1:]
    while joining := [labels for labels in waiting if labels & island]:
        waiting = [labels for labels in waiting if not labels & island]
        island |= set().union(*joining)
    if waiting:
        raise TrustmixError(
            f"no chain of clients that share a class leads from class {min(island)} to class {min(waiting[0])}: their "
            "odds cannot be known; let some client hold classes of both, or use a rule that does not couple."
        )


class Coupling(SumAggregator):
    """The rule `coupling`: the scores that agree best with all clients' odds within their label sets.

    Parameters
    ----------
    floor
        Added to a client's probabilities.
    ridge
        Added to the system's diagonal.

    >>> import numpy as np
    >>> north, south = Coupling(), Coupling()
    >>> north.update(Upload.from_arrays("north", np.array([[0.8, 0.2, 0.0]]), class_counts=[1, 1, 0]))
    >>> south.update(Upload.from_arrays("south", np.array([[0.0, 0.5, 0.5]]), class_counts=[0, 1, 1]))
    >>> north.merge(south)
    >>> north.compute().probabilities.round(2).tolist()
    [[0.67, 0.17, 0.17]]
    """

    needs_label_sets = True
    compares_classes = True

    def __init__(self, *, floor: float = FLOOR, ridge: float = RIDGE) -> None:
        super().__init__()
        self.floor, self.ridge = floor, ridge

    def terms(self, upload: Upload) -> dict[str, torch.Tensor]:
        """Weighted log-odds and the graph of the label set."""
        counts = label_set(upload)
        total = torch.tensor(upload.weight, dtype=torch.float64)
        odds = upload.weight * log_odds(upload.predictions, counts, self.floor)
        return {"odds": odds, "graph": upload.weight * laplacian(counts), "weight": total, "square": total.square()}

    def from_sums(self, sums: StateDict) -> tuple[torch.Tensor, torch.Tensor]:
        """Solve one system for all samples."""
        odds, graph, weight, square = (sums[part] for part in ("odds", "graph", "weight", "square"))
        factor = torch.linalg.cholesky(regularize(graph / weight, self.ridge))
        scores = torch.cholesky_solve((odds / weight).T, factor).T
        teacher = torch.softmax(mask_unheld_classes(scores, graph), 1)
        return teacher, (square / weight.square()).repeat(len(odds))

    def merge_state(self, other: Self) -> None:
        """Add the other's sums; its constants must be the same."""
        if (other.floor, other.ridge) != (self.floor, self.ridge):
            raise TrustmixError("couplings of different floor or ridge cannot be merged.")
        super().merge_state(other)


def label_set(upload: Upload) -> torch.Tensor:
    """The class counts (C,) of an upload that must have them."""
    if upload.class_counts is None:
        raise TrustmixError(f"client {upload.client}: the upload has no label set.")
    return upload.class_counts


def regularize(graph: torch.Tensor, ridge: float) -> torch.Tensor:
    """The system with the sum of scores, which no client can know, fixed to zero, and the ridge added."""
    size = graph.shape[-1]
    return graph + torch.full((size, size), 1 / size, dtype=graph.dtype) + ridge * torch.eye(size, dtype=graph.dtype)


def mask_unheld_classes(scores: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
    """Scores (N, C) in which a class that no client holds is ruled out, unless no class is compared."""
    unheld = graph.diagonal(dim1=-2, dim2=-1) == 0
    return scores.masked_fill(unheld & ~unheld.all(-1, keepdim=True), -torch.inf)

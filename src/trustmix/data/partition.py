"""Who holds what: the public set, and each client's private and calibration samples, all drawn from one pool.

The three kinds of split differ only in how many samples of each class a client holds; the rest is shared. Public and
private samples never overlap. Clients draw independently (two may hold the same sample), never one sample twice.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from trustmix.errors import TrustmixError
from trustmix.seeds import numpy_generator

Kind = Literal["classes", "dirichlet", "homogeneous"]
Counts = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class ClientIndices:
    """One client's samples, as indices into the pool."""

    train: torch.Tensor
    calibration: torch.Tensor


@dataclass(frozen=True)
class Partition:
    """Everybody's samples, as indices into the pool."""

    public: torch.Tensor
    clients: tuple[ClientIndices, ...]


def partition(
    labels: torch.Tensor,
    classes: int,
    *,
    clients: int,
    kind: Kind = "classes",
    classes_per_client: int = 2,
    samples_per_client: int = 600,
    alpha: float = 0.5,
    public_samples: int | None = 500,
    holdout: float = 0.2,
    seed: int = 0,
) -> Partition:
    """Split a labelled pool; everything that cannot be done is said before anything is drawn.

    With public_samples = None the pool is all private: the public set comes from elsewhere. With holdout = 0 clients
    calibrate on the samples they train on.

    >>> labels = torch.arange(1000) % 10
    >>> split = partition(labels, 10, clients=5, samples_per_client=40, public_samples=100)
    >>> [len(split.public), len(split.clients), len(split.clients[0].train), len(split.clients[0].calibration)]
    [100, 5, 32, 8]
    """
    pool = labels.numpy()
    public = np.zeros(0, np.int64) if public_samples is None else _public(pool, classes, public_samples, seed)
    private = np.setdiff1d(np.arange(len(pool)), public)
    members = [private[pool[private] == c] for c in range(classes)]
    available = np.array([len(m) for m in members])
    if kind == "classes":
        held = assign_classes(clients, classes, classes_per_client, seed)
        counts = np.stack([_even(samples_per_client, h, classes) for h in held])
    elif kind == "homogeneous":
        counts = np.tile(_even(samples_per_client, list(range(classes)), classes), (clients, 1))
    else:
        counts = np.stack([_dirichlet(samples_per_client, available, alpha, seed, i) for i in range(clients)])
    _check_counts(counts, available, len(public))
    shares = tuple(_draw(counts[i], members, holdout, seed, i) for i in range(clients))
    return Partition(torch.from_numpy(public), shares)


def assign_classes(clients: int, classes: int, per_client: int, seed: int) -> list[list[int]]:
    """The k classes of each client.

    The first clients deal out a shuffled deck of all classes, so that each is held by somebody; all others draw at
    random, so that some classes are common and some rare. A client's classes depend only on the seed and its number.

    >>> held = assign_classes(20, 10, 2, seed=0)
    >>> sorted(c for classes in held[:5] for c in classes) == list(range(10))
    True
    """
    if per_client > classes:
        raise TrustmixError(f"split.classes_per_client is {per_client}, but the data have {classes} classes.")
    if clients * per_client < classes:
        raise TrustmixError(
            f"{clients} clients x {per_client} classes = {clients * per_client}, and the data have {classes} classes: "
            f"raise clients to {-(-classes // per_client)} or split.classes_per_client to {-(-classes // clients)}."
        )
    deck = numpy_generator(seed, "deck").permutation(classes).tolist()
    held = []
    for client in range(clients):
        hand = deck[client * per_client : (client + 1) * per_client]
        others = [c for c in numpy_generator(seed, "classes", client).permutation(classes).tolist() if c not in hand]
        held.append(sorted(hand + others[: per_client - len(hand)]))
    return held


def _public(pool: Counts, classes: int, samples: int, seed: int) -> Counts:
    """Public indices: of each class its share of the pool, so that the public set looks like the pool."""
    if samples < 1:
        raise TrustmixError(f"public.samples is {samples}; the public set needs at least one sample.")
    if samples >= len(pool):
        raise TrustmixError(f"public.samples is {samples}, but the training data are {len(pool)} samples in all.")
    sizes = np.bincount(pool, minlength=classes)
    wanted = _largest_remainder(sizes / len(pool) * samples, samples)
    parts = [
        numpy_generator(seed, "public", c).permutation(np.flatnonzero(pool == c))[: wanted[c]] for c in range(classes)
    ]
    return np.sort(np.concatenate(parts))


def _largest_remainder(ideal: np.ndarray[tuple[int, ...], np.dtype[np.float64]], total: int) -> Counts:
    """Whole numbers nearest to the ideal ones that sum to the total."""
    counts = np.floor(ideal).astype(np.int64)
    order = np.argsort(-(ideal - counts), kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def _even(samples: int, held: list[int], classes: int) -> Counts:
    """Samples spread evenly over the held classes."""
    counts = np.zeros(classes, np.int64)
    counts[held] = samples // len(held)
    counts[held[: samples % len(held)]] += 1
    return counts


def _dirichlet(samples: int, available: Counts, alpha: float, seed: int, client: int) -> Counts:
    """Class proportions ~ Dirichlet(alpha), within what the pool has; no class is held with a single sample."""
    proportions = numpy_generator(seed, "dirichlet", client).dirichlet(np.full(len(available), alpha))
    if samples > available.sum():
        raise TrustmixError(
            f"split.samples_per_client is {samples}, but only {int(available.sum())} private samples are there."
        )
    counts = np.zeros_like(available)
    while (missing := samples - int(counts.sum())) > 0:
        room = counts < available
        ideal = np.where(room, np.maximum(proportions, 1e-12), 0)
        counts = np.minimum(counts + _largest_remainder(ideal / ideal.sum() * missing, missing), available)
    lonely = counts == 1
    counts[lonely] = 0
    room = np.where(counts >= 2, available - counts, -1)
    counts[int(np.argmax(room))] += min(int(lonely.sum()), max(int(room.max()), 0))
    return counts


def _check_counts(counts: Counts, available: Counts, public_samples: int) -> None:
    if not counts.sum(1).all():
        raise TrustmixError(
            "A client would hold no class with two samples: raise split.samples_per_client or lower split.alpha."
        )
    short = np.argwhere(counts > available)
    if len(short):
        client, cls = short[0]
        raise TrustmixError(
            f"Client {client} needs {counts[client, cls]} samples of class {cls}, but only {available[cls]} are left "
            f"beside the {public_samples} public samples: lower split.samples_per_client or public.samples, or raise "
            "split.classes_per_client."
        )


def _draw(counts: Counts, members: list[Counts], holdout: float, seed: int, client: int) -> ClientIndices:
    """One client's samples of each class, without repetition, and its holdout."""
    drawn = [
        numpy_generator(seed, "private", client, c).permutation(members[c])[: counts[c]] for c in np.flatnonzero(counts)
    ]
    labels = np.repeat(np.flatnonzero(counts), counts[counts > 0])
    indices = torch.from_numpy(np.concatenate(drawn))
    if holdout == 0:
        return ClientIndices(indices, indices)
    train, calibration = stratified_holdout(torch.from_numpy(labels), holdout, seed, client)
    return ClientIndices(indices[train], indices[calibration])


def stratified_holdout(
    labels: torch.Tensor, part: float, seed: int, client: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices to train on and, of each class a part and at least one sample, to calibrate on.

    >>> train, calibration = stratified_holdout(torch.tensor([0] * 10 + [1] * 2), 0.2, seed=0, client="a")
    >>> len(train), len(calibration)
    (9, 3)
    """
    train, calibration = [], []
    for cls in torch.unique(labels).tolist():
        own = torch.nonzero(labels == cls).flatten()
        if len(own) < 2:
            raise TrustmixError(
                f"Client {client} holds a single sample of class {cls}; each class needs two, one to train on and one "
                "to calibrate on."
            )
        own = own[torch.from_numpy(numpy_generator(seed, "holdout", client, cls).permutation(len(own)))]
        kept = min(max(1, round(part * len(own))), len(own) - 1)
        calibration.append(own[:kept])
        train.append(own[kept:])
    if not train:
        raise TrustmixError(f"Client {client} holds no samples.")
    return torch.cat(train), torch.cat(calibration)

"""Partition of a labelled pool into the public set and each client's private and calibration samples.

The kinds of split differ in how many samples of each class a client holds. Public and private samples never
overlap. Clients draw independently of each other: two clients may hold the same sample, but no client holds it twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from trustmix.errors import TrustmixError
from trustmix.lazy import lazily
from trustmix.seeds import numpy_generator

SplitKind = Literal["classes", "dirichlet", "homogeneous", "column"]
IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class ClientIndices:
    """One client's samples.

    Parameters
    ----------
    train
        Indices (n,) into the pool of the samples to train on.
    calibration
        Indices (m,) into the pool of the samples to fit the density on.
    """

    train: torch.Tensor
    calibration: torch.Tensor


@dataclass(frozen=True)
class Partition:
    """The public set and the samples of each client.

    Parameters
    ----------
    public
        Indices (N,) into the pool of the public samples.
    clients
        The samples of each client; of many clients they are drawn when they are asked for (see `lazy`).
    """

    public: torch.Tensor
    clients: Sequence[ClientIndices]


def partition(
    labels: torch.Tensor,
    classes: int,
    *,
    clients: int,
    kind: SplitKind = "classes",
    classes_per_client: int = 2,
    samples_per_client: int = 600,
    alpha: float = 0.5,
    public_samples: int | None = 500,
    holdout: float = 0.2,
    seed: int = 0,
    groups: torch.Tensor | None = None,
) -> Partition:
    """Split a labelled pool. An impossible split is refused before samples are drawn.

    Parameters
    ----------
    labels
        Tensor (n,) of the pool's class indices.
    classes
        Number of classes.
    clients
        Number of clients.
    kind
        "classes" (each client holds `classes_per_client` classes in equal parts), "dirichlet" (class proportions of
        each client are drawn from a Dirichlet distribution), "homogeneous" (each client holds all classes in equal
        parts) or "column" (each client holds the samples of one group).
    classes_per_client
        Number of classes of each client, for "classes".
    samples_per_client
        Number of private samples of each client, its calibration samples included.
    alpha
        Concentration of the Dirichlet distribution, for "dirichlet".
    public_samples
        Size of the public set; None if the public set is taken from other data.
    holdout
        Fraction of a client's samples of each class that are calibration samples. With 0, clients calibrate on the
        samples they train on.
    seed
        Seed of the split.
    groups
        Tensor (n,) of the client that each sample belongs to, for "column"; what is not public is private.

    Returns
    -------
    Partition
        Indices into the pool.

    Raises
    ------
    TrustmixError
        If the pool has too few samples or classes for the settings.

    Examples
    --------
    >>> labels = torch.arange(1000) % 10
    >>> split = partition(labels, 10, clients=5, samples_per_client=40, public_samples=100)
    >>> [len(split.public), len(split.clients), len(split.clients[0].train), len(split.clients[0].calibration)]
    [100, 5, 32, 8]
    """
    pool = labels.numpy()
    public = np.zeros(0, np.int64) if public_samples is None else _draw_public(pool, classes, public_samples, seed)
    private = np.setdiff1d(np.arange(len(pool)), public)
    members = [private[pool[private] == c] for c in range(classes)]
    available = np.array([len(m) for m in members])
    if kind == "column":
        return Partition(torch.from_numpy(public), _draw_groups(pool, private, classes, clients, holdout, seed, groups))
    if kind == "classes":
        held = assign_classes(clients, classes, classes_per_client, seed)
        counts = lazily(clients, lambda i: _even_counts(samples_per_client, held[i], classes))
        certain = bool((available >= -(-samples_per_client // classes_per_client)).all())
    elif kind == "homogeneous":
        each = _even_counts(samples_per_client, list(range(classes)), classes)
        counts, certain = lazily(clients, lambda _: each), bool((available >= each).all())
    else:
        counts = lazily(clients, lambda i: _dirichlet_counts(samples_per_client, available, alpha, seed, i))
        certain = classes < samples_per_client <= int(available.sum())  # then some class has two samples
    if not certain or samples_per_client < 1:
        for client, own in enumerate(counts):
            _validate_counts(client, own, available, len(public))
    drawn = lazily(clients, lambda i: _draw_client(counts[i], members, holdout, seed, i))
    return Partition(torch.from_numpy(public), drawn)


def _draw_groups(
    pool: IntArray,
    private: IntArray,
    classes: int,
    clients: int,
    holdout: float,
    seed: int,
    groups: torch.Tensor | None,
) -> tuple[ClientIndices, ...]:
    """The samples of each group that are not public."""
    if groups is None:
        raise TrustmixError('split.kind = "column" needs data with groups: name the column of a table in data.group.')
    owner, found = groups.numpy()[private], int(groups.max()) + 1
    if found != clients:
        raise TrustmixError(f"The column of data.group has {found} values, one for each client; set clients = {found}.")
    drawn = []
    for index in range(clients):
        own = private[owner == index]
        members = [own[pool[own] == c] for c in range(classes)]
        counts = np.array([len(m) for m in members])
        if not counts.sum():
            raise TrustmixError(f"Client {index} has no samples beside the public set; make public.samples smaller.")
        drawn.append(_draw_client(counts, members, holdout, seed, index))
    return tuple(drawn)


def assign_classes(clients: int, classes: int, per_client: int, seed: int) -> Sequence[list[int]]:
    """Assign classes to clients.

    The first clients divide a random permutation of all classes among themselves, so that every class has a client. All
    others draw at random, so that some classes are common and some rare. A client's classes depend only on the seed and
    on its index.

    Parameters
    ----------
    clients
        Number of clients.
    classes
        Number of classes.
    per_client
        Number of classes of each client.
    seed
        Seed of the split.

    Returns
    -------
    sequence of list of int
        The class indices of each client, sorted; of many clients they are drawn when they are asked for.

    Raises
    ------
    TrustmixError
        If a client needs more classes than there are, or the clients together hold fewer.

    Examples
    --------
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
    order = numpy_generator(seed, "deck").permutation(classes).tolist()

    def draw(client: int) -> list[int]:
        own = order[client * per_client : (client + 1) * per_client]
        others = [c for c in numpy_generator(seed, "classes", client).permutation(classes).tolist() if c not in own]
        return sorted(own + others[: per_client - len(own)])

    return lazily(clients, draw)


def _draw_public(pool: IntArray, classes: int, samples: int, seed: int) -> IntArray:
    """Draw the public indices with the class proportions of the pool."""
    if samples < 1:
        raise TrustmixError(f"public.samples is {samples}; the public set needs at least one sample.")
    if samples >= len(pool):
        raise TrustmixError(f"public.samples is {samples}, but the training data are {len(pool)} samples in all.")
    sizes = np.bincount(pool, minlength=classes)
    counts = _largest_remainder(sizes / len(pool) * samples, samples)
    parts = [
        numpy_generator(seed, "public", c).permutation(np.flatnonzero(pool == c))[: counts[c]] for c in range(classes)
    ]
    return np.sort(np.concatenate(parts))


def _largest_remainder(ideal: np.ndarray[tuple[int, ...], np.dtype[np.float64]], total: int) -> IntArray:
    """Round to whole numbers that sum to the total."""
    counts = np.floor(ideal).astype(np.int64)
    order = np.argsort(-(ideal - counts), kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def _even_counts(samples: int, held: list[int], classes: int) -> IntArray:
    """Spread samples evenly over the held classes."""
    counts = np.zeros(classes, np.int64)
    counts[held] = samples // len(held)
    counts[held[: samples % len(held)]] += 1
    return counts


def _dirichlet_counts(samples: int, available: IntArray, alpha: float, seed: int, client: int) -> IntArray:
    """Draw class proportions ~ Dirichlet(alpha), within what the pool has; no class gets a single sample."""
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
    single = counts == 1
    counts[single] = 0
    room = np.where(counts >= 2, available - counts, -1)
    counts[int(np.argmax(room))] += min(int(single.sum()), max(int(room.max()), 0))
    return counts


def _validate_counts(client: int, counts: IntArray, available: IntArray, public_samples: int) -> None:
    """Refuse the counts (C,) of a client that holds nothing, or more of a class than there is."""
    if not counts.any():
        raise TrustmixError(
            "A client would hold no class with two samples: raise split.samples_per_client or lower split.alpha."
        )
    short = np.flatnonzero(counts > available)
    if len(short):
        cls = short[0]
        raise TrustmixError(
            f"Client {client} needs {counts[cls]} samples of class {cls}, but only {available[cls]} are left "
            f"beside the {public_samples} public samples: lower split.samples_per_client or public.samples, or raise "
            "split.classes_per_client."
        )


def _draw_client(counts: IntArray, members: list[IntArray], holdout: float, seed: int, client: int) -> ClientIndices:
    """Draw one client's samples of each class, without repetition, and its holdout."""
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
    labels: torch.Tensor, fraction: float, seed: int, client: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """Split a client's samples into training and calibration samples, stratified by class.

    Parameters
    ----------
    labels
        Tensor (n,) of the class index of each sample.
    fraction
        Fraction of each class to calibrate on; at least one sample of each class is used.
    seed
        Seed of the split.
    client
        Id or index of the client.

    Returns
    -------
    train, calibration : torch.Tensor
        Indices into the samples.

    Raises
    ------
    TrustmixError
        If there are no samples, or a class has a single sample.

    Examples
    --------
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
        count = min(max(1, round(fraction * len(own))), len(own) - 1)
        calibration.append(own[:count])
        train.append(own[count:])
    if not train:
        raise TrustmixError(f"Client {client} holds no samples.")
    return torch.cat(train), torch.cat(calibration)

"""Who holds which class: numbers of pairs of a client and a class, by class or by client.

A table of all clients and classes would be mostly empty. The pairs are few, and the classes are looked at in groups
whose holders fit the cache.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

TILE = 2**17
"""Numbers of all clients' estimates that are looked at together; they and what is made of them fit the cache."""
MIN_ROWS = 8
"""Where one sample of all clients exceeds a tile, the classes are looked at in groups, so many samples at a time."""
DIGESTED = 1024
"""Clients whose votes are hashed at a time."""


class Holders:
    """Who holds which class: K pairs of a client and a class that it holds, in the order of clients.

    Parameters
    ----------
    client, class_
        (K,), (K,): the pairs, classes in their order within a client.
    clients, classes
        M and C.

    >>> holders = Holders(torch.tensor([0, 0, 1]), torch.tensor([0, 2, 2]), 2, 3)
    >>> holders.sum_over_classes(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [3.0, 3.0]
    """

    def __init__(self, client: torch.Tensor, class_: torch.Tensor, clients: int, classes: int) -> None:
        self.client, self.class_ = client.to(torch.int32), class_.to(torch.int32)
        self.clients, self.classes = clients, classes
        self.counts = torch.bincount(class_, minlength=classes)
        seats = max(1, int(self.counts.max()))
        together = classes if classes * seats <= TILE else max(1, TILE // (MIN_ROWS * seats))
        self.rows = max(1, TILE // (together * seats))
        """How many samples are looked at together."""
        by_class = torch.from_numpy(np.argsort(self.class_.numpy(), kind="stable").astype(np.int32))
        pairs = torch.split(by_class, self.counts.tolist())
        self.groups = [Seats(start, pairs[start : start + together]) for start in range(0, classes, together)]

    def largest(self, numbers: torch.Tensor) -> torch.Tensor:
        """(M,): the largest of numbers (K,) of each client."""
        nothing = torch.zeros(self.clients, dtype=numbers.dtype)
        return nothing.scatter_reduce_(0, self.client.to(torch.int64), numbers, "amax")

    def sum_over_classes(self, numbers: torch.Tensor) -> torch.Tensor:
        """(M,): the sums of numbers (K,) over the classes of each client."""
        return torch.zeros(self.clients, dtype=numbers.dtype).index_add_(0, self.client, numbers)

    def rest(self, rows: torch.Tensor) -> torch.Tensor:
        """(N, M): what the estimates (N, K) of each client leave of 1."""
        first = np.flatnonzero(np.diff(self.client.numpy(), prepend=-1))  # pairs are in the order of clients
        return (1 - torch.from_numpy(np.add.reduceat(rows.numpy(), first, axis=1))).clamp_(0, 1)

    def digest(self, numbers: torch.Tensor) -> str:
        """SHA-256 of numbers (K,) as a table (M, C), which is made a few clients at a time."""
        found, ends = hashlib.sha256(), torch.bincount(self.client, minlength=self.clients).cumsum(0)
        for start in range(0, self.clients, DIGESTED):
            stop = min(start + DIGESTED, self.clients)
            pairs = slice(int(ends[start - 1]) if start else 0, int(ends[stop - 1]))
            table = torch.zeros(stop - start, self.classes, dtype=numbers.dtype)
            table[(self.client[pairs] - start).to(torch.int64), self.class_[pairs].to(torch.int64)] = numbers[pairs]
            found.update(table.numpy().data)
        return found.hexdigest()


class Seats:
    """Some classes next to each other: the holders of a class have the seats 0, 1, ..., H is the largest number.

    Parameters
    ----------
    start
        The first class.
    holders
        Of each class, the pairs of `Holders` that it is in.
    """

    def __init__(self, start: int, holders: Sequence[torch.Tensor]) -> None:
        self.classes = slice(start, start + len(holders))
        seats = max(1, *(len(one) for one in holders))
        self.column = torch.zeros(len(holders), seats, dtype=torch.int32)
        """(classes, H): the pair on each seat; 0 for an empty one."""
        self.taken = torch.zeros(len(holders), seats, dtype=torch.bool)
        for row, one in enumerate(holders):
            self.column[row, : len(one)], self.taken[row, : len(one)] = one, True
        self.drawn: torch.Tensor | None = None
        """(classes, some of H): the seats whose median is taken; all if it is None."""

    def draw(self, most: int, generator: np.random.Generator) -> None:
        """Draw at most so many seats of each class at random."""
        if self.column.shape[1] > most:
            counts = self.taken.sum(1).tolist()
            seats = [generator.choice(n, most, replace=False) if n > most else np.arange(most) for n in counts]
            self.drawn = torch.from_numpy(np.stack(seats))

    def seat(self, numbers: torch.Tensor) -> torch.Tensor:
        """(classes, H) of numbers (K,), 0 on empty seats."""
        return numbers[self.column.to(torch.int64)].mul_(self.taken)

    def read(self, rows: torch.Tensor) -> torch.Tensor:
        """(samples, classes, H) of rows (samples, K); empty seats have any number."""
        return rows.index_select(1, self.column.flatten()).view(len(rows), *self.column.shape)

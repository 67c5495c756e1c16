"""Who is behind a teacher's label: each client's share w_i(x) in it, of rules that weigh and of those that do not."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch


@runtime_checkable
class Weighing(Protocol):
    """A mixer whose teacher is a weighted mean of predictions, with weights that the scores decide."""

    def shares(self, scores: Any) -> torch.Tensor:
        """w_i(x), (M, N), from the scores l_i(x) of all clients, (M, N)."""


@runtime_checkable
class Keeping(Protocol):
    """A mixer that keeps the weight of each client and sample, whatever it was made from."""

    def latest(self) -> torch.Tensor:
        """The weights (N,) of the client that was added last; shares are these, divided by those of all clients."""


@runtime_checkable
class Dealing(Protocol):
    """A mixer that deals out shares when it is finished, as the guard does once it has seen all uploads."""

    def portions(self) -> Mapping[str, torch.Tensor] | None:
        """The share (N,) of each client, by the name it was added under, of the teacher just finished, if known."""


def vote_agreement_weights(votes: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    """Shares (M, N) where a rule tells none: alike for the clients whose vote (M, N) is the teacher's (N,), else none.

    Where nobody voted so, all clients have the same share.

    >>> vote_agreement_weights(torch.tensor([[3, 1], [3, 2], [5, 2]]), torch.tensor([3, 0])).round(decimals=3).tolist()
    [[0.5, 0.333], [0.5, 0.333], [0.0, 0.333]]
    """
    same = (votes == taught).to(torch.float64)
    same[:, same.sum(0) == 0] = 1.0
    return same / same.sum(0)

"""Predictions of which a few classes of each row are known and all others are equally probable.

Codecs that keep the k largest classes give such rows. Sums over clients take them in O(N*k) each: what every class of
a row has in common is one number, which is added up by itself and spread over the classes once, at the end.
"""

from dataclasses import dataclass

import torch

from trustmix.errors import TrustmixError


@dataclass(frozen=True)
class SparsePredictions:
    """Rows on the simplex: k classes with their probabilities, and one probability that each other class has.

    Parameters
    ----------
    values
        (N, k): the probabilities of the kept classes.
    classes
        (N, k): the kept classes, int64, from 0 to C - 1, different ones in each row.
    rest
        (N,): the probability of each other class.
    n_classes
        C.

    >>> q = SparsePredictions(torch.tensor([[0.7, 0.1]]), torch.tensor([[3, 1]]), torch.tensor([0.1]), 4)
    >>> [round(p, 2) for p in q.to_dense()[0].tolist()]
    [0.1, 0.1, 0.1, 0.7]
    """

    values: torch.Tensor
    classes: torch.Tensor
    rest: torch.Tensor
    n_classes: int

    @property
    def shape(self) -> tuple[int, int]:
        """(N, C)."""
        return len(self.rest), self.n_classes

    def to_dense(self) -> torch.Tensor:
        """The predictions (N, C)."""
        return self.rest.unsqueeze(1).expand(-1, self.n_classes).scatter(1, self.classes, self.values)

    def select(self, classes: torch.Tensor) -> torch.Tensor:
        """The predictions (N, so many) of some classes."""
        place = torch.full((self.n_classes,), -1)
        place[classes] = torch.arange(len(classes))
        found = self.rest.unsqueeze(1).repeat(1, len(classes))
        column = place[self.classes]
        row, kept = (column >= 0).nonzero(as_tuple=True)
        found[row, column[row, kept]] = self.values[row, kept]
        return found

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """The sum over rows of weights (N,), not negative, times predictions: (C,), float64.

        >>> q = SparsePredictions(torch.tensor([[0.5], [0.8]]), torch.tensor([[0], [2]]), torch.tensor([0.25, 0.1]), 3)
        >>> q.weighted_sum(torch.tensor([2.0, 1.0])).round(decimals=6).tolist()
        [1.1, 0.6, 1.3]
        """
        weights, rest = weights.to(torch.float64), self.rest.to(torch.float64)
        more = (self.values - rest.unsqueeze(1)) * weights.unsqueeze(1)
        total = (weights @ rest).repeat(self.n_classes).index_add_(0, self.classes.flatten(), more.flatten())
        return total.clamp_min_(0)  # values of 0 may be below by the rounding of a difference

    def validate(self, source: str) -> None:
        """Refuse rows that name a class twice or one that is none; the caller checks the probabilities.

        >>> SparsePredictions(torch.ones(1, 1), torch.tensor([[4]]), torch.zeros(1), 4).validate("client north")
        Traceback (most recent call last):
        ...
        trustmix.errors.TrustmixError: client north: row 1 of the predictions names a class beyond 0 to 3.
        """
        ordered = self.classes.sort(1).values
        beyond = (ordered[:, 0] < 0) | (ordered[:, -1] >= self.n_classes)
        if bool(beyond.any()):
            row, last = int(beyond.nonzero()[0]), self.n_classes - 1
            raise TrustmixError(f"{source}: row {row + 1} of the predictions names a class beyond 0 to {last}.")
        twice = (ordered[:, 1:] == ordered[:, :-1]).any(1)
        if bool(twice.any()):
            row = int(twice.nonzero()[0])
            raise TrustmixError(f"{source}: row {row + 1} of the predictions names a class twice; name each one once.")

    def on_simplex(self, tolerance: float) -> bool:
        """Whether no probability is negative and every row sums to 1, up to the tolerance; false for NaN."""
        others = self.n_classes - self.values.shape[1]
        total = self.values.sum(1) + others * self.rest
        return (
            bool(((total - 1).abs() <= tolerance).all())
            and float(self.values.min()) >= 0
            and (others == 0 or float(self.rest.min()) >= 0)
        )

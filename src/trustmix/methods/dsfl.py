"""DS-FL (Itahara et al., 2021): averaged predictions, sharpened by entropy reduction aggregation (ERA).

p(x) = softmax(((1/M) sum_i q_i(x)) / T): the averaged probabilities go through a softmax of low temperature T.
"""

from dataclasses import replace
from typing import Any

import torch

from trustmix.aggregation.rules import RULES
from trustmix.aggregation.weighted_average import Accumulator, Teacher
from trustmix.arrays import ArraySpec, to_finite_tensor

TEMPERATURE = 0.1
"""T, the paper's choice."""


def entropy_reduction(probabilities: Any, temperature: float = TEMPERATURE) -> Any:
    """softmax(p / T) of each row (N, C).

    >>> import numpy as np
    >>> entropy_reduction(np.array([[0.6, 0.4]])).round(4).tolist()  # odds exp(0.2 / 0.1)
    [[0.8808, 0.1192]]
    """
    p = to_finite_tensor(probabilities, "probabilities").to(torch.float64)
    return ArraySpec.of(probabilities).restore(torch.softmax(p / temperature, -1))


@RULES.register("ds-fl")
class DSFL:
    """The average of all predictions, sharpened."""

    def __init__(self) -> None:
        self._average = Accumulator(0.0)

    def add(self, predictions: Any, scores: Any = None, *, weight: float = 1.0, **told: Any) -> None:
        """Fold in one client's predictions q (N, C); at tau = 0 scores do not count."""
        self._average.add(predictions, scores, weight=weight, **told)

    def finish(self) -> Teacher[Any]:
        """The teacher of everything added so far."""
        teacher = self._average.finish()
        return replace(teacher, probabilities=entropy_reduction(teacher.probabilities))

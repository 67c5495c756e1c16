"""DS-FL (Itahara et al., 2021): averaged predictions, sharpened by entropy reduction aggregation (ERA).

p(x) = softmax(((1/M) sum_i q_i(x)) / T): the averaged probabilities go through a softmax of low temperature T.
"""

from dataclasses import replace
from typing import Any

import torch

from trustmix.aggregation.base import Teacher
from trustmix.aggregation.weighted_average import Accumulator
from trustmix.arrays import ArrayLike, ArraySpec, to_finite_tensor
from trustmix.federation.method import METHODS, Method

TEMPERATURE = 0.1
"""T, the paper's choice."""


def entropy_reduction(probabilities: ArrayLike, temperature: float = TEMPERATURE) -> Any:
    """softmax(p / T) of each row (N, C), in the kind of array given.

    >>> import numpy as np
    >>> entropy_reduction(np.array([[0.6, 0.4]])).round(4).tolist()  # odds exp(0.2 / 0.1)
    [[0.8808, 0.1192]]
    """
    p = to_finite_tensor(probabilities, "probabilities").to(torch.float64)
    return ArraySpec.of(probabilities).restore(torch.softmax(p / temperature, -1))


class DSFL(Accumulator):
    """The average of all predictions, sharpened; scores do not count."""

    def __init__(self) -> None:
        super().__init__(tau=0.0)

    def compute(self) -> Teacher[Any]:
        """The softmax of the averaged probabilities at a low temperature."""
        teacher = super().compute()
        return replace(teacher, probabilities=entropy_reduction(teacher.probabilities))


METHODS.register("ds-fl")(Method("ds-fl", "DS-FL", DSFL))

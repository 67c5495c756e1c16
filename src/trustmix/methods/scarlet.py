"""SCARLET: averaged predictions, sharpened by enhanced entropy reduction aggregation.

Azuma, Nishio, Kitagawa, Nakano and Tanimura, Soft-label caching and sharpening for communication-efficient federated
distillation, IEEE Transactions on Mobile Computing 2026. p(x) is proportional to ((1/M) sum_i q_i(x))^beta: a power of
the averaged prediction in place of DS-FL's softmax of it. beta = 1 is AVG and beta > 1 sharpens, whereas the softmax of
probabilities flattens unless T is small. The cache of soft labels is left out.
"""

from dataclasses import replace
from typing import Any

import torch

from trustmix.aggregation.base import Teacher
from trustmix.aggregation.weighted_average import Accumulator
from trustmix.arrays import ArrayLike, ArraySpec, to_finite_tensor
from trustmix.federation.method import METHODS, Method

BETA = 2.0
"""The default of the published code."""


def power_sharpening(probabilities: ArrayLike, beta: float = BETA) -> Any:
    """p^beta / sum p^beta of each row (N, C), in the kind of array given.

    >>> import numpy as np
    >>> power_sharpening(np.array([[0.75, 0.25]])).round(4).tolist()  # odds 3^2
    [[0.9, 0.1]]
    """
    p = to_finite_tensor(probabilities, "probabilities").to(torch.float64)
    powers = (p / p.amax(-1, keepdim=True)) ** beta
    return ArraySpec.of(probabilities).restore(powers / powers.sum(-1, keepdim=True))


class Scarlet(Accumulator):
    """The average of all predictions to the power beta, normalised; scores do not count."""

    def __init__(self) -> None:
        super().__init__(tau=0.0)

    def compute(self) -> Teacher[Any]:
        """The sharpened average."""
        teacher = super().compute()
        return replace(teacher, probabilities=power_sharpening(teacher.probabilities))


METHODS.register("scarlet")(Method("scarlet", "SCARLET", Scarlet))

"""FedMD (Li and Wang, 2019): the teacher is the mean of the clients' class scores, f(x) = (1/M) sum_i f_i(x).

Predictions suffice: log q_i is the logit z_i up to one constant a sample, which the softmax takes out again, so
softmax((1/M) sum_i log q_i) = softmax((1/M) sum_i z_i). AVG, by contrast, averages the probabilities themselves.
"""

from typing import Any

import torch

from trustmix.aggregation.rules import RULES
from trustmix.aggregation.weighted_average import Teacher, validate_predictions
from trustmix.arrays import ArraySpec, format_shape
from trustmix.errors import TrustmixError


@RULES.register("fedmd")
class FedMD:
    """The softmax of averaged class scores.

    >>> import numpy as np
    >>> rule = FedMD()
    >>> rule.add(np.array([[0.8, 0.2]])); rule.add(np.array([[0.5, 0.5]]))
    >>> rule.finish().probabilities.round(4).tolist()  # odds sqrt(4 * 1) = 2
    [[0.6667, 0.3333]]
    """

    def __init__(self) -> None:
        self.clients = 0
        self._weight = 0.0
        self._kind: ArraySpec | None = None
        self._total: torch.Tensor | None = None

    def add(
        self,
        predictions: Any,
        scores: Any = None,  # noqa: ARG002
        *,
        name: str = "upload",
        weight: float = 1.0,
        **told: Any,  # noqa: ARG002
    ) -> None:
        """Fold in one client's predictions q (N, C); a probability of zero counts as the smallest of its type."""
        q = validate_predictions(predictions, name).cpu()
        class_scores = weight * q.clamp_min(torch.finfo(q.dtype).tiny).to(torch.float64).log()
        if self._total is not None and class_scores.shape != self._total.shape:
            wanted = format_shape(self._total)
            raise TrustmixError(f"{name}: predictions have the shape {format_shape(q)}; those before had {wanted}.")
        self._total = class_scores if self._total is None else self._total + class_scores
        self._kind = self._kind or ArraySpec.of(predictions)
        self.clients += 1
        self._weight += weight

    def finish(self) -> Teacher[Any]:
        """The teacher of everything added so far."""
        if self._total is None or self._kind is None:
            raise TrustmixError("there is nothing to mix: no upload has been added.")
        teacher = torch.softmax(self._total / self._weight, 1)
        chi = torch.full((len(teacher),), 1 / self.clients, dtype=torch.float64)
        return Teacher(self._kind.restore(teacher), self._kind.restore(chi), self.clients)

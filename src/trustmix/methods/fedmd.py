"""FedMD (Li and Wang, 2019): the teacher is the mean of the clients' class scores, f(x) = (1/M) sum_i f_i(x).

Predictions suffice: log q_i is the logit z_i up to one constant a sample, which the softmax takes out again, so
softmax((1/M) sum_i log q_i) = softmax((1/M) sum_i z_i). AVG, by contrast, averages the probabilities themselves.
"""

import torch

from trustmix.aggregation.base import StateDict, SumAggregator
from trustmix.aggregation.upload import Upload
from trustmix.federation.method import METHODS, Method


class FedMD(SumAggregator):
    """The softmax of averaged class scores.

    >>> import numpy as np
    >>> rule = FedMD()
    >>> rule.update(np.array([[0.8, 0.2]])); rule.update(np.array([[0.5, 0.5]]))
    >>> rule.compute().probabilities.round(4).tolist()  # odds sqrt(4 * 1) = 2
    [[0.6667, 0.3333]]
    """

    def terms(self, upload: Upload) -> dict[str, torch.Tensor]:
        """Log q; a probability of zero counts as the smallest of its type."""
        q, weight = upload.predictions, upload.weight
        class_scores = weight * q.clamp_min(torch.finfo(q.dtype).tiny).to(torch.float64).log()
        return {"class_scores": class_scores, "weight": torch.tensor(weight, dtype=torch.float64)}

    def from_sums(self, sums: StateDict) -> tuple[torch.Tensor, torch.Tensor]:
        """The softmax of the mean; all clients count alike."""
        teacher = torch.softmax(sums["class_scores"] / sums["weight"], 1)
        return teacher, torch.full((len(teacher),), 1 / self.n_clients, dtype=torch.float64)


METHODS.register("fedmd")(Method("fedmd", "FedMD", FedMD))

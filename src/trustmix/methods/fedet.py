"""Fed-ET: logits weighted by their variance.

Cho, Manoel, Joshi, Sim and Dimitriadis, Heterogeneous ensemble knowledge transfer for training large models in
federated learning, IJCAI 2022. The weighted consensus: w_i(x) = Var(z_i(x)) / sum_j Var(z_j(x)), the variance of a
client's logits over the classes of one sample, and the teacher is softmax(sum_i w_i(x) z_i(x)). A constant added to
logits changes no variance, so predictions suffice. The paper trains on the most probable class of the consensus; its
diversity regulariser and its larger model at the server are left out.
"""

import torch

from trustmix.aggregation.upload import Upload
from trustmix.aggregation.weighted_logits import WeightedLogits, centred_logits
from trustmix.federation.method import METHODS, Method
from trustmix.wire import CODECS

LEAST_VARIANCE = 1e-12
"""Added to every variance: clients that are all undecided have equal weights."""


class FedET(WeightedLogits):
    """The softmax of logits weighted by their variance.

    >>> rule = FedET()
    >>> rule.update([[0.8, 0.2]]); rule.update([[0.5, 0.5]])
    >>> rule.compute().probabilities.round(decimals=4).tolist()  # the second client is undecided: variance 0
    [[0.8, 0.2]]
    """

    def sample_weights(self, upload: Upload) -> torch.Tensor:
        """The variance of the logits over classes."""
        return centred_logits(upload.predictions).square().mean(1) + LEAST_VARIANCE


METHODS.register("fed-et")(
    Method(
        "fed-et",
        "Fed-ET",
        FedET,
        refuses=tuple(
            ("wire.up", codec, "it weighs by logits, which need small probabilities as they are; set wire.up = float32")
            for codec in CODECS.names()
            if codec != "float32"
        ),
    )
)

"""FedAUX: logits weighted by how certain a client is that a sample is like its own.

Sattler, Korjakow, Rischke and Samek, FedAUX: Leveraging unlabeled auxiliary data in federated learning, IEEE
Transactions on Neural Networks and Learning Systems 2021. A client's certainty s_i(x) is the probability, by an
L2-regularised logistic regression of private against public samples, that x is private. The teacher is softmax(sum_i
s_i(x) z_i(x) / sum_i s_i(x)). The paper classifies features of an encoder that all clients share, pretrained on the
public set and frozen. Here they are features of the client's own model; where the data are features of a frozen BERT or
ResNet, the inputs already are that encoder's. The pretraining and the noise that makes scores private are left out.
"""

import math

import torch

from trustmix.aggregation.upload import Upload
from trustmix.aggregation.weighted_logits import WeightedLogits
from trustmix.density import PrecomputedScores
from trustmix.density.ratio import fit_balanced_logistic
from trustmix.federation.client import Client, ModelState
from trustmix.federation.messages import Request
from trustmix.federation.method import CLIENTS, METHODS, Method
from trustmix.learners.scoring import predict_features
from trustmix.wire import UPLOAD_ENCODERS

PENALTY = 0.01
"""lambda / 2 |beta|^2 is added to the sum of losses, as in the published code; features are at most 1 long."""
LEAST_CERTAINTY = 1e-8
"""Added to every certainty, so that a sample that no client is certain of still has a label."""
PARTS = 2
"""Parts of the public set, each scored by a classifier that has not seen it."""


def certainty(own: torch.Tensor, public: torch.Tensor) -> torch.Tensor:
    """The probability that a public sample is one of the client's, by a classifier that has not seen it.

    The paper keeps a part of the public set for the classifier alone. Here each half is scored by the other, so that no
    sample is lost. The classifier is that of the density ratio, whose sides have equal weights; the log-odds of the
    numbers of samples on the two sides are added, as the paper's regression on the samples as they are has them.

    Parameters
    ----------
    own
        (n, D): features of the client's samples.
    public
        (N, D): features of the public samples.

    Returns
    -------
    torch.Tensor
        (N,), float64, from 0 to 1.

    >>> own, public = torch.tensor([[1.0], [1.2]]), torch.tensor([[1.1], [-1.0], [1.0], [-1.1], [-0.9], [-1.2]])
    >>> (certainty(own, public) > 0.25).tolist()  # two of eight samples are the client's
    [True, False, True, False, False, False]
    """
    length = torch.cat([own, public]).double().norm(dim=1).max().clamp_min(torch.finfo(torch.float64).tiny)
    x_own, x_public = (_with_ones(x.double() / length) for x in (own, public))
    part = torch.arange(len(public)) % PARTS
    found = torch.empty(len(public), dtype=torch.float64)
    for index in range(PARTS):
        seen = x_public[(part != index) | (len(public) < PARTS)]
        beta = fit_balanced_logistic(x_own, seen, PENALTY / (len(own) + len(seen)))
        found[part == index] = torch.sigmoid(x_public[part == index] @ beta + math.log(len(own) / len(seen)))
    return found


def _with_ones(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)


class FedAUXClient(Client):
    """A client that sends the logarithm of its certainty as the score of a sample."""

    needs_features = True

    def make_upload(self, state: ModelState, request: Request) -> bytes:
        """Predictions and certainties."""
        _, own = predict_features(state.model, self.own_samples.inputs, self.hardware)
        logits, public = predict_features(state.model, self.public.inputs, self.hardware)
        scores = PrecomputedScores(certainty(own, public).log())
        return UPLOAD_ENCODERS["scores"](logits, scores, self.public.header(self.id, request.round), self.codec)


class FedAUX(WeightedLogits):
    """The softmax of logits weighted by certainties; without scores all clients are certain.

    >>> rule = FedAUX()
    >>> rule.update([[0.9, 0.1]], [math.log(0.5)]); rule.update([[0.5, 0.5]], [math.log(0.5)])
    >>> rule.compute().probabilities.round(decimals=4).tolist()  # odds sqrt(9)
    [[0.75, 0.25]]
    """

    def sample_weights(self, upload: Upload) -> torch.Tensor:
        """The certainties; a score above 0, which none can have, counts as 0."""
        if upload.scores is None:
            return torch.ones(len(upload.predictions), dtype=torch.float64)
        return upload.scores.clamp(max=0).exp() + LEAST_CERTAINTY


CLIENTS.register("fedaux")(FedAUXClient)
METHODS.register("fedaux")(
    Method(
        "fedaux",
        "FedAUX",
        FedAUX,
        client="fedaux",
        colour=8,
        refuses=(("wire.form", "density", "it sends scores with its predictions; set wire.form = scores"),),
    )
)

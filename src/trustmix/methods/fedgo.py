"""FedGO: weights by the odds of a discriminator and the number of samples.

Jang, Park and Lee, Provably near-optimal federated ensemble distillation with negligible overhead, ICML 2025. w_i(x) is
proportional to n_i D_i(x) / (1 - D_i(x)): the odds that a client's discriminator gives a sample for being one of the
client's, times the number n_i of its samples. The odds estimate p_i(x) / p_pub(x), so the weight estimates the
probability that a sample of all clients' data together is the client's. The discriminator here is the classifier of
`density.kind = "ratio"`, of own against public samples; the paper trains a network against a generator's samples.
"""

import math

from trustmix.aggregation.weighted_average import Accumulator
from trustmix.density import RATIO, PrecomputedScores
from trustmix.federation.client import Client, ModelState
from trustmix.federation.messages import Request
from trustmix.federation.method import CLIENTS, METHODS, Method
from trustmix.learners.scoring import score_inputs
from trustmix.wire import UPLOAD_ENCODERS


class FedGOClient(Client):
    """A client whose scores are log n_i + log r_i(x); the server learns n_i by no other way."""

    needs_features = True

    def make_upload(self, state: ModelState, request: Request) -> bytes:
        """Predictions and scores."""
        own = self.own_samples
        found = score_inputs(state.model, own, self.public.inputs, self.hardware, RATIO)
        scores = PrecomputedScores(found.scores + math.log(len(own)))
        return UPLOAD_ENCODERS["scores"](found.logits, scores, self.public.header(self.id, request.round), self.codec)


class FedGO(Accumulator):
    """The average of predictions with weights exp(l_i) / sum_j exp(l_j), l_i = log n_i + log r_i.

    >>> rule = FedGO()
    >>> rule.update([[0.9, 0.1]], [math.log(300 * 0.5)])  # 300 samples, among which such a one is half as common
    >>> rule.update([[0.1, 0.9]], [math.log(50 * 1.0)])
    >>> rule.compute().probabilities.round(decimals=4).tolist()  # weights 3/4 and 1/4
    [[0.7, 0.3]]
    """

    def __init__(self) -> None:
        super().__init__(tau=1.0)


CLIENTS.register("fedgo")(FedGOClient)
METHODS.register("fedgo")(
    Method(
        "fedgo",
        "FedGO",
        FedGO,
        client="fedgo",
        colour=9,
        refuses=(("wire.form", "density", "it sends scores with its predictions; set wire.form = scores"),),
    )
)

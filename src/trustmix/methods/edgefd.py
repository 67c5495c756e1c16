"""EdgeFD: clients vote on public samples near a cluster of their own.

Mujtaba, Radchenko, Prodan and Masana, Federated distillation on edge devices: Efficient client-side filtering for
non-IID data, FLTA 2025. A client votes only on public samples near one of the k-means clusters of its own samples:
min_k |f(x) - c_k| <= T. The server averages the votes and filters nothing. Here f are the features of the client's
model, a client has as many clusters as classes, and T is the distance within which `COVERED` of its own samples lie:
choices made here. A sample without a vote is left out of distillation.
"""

import math

import numpy as np
import torch

from trustmix.density import PrecomputedScores
from trustmix.federation.client import ModelState
from trustmix.federation.messages import Request
from trustmix.federation.method import CLIENTS, METHODS, Method
from trustmix.learners.scoring import predict_features
from trustmix.methods.selective_fd import NO_VOTE, VOTE, SelectiveClient, SelectiveFD
from trustmix.wire import UPLOAD_ENCODERS

COVERED = 0.9
"""The part of a client's own samples that are near a cluster."""


def near_clusters(own: torch.Tensor, public: torch.Tensor, clusters: int, covered: float = COVERED) -> torch.Tensor:
    """Which public samples are as near to a cluster of the client's samples as most of those are.

    Parameters
    ----------
    own
        (n, D): features of the client's samples.
    public
        (N, D): features of the public samples.
    clusters
        The number of clusters; n at most.
    covered
        The part of the client's samples that lie within the largest accepted distance.

    Returns
    -------
    torch.Tensor
        (N,), boolean.

    >>> own, public = torch.tensor([[0.0], [1.0], [9.0], [10.0]]), torch.tensor([[0.5], [5.0], [9.9], [11.0]])
    >>> near_clusters(own, public, clusters=2).tolist()  # centroids 0.5 and 9.5, all own samples at distance 0.5
    [True, False, True, False]
    """
    from sklearn.cluster import KMeans  # takes a second to import

    x = own.double().numpy()
    fitted = KMeans(min(clusters, len(x)), n_init=1, random_state=0).fit(x)
    distances = [fitted.transform(points).min(1) for points in (x, public.double().numpy())]
    return torch.from_numpy(distances[1] <= np.quantile(distances[0], covered))


class EdgeFDClient(SelectiveClient):
    """A client that votes on samples near its clusters, and leaves samples without votes out of its distillation."""

    needs_features = True
    max_ambiguity = 0.99

    def make_upload(self, state: ModelState, request: Request) -> bytes:
        """Predictions, and a vote a sample in place of a score."""
        own = self.own_samples
        _, seen = predict_features(state.model, own.inputs, self.hardware)
        logits, public = predict_features(state.model, self.public.inputs, self.hardware)
        near = near_clusters(seen, public, len(torch.unique(own.labels)))
        votes = PrecomputedScores(torch.where(near, VOTE, NO_VOTE))
        return UPLOAD_ENCODERS["scores"](logits, votes, self.public.header(self.id, request.round), self.codec)


class EdgeFD(SelectiveFD):
    """The average of the votes on each sample; uniform where there are none.

    >>> rule = EdgeFD()
    >>> rule.update([[0.75, 0.25], [0.9, 0.1]], [VOTE, NO_VOTE])
    >>> rule.update([[0.5, 0.5], [0.2, 0.8]], [VOTE, NO_VOTE])
    >>> rule.compute().probabilities.tolist()  # two votes that hardly agree; none
    [[0.625, 0.375], [0.5, 0.5]]
    """

    max_ambiguity = math.inf


CLIENTS.register("edgefd")(EdgeFDClient)
METHODS.register("edgefd")(
    Method(
        "edgefd",
        "EdgeFD",
        EdgeFD,
        client="edgefd",
        refuses=(
            ("wire.form", "density", "it sends votes with its predictions; set wire.form = scores"),
            ("wire.down", "argmax", "it drops samples by uniform labels, which argmax cannot carry"),
        ),
    )
)

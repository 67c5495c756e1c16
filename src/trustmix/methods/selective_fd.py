"""Selective-FD (Shao et al., 2024): clients vote only on samples they know, the server drops ambiguous results.

A client knows a sample if the density ratio of its private data to the public set, r(z) = p_private(z) / p_public(z),
estimated in closed form by KuLSIF (Kanamori et al., 2012, equation 5) on its logits, is at least `KNOWN`. The server
averages the votes and drops samples without a vote and those whose entropy exceeds `AMBIGUOUS` log C.
"""

import math
from typing import ClassVar

import torch

from trustmix.aggregation.base import StateDict, SumAggregator
from trustmix.aggregation.upload import Upload
from trustmix.density import PrecomputedScores
from trustmix.federation.client import Client, ModelState
from trustmix.federation.messages import Request
from trustmix.federation.method import CLIENTS, METHODS, Method
from trustmix.learners import Lesson
from trustmix.learners.training import predict
from trustmix.wire import UPLOAD_ENCODERS

KNOWN = 0.5
"""Smallest density ratio of a sample that a client votes on."""
AMBIGUOUS = 0.5
"""Largest entropy of an averaged vote that is passed on, as a part of log C."""
VOTE, NO_VOTE = 0.0, -1.0
"""A client's score of a sample; both survive every codec."""


def ambiguity(probabilities: torch.Tensor) -> torch.Tensor:
    """The entropy of each row (N, C) as a part of log C: 0 is certain, 1 uniform.

    >>> [round(part, 6) for part in ambiguity(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).tolist()]
    [0.0, 1.0]
    """
    entropy: torch.Tensor = torch.special.entr(probabilities).sum(1)
    return entropy / math.log(probabilities.shape[1])


class DensityRatio:
    """KuLSIF: r(z) = sum_j alpha_j k(z, y_j) + (1 / (m lambda)) sum_i k(z, x_i), x (m, C) private, y (n, C) public.

    (K_yy / n + lambda I) alpha = -K_yx 1 / (n m lambda), with a Gaussian kernel as wide as the median distance and
    lambda = min(n, m)^-0.9.

    >>> generator = torch.Generator().manual_seed(0)
    >>> private, public = (torch.randn(200, 1, generator=generator) * s for s in (0.3, 2.0))
    >>> near, far = DensityRatio(private, public)(torch.tensor([[0.0], [3.0]]))
    >>> bool(near > 2 > KNOWN > far)
    True
    """

    def __init__(self, private: torch.Tensor, public: torch.Tensor) -> None:
        self.private, self.public = private.to(torch.float64), public.to(torch.float64)
        n, m = len(public), len(private)
        self.penalty = min(n, m) ** -0.9
        distances = torch.cdist(self.public, torch.cat([self.public, self.private]))
        self.width = float(distances.median()) or 1.0
        kernel = self._kernel(distances)
        pull = kernel[:, n:].sum(1) / (n * m * self.penalty)
        self.alpha = torch.linalg.solve(
            kernel[:, :n] / n + self.penalty * torch.eye(n, dtype=torch.float64, device=kernel.device), -pull
        )

    def __call__(self, points: torch.Tensor) -> torch.Tensor:
        """r(z) of points (N, C)."""
        points = points.to(torch.float64)
        private = self._kernel(torch.cdist(points, self.private)).mean(1) / self.penalty
        return torch.addmv(private, self._kernel(torch.cdist(points, self.public)), self.alpha)

    def _kernel(self, distances: torch.Tensor) -> torch.Tensor:
        return torch.exp(-distances.square() / (2 * self.width**2))


class SelectiveClient(Client):
    """A client that votes on what it knows, and leaves samples that were dropped out of its distillation."""

    max_ambiguity: ClassVar[float] = (1 + AMBIGUOUS) / 2
    """Labels that are nearer to uniform count as dropped; between the largest that is passed on and uniform."""

    def make_upload(self, state: ModelState, request: Request) -> bytes:
        """Predictions, and a vote a sample in place of a score."""
        private = predict(state.model, self.calibration.inputs, self.hardware).cpu()
        logits = predict(state.model, self.public.inputs, self.hardware).cpu()
        votes = PrecomputedScores(torch.where(DensityRatio(private, logits)(logits) >= KNOWN, VOTE, NO_VOTE))
        header = self.public.header(self.id, request.round)
        return UPLOAD_ENCODERS["scores"](logits, votes, header, self.codec)

    def apply_server_message(self, state: ModelState, round_: int, message: bytes) -> Lesson | None:  # noqa: ARG002
        """Distil the samples whose label is far from uniform, whatever the codec."""
        teacher = self.public.teacher(message, round_ - 1).to(self.hardware.device)
        kept = (ambiguity(teacher) < self.max_ambiguity).nonzero().squeeze(1)
        if len(kept) < 2:
            return None  # batch norm needs two samples
        return Lesson(self.public.inputs[kept], teacher[kept])


class SelectiveFD(SumAggregator):
    """The average of the votes on each sample, where there are any and they agree enough; uniform elsewhere.

    >>> rule = SelectiveFD()
    >>> rule.update(torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]]), torch.tensor([VOTE, NO_VOTE, VOTE]))
    >>> rule.update(torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.4, 0.6]]), torch.tensor([NO_VOTE, NO_VOTE, VOTE]))
    >>> rule.compute().probabilities.tolist()  # one vote; none; two that disagree
    [[0.8999999761581421, 0.10000000149011612], [0.5, 0.5], [0.5, 0.5]]
    """

    max_ambiguity: ClassVar[float] = AMBIGUOUS
    """The largest ambiguity of an averaged vote that is passed on."""

    def terms(self, upload: Upload) -> dict[str, torch.Tensor]:
        """Predictions where the score is VOTE; without scores, everywhere."""
        q = upload.predictions.to(torch.float64)
        score = torch.full((len(q),), VOTE) if upload.scores is None else upload.scores
        vote = upload.weight * (score > (VOTE + NO_VOTE) / 2).to(torch.float64)
        return {"total": q * vote.unsqueeze(1), "votes": vote}

    def from_sums(self, sums: StateDict) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean vote; its concentration is one over the number of votes."""
        votes = sums["votes"].clamp_min(1)
        mean = sums["total"] / sums["votes"].clamp_min(torch.finfo(torch.float64).tiny).unsqueeze(1)
        clear = (sums["votes"] > 0) & (ambiguity(mean) <= self.max_ambiguity)
        teacher = torch.where(clear.unsqueeze(1), mean, 1 / mean.shape[1])
        return teacher, torch.where(clear, 1 / votes, 1 / self.n_clients)


CLIENTS.register("selective")(SelectiveClient)
METHODS.register("selective-fd")(
    Method(
        "selective-fd",
        "Selective-FD",
        SelectiveFD,
        client="selective",
        refuses=(
            ("wire.form", "density", "it sends votes with its predictions; set wire.form = scores"),
            ("wire.down", "argmax", "it drops samples by uniform labels, which argmax cannot carry"),
        ),
    )
)

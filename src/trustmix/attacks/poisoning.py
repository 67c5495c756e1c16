"""Uploads that keep every promise of form and lie in what they say. Each lie is a function from what a liar knows.

Liars collude: they see what the honest clients say in the same round. LMA, CPA and HIPS are of Roux, Zimmer and
Pokutta, *On the Byzantine-resilience of distillation-based federated learning* (2025); FDLA is of Tang et al., *Logits
poisoning attack in federated distillation* (2024).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch.nn.functional import one_hot

from trustmix.aggregation.base import Upload
from trustmix.registry import Registry


@dataclass(frozen=True)
class AttackContext:
    """What a liar knows when it lies."""

    own: Upload
    """What it would have said honestly."""
    honest: Sequence[Upload]
    """What the honest clients say in this round; its own upload alone if there are none."""
    generator: torch.Generator

    @property
    def honest_mean(self) -> torch.Tensor:
        """(N, C): what the honest clients say on average."""
        return torch.stack([upload.predictions for upload in self.honest]).mean(0)

    def with_votes(self, classes: torch.Tensor) -> Upload:
        """The own upload with full confidence in these classes (N,) instead of its predictions."""
        return replace(self.own, predictions=one_hot(classes, self.own.predictions.shape[1]).to(torch.float32))


def scores_of(upload: Upload) -> torch.Tensor:
    """The scores (N,) of an upload, zeros where it has none."""
    return torch.zeros(len(upload.predictions)) if upload.scores is None else upload.scores


Attack: TypeAlias = Callable[[AttackContext], Upload]

POISONING_ATTACKS: Registry[Attack] = Registry("attack")

HUGE = 1e6
"""What an inflated score is raised by."""
SHARP = 0.1
"""The temperature of predictions that claim too much."""
FEW = 20
"""One sample in so many is what a concentrated lie is about."""


@POISONING_ATTACKS.register("inflate")
def inflate(context: AttackContext) -> Upload:
    """Honest predictions with huge scores: a client that claims to know every sample best.

    >>> own = Upload("liar", torch.tensor([[0.9, 0.1]]), torch.tensor([-3.0]))
    >>> inflate(AttackContext(own, [own], torch.Generator())).scores.tolist()
    [999997.0]
    """
    ranks = None if context.own.ranks is None else torch.ones_like(context.own.ranks)
    return replace(context.own, scores=scores_of(context.own) + HUGE, ranks=ranks)


@POISONING_ATTACKS.register("random")
def random(context: AttackContext) -> Upload:
    """Full confidence in a random class of each sample."""
    samples, classes = context.own.predictions.shape
    return context.with_votes(torch.randint(classes, (samples,), generator=context.generator))


@POISONING_ATTACKS.register("fixed")
def fixed(context: AttackContext) -> Upload:
    """Full confidence in the first class, for every sample."""
    return context.with_votes(torch.zeros(len(context.own.predictions), dtype=torch.int64))


@POISONING_ATTACKS.register("flip")
def flip(context: AttackContext) -> Upload:
    """Labels flipped: what it believes of a class it says of the next one."""
    return replace(context.own, predictions=context.own.predictions.roll(1, dims=1))


@POISONING_ATTACKS.register("least-likely")
def least_likely(context: AttackContext) -> Upload:
    """LMA: full confidence in the class that the honest clients think least likely, which raises the loss most.

    >>> own = Upload("liar", torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([0.0]))
    >>> least_likely(AttackContext(own, [own], torch.Generator())).predictions.tolist()
    [[0.0, 0.0, 1.0]]
    """
    return context.with_votes(context.honest_mean.argmin(1))


@POISONING_ATTACKS.register("dissimilar")
def dissimilar(context: AttackContext) -> Upload:
    """CPA: full confidence in the class least similar to the likeliest one.

    Classes are similar whose honest probabilities vary together over the public samples.
    """
    mean = context.honest_mean.to(torch.float64)
    centred = mean - mean.mean(0)
    similarity = centred.T @ centred
    return context.with_votes(similarity.argmin(1)[mean.argmax(1)])


@POISONING_ATTACKS.register("shuffle")
def shuffle(context: AttackContext) -> Upload:
    """FDLA: its confidences dealt out anew. The likeliest class gets the smallest, the others that of the rank above.

    >>> own = Upload("liar", torch.tensor([[0.7, 0.1, 0.2]]), torch.tensor([0.0]))
    >>> [round(p, 1) for p in shuffle(AttackContext(own, [own], torch.Generator())).predictions[0].tolist()]
    [0.1, 0.2, 0.7]
    """
    confidences, order = context.own.predictions.sort(1, descending=True)
    return replace(
        context.own, predictions=torch.empty_like(confidences).scatter_(1, order, confidences.roll(1, dims=1))
    )


@POISONING_ATTACKS.register("hide")
def hide(context: AttackContext) -> Upload:
    """HIPS with the aim of LMA: of each sample, what that honest client said whose word harms the average most.

    Nothing it says lies outside what honest clients say.
    """
    said = torch.stack([upload.predictions for upload in context.honest])
    loss = -(context.honest_mean * said.clamp_min(1e-12).log()).sum(2)
    worst = loss.argmax(0)
    return replace(context.own, predictions=said[worst, torch.arange(said.shape[1])])


@POISONING_ATTACKS.register("takeover")
def takeover(context: AttackContext) -> Upload:
    """LMA said aloud: with the best honest score of every sample, and with all classes, if classes are told."""
    lie = least_likely(context)
    scores = torch.stack([scores_of(upload) for upload in context.honest]).amax(0)
    classes = None if lie.class_counts is None else torch.full_like(lie.class_counts, int(lie.class_counts.max()))
    ranks = None if lie.ranks is None else torch.ones_like(lie.ranks)
    return replace(lie, scores=scores, class_counts=classes, ranks=ranks)


@POISONING_ATTACKS.register("concentrate")
def concentrate(context: AttackContext) -> Upload:
    """LMA on one sample in `FEW`, with all its trust saved for them; elsewhere it says what it believes.

    It contradicts others hardly anywhere and claims to be an expert hardly anywhere: made to pass a guard that judges
    a client by the whole of its upload.
    """
    own, lie = context.own, takeover(context)
    samples = len(own.predictions)
    chosen = torch.zeros(samples, dtype=torch.bool)
    chosen[torch.randperm(samples, generator=context.generator)[: max(1, samples // FEW)]] = True
    predictions = torch.where(chosen.unsqueeze(1), lie.predictions, own.predictions)
    ranks = None if own.ranks is None else torch.zeros_like(own.ranks)
    if ranks is not None:
        ranks[chosen] = torch.linspace(0, 1, int(chosen.sum()), dtype=ranks.dtype)
    return replace(
        lie, predictions=predictions, scores=torch.where(chosen, scores_of(lie), scores_of(own)), ranks=ranks
    )


@POISONING_ATTACKS.register("labels")
def labels(context: AttackContext) -> Upload:
    """A wrong label set: it claims the classes it does not hold. Honest where no label sets are told."""
    held = context.own.class_counts
    if held is None:
        return context.own
    claimed = torch.where(held == 0, held.max(), 0)
    return replace(context.own, class_counts=claimed if bool(claimed.any()) else held)


@POISONING_ATTACKS.register("temperature")
def temperature(context: AttackContext) -> Upload:
    """Predictions sharpened by a low temperature: always sure, right or wrong."""
    logits = context.own.predictions.clamp_min(1e-12).log() / SHARP
    return replace(context.own, predictions=torch.softmax(logits, 1))

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

from trustmix.registry import Registry
from trustmix.wire import Upload


@dataclass(frozen=True)
class AttackContext:
    """What a liar knows when it lies."""

    own: Upload
    """What it would have said honestly."""
    honest: Sequence[Upload]
    """What the honest clients say in this round; its own upload alone if there are none."""
    luck: torch.Generator

    @property
    def honest_mean(self) -> torch.Tensor:
        """(N, C): what the honest clients say on average."""
        return torch.stack([upload.predictions for upload in self.honest]).mean(0)

    def says(self, classes: torch.Tensor) -> Upload:
        """The own upload with full confidence in these classes (N,) instead of its predictions."""
        return replace(self.own, predictions=one_hot(classes, self.own.predictions.shape[1]).to(torch.float32))


Attack: TypeAlias = Callable[[AttackContext], Upload]

POISONING_ATTACKS: Registry[Attack] = Registry("attack")

HUGE = 1e6
"""What an inflated score is raised by."""
SHARP = 0.1
"""The temperature of predictions that claim too much."""
FEW = 20
"""One sample in so many is what a concentrated lie is about."""


@POISONING_ATTACKS.register("inflate")
def inflate(sight: AttackContext) -> Upload:
    """Honest predictions with huge scores: a client that claims to know every sample best.

    >>> own = Upload(torch.tensor([[0.9, 0.1]]), torch.tensor([-3.0]))
    >>> inflate(AttackContext(own, [own], torch.Generator())).scores.tolist()
    [999997.0]
    """
    ranks = None if sight.own.ranks is None else torch.ones_like(sight.own.ranks)
    return replace(sight.own, scores=sight.own.scores + HUGE, ranks=ranks)


@POISONING_ATTACKS.register("random")
def random(sight: AttackContext) -> Upload:
    """Full confidence in a random class of each sample."""
    samples, classes = sight.own.predictions.shape
    return sight.says(torch.randint(classes, (samples,), generator=sight.luck))


@POISONING_ATTACKS.register("fixed")
def fixed(sight: AttackContext) -> Upload:
    """Full confidence in the first class, for every sample."""
    return sight.says(torch.zeros(len(sight.own.predictions), dtype=torch.int64))


@POISONING_ATTACKS.register("flip")
def flip(sight: AttackContext) -> Upload:
    """Labels flipped: what it believes of a class it says of the next one."""
    return replace(sight.own, predictions=sight.own.predictions.roll(1, dims=1))


@POISONING_ATTACKS.register("least-likely")
def least_likely(sight: AttackContext) -> Upload:
    """LMA: full confidence in the class that the honest clients think least likely, which raises the loss most.

    >>> own = Upload(torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([0.0]))
    >>> least_likely(AttackContext(own, [own], torch.Generator())).predictions.tolist()
    [[0.0, 0.0, 1.0]]
    """
    return sight.says(sight.honest_mean.argmin(1))


@POISONING_ATTACKS.register("dissimilar")
def dissimilar(sight: AttackContext) -> Upload:
    """CPA: full confidence in the class least similar to the likeliest one.

    Classes are similar whose honest probabilities vary together over the public samples.
    """
    mean = sight.honest_mean.to(torch.float64)
    centred = mean - mean.mean(0)
    similarity = centred.T @ centred
    return sight.says(similarity.argmin(1)[mean.argmax(1)])


@POISONING_ATTACKS.register("shuffle")
def shuffle(sight: AttackContext) -> Upload:
    """FDLA: its confidences dealt out anew. The likeliest class gets the smallest, the others that of the rank above.

    >>> own = Upload(torch.tensor([[0.7, 0.1, 0.2]]), torch.tensor([0.0]))
    >>> [round(p, 1) for p in shuffle(AttackContext(own, [own], torch.Generator())).predictions[0].tolist()]
    [0.1, 0.2, 0.7]
    """
    confidences, order = sight.own.predictions.sort(1, descending=True)
    return replace(sight.own, predictions=torch.empty_like(confidences).scatter_(1, order, confidences.roll(1, dims=1)))


@POISONING_ATTACKS.register("hide")
def hide(sight: AttackContext) -> Upload:
    """HIPS with the aim of LMA: of each sample, what that honest client said whose word harms the average most.

    Nothing it says lies outside what honest clients say.
    """
    said = torch.stack([upload.predictions for upload in sight.honest])
    loss = -(sight.honest_mean * said.clamp_min(1e-12).log()).sum(2)
    worst = loss.argmax(0)
    return replace(sight.own, predictions=said[worst, torch.arange(said.shape[1])])


@POISONING_ATTACKS.register("takeover")
def takeover(sight: AttackContext) -> Upload:
    """LMA said aloud: with the best honest score of every sample, and with all classes, if classes are told."""
    lie = least_likely(sight)
    scores = torch.stack([upload.scores for upload in sight.honest]).amax(0)
    classes = None if lie.classes is None else torch.full_like(lie.classes, int(lie.classes.max()))
    ranks = None if lie.ranks is None else torch.ones_like(lie.ranks)
    return replace(lie, scores=scores, classes=classes, ranks=ranks)


@POISONING_ATTACKS.register("concentrate")
def concentrate(sight: AttackContext) -> Upload:
    """LMA on one sample in `FEW`, with all its trust saved for them; elsewhere it says what it believes.

    It contradicts others hardly anywhere and claims to be an expert hardly anywhere: made to pass a guard that judges
    a client by the whole of its upload.
    """
    own, lie = sight.own, takeover(sight)
    samples = len(own.predictions)
    chosen = torch.zeros(samples, dtype=torch.bool)
    chosen[torch.randperm(samples, generator=sight.luck)[: max(1, samples // FEW)]] = True
    predictions = torch.where(chosen.unsqueeze(1), lie.predictions, own.predictions)
    ranks = None if own.ranks is None else torch.zeros_like(own.ranks)
    if ranks is not None:
        ranks[chosen] = torch.linspace(0, 1, int(chosen.sum()), dtype=ranks.dtype)
    return replace(lie, predictions=predictions, scores=torch.where(chosen, lie.scores, own.scores), ranks=ranks)


@POISONING_ATTACKS.register("labels")
def labels(sight: AttackContext) -> Upload:
    """A wrong label set: it claims the classes it does not hold. Honest where no label sets are told."""
    held = sight.own.classes
    if held is None:
        return sight.own
    claimed = torch.where(held == 0, held.max(), 0)
    return replace(sight.own, classes=claimed if bool(claimed.any()) else held)


@POISONING_ATTACKS.register("temperature")
def temperature(sight: AttackContext) -> Upload:
    """Predictions sharpened by a low temperature: always sure, right or wrong."""
    logits = sight.own.predictions.clamp_min(1e-12).log() / SHARP
    return replace(sight.own, predictions=torch.softmax(logits, 1))

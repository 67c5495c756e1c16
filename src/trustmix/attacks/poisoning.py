"""Poisoning attacks: uploads of valid form with false contents. Each attack is a function of what an attacker knows.

Attackers collude: they see the uploads of the honest clients of the same round. LMA, CPA and HIPS are from Roux, Zimmer
and Pokutta, *On the Byzantine-resilience of distillation-based federated learning* (2025); FDLA is from Tang et al.,
*Logits poisoning attack in federated distillation* (2024).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch.nn.functional import one_hot

from trustmix.aggregation.trust import Trust
from trustmix.aggregation.upload import Upload
from trustmix.registry import Registry


@dataclass(frozen=True)
class AttackContext:
    """What an attacker knows.

    Parameters
    ----------
    own
        The upload that the client would send if it were honest.
    honest
        The uploads of the honest clients of the round; the own upload alone if there are none.
    generator
        The generator of random attacks.
    colluders
        How many clients attack together, this one included.
    """

    own: Upload
    honest: Sequence[Upload]
    generator: torch.Generator
    colluders: int = 1

    @property
    def honest_mean(self) -> torch.Tensor:
        """Tensor (N, C): the mean of the honest clients' predictions."""
        return torch.stack([upload.predictions for upload in self.honest]).mean(0)

    @property
    def honest_teacher(self) -> torch.Tensor:
        """Tensor (N, C): what the rule `trust` would make of the honest uploads alone."""
        rule = Trust()
        for upload in self.honest:
            rule.update(upload)
        return rule.estimate()[0]

    def with_votes(self, classes: torch.Tensor) -> Upload:
        """Return the own upload with one-hot predictions.

        Parameters
        ----------
        classes
            Integer tensor (N,): the class of each sample.

        Returns
        -------
        Upload
            With probability one for these classes.
        """
        return replace(self.own, predictions=one_hot(classes, self.own.predictions.shape[1]).to(torch.float32))


def scores_of(upload: Upload) -> torch.Tensor:
    """Return the scores of an upload.

    Parameters
    ----------
    upload
        The upload.

    Returns
    -------
    torch.Tensor
        The scores (N,); zeros if the upload has none.
    """
    return torch.zeros(len(upload.predictions)) if upload.scores is None else upload.scores


Attack: TypeAlias = Callable[[AttackContext], Upload]
"""A function from what an attacker knows to the upload that it sends."""

POISONING_ATTACKS: Registry[Attack] = Registry("attack")

SCORE_INFLATION = 1e6
"""The number that the attack `inflate` adds to scores."""
SHARPENING_TEMPERATURE = 0.1
"""The temperature of the attack `temperature`."""
CONCENTRATE_EVERY = 20
"""The attack `concentrate` changes one sample in this many."""


@POISONING_ATTACKS.register("inflate")
def inflate(context: AttackContext) -> Upload:
    """Return honest predictions with huge scores, which claim that the client knows every sample best.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        The own upload with inflated scores.

    Examples
    --------
    >>> own = Upload("attacker", torch.tensor([[0.9, 0.1]]), torch.tensor([-3.0]))
    >>> inflate(AttackContext(own, [own], torch.Generator())).scores.tolist()
    [999997.0]
    """
    return replace(context.own, scores=scores_of(context.own) + SCORE_INFLATION)


@POISONING_ATTACKS.register("random")
def random(context: AttackContext) -> Upload:
    """Return one-hot predictions of a random class for each sample.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        The own upload with these predictions.
    """
    samples, classes = context.own.predictions.shape
    return context.with_votes(torch.randint(classes, (samples,), generator=context.generator))


@POISONING_ATTACKS.register("fixed")
def fixed(context: AttackContext) -> Upload:
    """Return one-hot predictions of the first class for every sample.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        The own upload with these predictions.
    """
    return context.with_votes(torch.zeros(len(context.own.predictions), dtype=torch.int64))


@POISONING_ATTACKS.register("flip")
def flip(context: AttackContext) -> Upload:
    """Return flipped labels: the probability of each class is given to the next class.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        The own upload with these predictions.

    Examples
    --------
    >>> own = Upload("attacker", torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([0.0]))
    >>> flip(AttackContext(own, [own], torch.Generator())).predictions.tolist()
    [[0.0, 1.0, 0.0]]
    """
    return replace(context.own, predictions=context.own.predictions.roll(1, dims=1))


@POISONING_ATTACKS.register("least-likely")
def least_likely(context: AttackContext) -> Upload:
    """LMA: return one-hot predictions of the class with the lowest honest mean, which raises the loss most.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        The own upload with these predictions.

    Examples
    --------
    >>> own = Upload("attacker", torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([0.0]))
    >>> least_likely(AttackContext(own, [own], torch.Generator())).predictions.tolist()
    [[0.0, 0.0, 1.0]]
    """
    return context.with_votes(context.honest_mean.argmin(1))


@POISONING_ATTACKS.register("dissimilar")
def dissimilar(context: AttackContext) -> Upload:
    """CPA: return one-hot predictions of the class least similar to the most probable one.

    The similarity of two classes is the covariance of their honest mean probabilities over the public samples.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        The own upload with these predictions.
    """
    mean = context.honest_mean.to(torch.float64)
    centred = mean - mean.mean(0)
    similarity = centred.T @ centred
    return context.with_votes(similarity.argmin(1)[mean.argmax(1)])


@POISONING_ATTACKS.register("shuffle")
def shuffle(context: AttackContext) -> Upload:
    """FDLA: permute each prediction. The top class gets the smallest probability, each other that of the rank above.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        The own upload with these predictions.

    Examples
    --------
    >>> own = Upload("attacker", torch.tensor([[0.7, 0.1, 0.2]]), torch.tensor([0.0]))
    >>> [round(p, 1) for p in shuffle(AttackContext(own, [own], torch.Generator())).predictions[0].tolist()]
    [0.1, 0.2, 0.7]
    """
    confidences, order = context.own.predictions.sort(1, descending=True)
    return replace(
        context.own, predictions=torch.empty_like(confidences).scatter_(1, order, confidences.roll(1, dims=1))
    )


@POISONING_ATTACKS.register("hide")
def hide(context: AttackContext) -> Upload:
    """HIPS with the objective of LMA: for each sample, the honest prediction with the largest loss against the mean.

    Every prediction is one of an honest client, so no prediction is an outlier.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        The own upload with these predictions.
    """
    honest = torch.stack([upload.predictions for upload in context.honest])
    loss = -(context.honest_mean * honest.clamp_min(1e-12).log()).sum(2)
    worst = loss.argmax(0)
    return replace(context.own, predictions=honest[worst, torch.arange(honest.shape[1])])


@POISONING_ATTACKS.register("takeover")
def takeover(context: AttackContext) -> Upload:
    """LMA with the largest claims: the best honest score of every sample, and all classes.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        The upload of `least_likely` with these scores; class counts only if the own upload has them.
    """
    attack = least_likely(context)
    counts = attack.class_counts
    scores = torch.stack([scores_of(upload) for upload in context.honest]).amax(0)
    claimed = None if counts is None else torch.full_like(counts, int(counts.max()))
    return replace(attack, scores=scores, class_counts=claimed)


@POISONING_ATTACKS.register("concentrate")
def concentrate(context: AttackContext) -> Upload:
    """LMA on one sample in `CONCENTRATE_EVERY`, with high scores on these samples; honest on the others.

    The upload contradicts others on few samples and claims expertise on few samples. The attack aims at guards that
    compute one reputation from the whole upload.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        The upload of `takeover` on the chosen samples, the own predictions and scores elsewhere.
    """
    own, attack = context.own, takeover(context)
    samples = len(own.predictions)
    chosen = torch.zeros(samples, dtype=torch.bool)
    chosen[torch.randperm(samples, generator=context.generator)[: max(1, samples // CONCENTRATE_EVERY)]] = True
    predictions = torch.where(chosen.unsqueeze(1), attack.predictions, own.predictions)
    scores = torch.where(chosen, scores_of(attack), scores_of(own))
    return replace(attack, predictions=predictions, scores=scores)


@POISONING_ATTACKS.register("labels")
def labels(context: AttackContext) -> Upload:
    """Return a false label set: the classes that the client does not hold.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        The own upload with these class counts; unchanged if it has no class counts or the client holds all classes.
    """
    held = context.own.class_counts
    if held is None:
        return context.own
    claimed = torch.where(held == 0, held.max(), 0)
    return replace(context.own, class_counts=claimed if bool(claimed.any()) else held)


@POISONING_ATTACKS.register("temperature")
def temperature(context: AttackContext) -> Upload:
    """Return overconfident predictions: a softmax with a low temperature, correct or not.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        The own upload with these predictions.
    """
    logits = context.own.predictions.clamp_min(1e-12).log() / SHARPENING_TEMPERATURE
    return replace(context.own, predictions=torch.softmax(logits, 1))

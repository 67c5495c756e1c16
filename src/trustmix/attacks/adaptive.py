"""Attacks that know the rule `trust` and its guard: they lie where it counts and stay near the consensus elsewhere.

What they know of a round is what the honest clients send in it, or the last teacher alone (`AttackContext.honest`).
"""

from dataclasses import replace

import torch
from torch.nn.functional import one_hot

from trustmix.aggregation.joint_consensus import balance_classes, opinion_odds
from trustmix.aggregation.robust_trust import CLIP, bounded_votes
from trustmix.aggregation.trust import ClassShares, estimate_shares, predictions_within
from trustmix.aggregation.upload import Upload
from trustmix.attacks.poisoning import POISONING_ATTACKS, AttackContext, scores_of

MARGIN_PART = 0.2
"""The part of the samples that the attacks `margin` and `margin-own` change."""
SMALLEST = 1e-6
"""The least probability of a claimed class in an attack."""


@POISONING_ATTACKS.register("margin")
def margin(context: AttackContext) -> Upload:
    """The honest teacher, but where its margin is smallest, where its runner-up is named with full confidence.

    The attack knows the rule `trust`: it is near the consensus on most samples, and claims all classes.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        Of equal scores for all samples.
    """
    every = torch.ones(context.own.predictions.shape[1], dtype=torch.bool)
    return _name_runner_up(context, every)


@POISONING_ATTACKS.register("margin-own")
def margin_own(context: AttackContext) -> Upload:
    """The attack `margin` within the classes that the client holds: a larger vote for fewer classes.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        With scores by how probable the honest teacher finds the client's classes.
    """
    return _name_runner_up(context, _held(context.own))


@POISONING_ATTACKS.register("erase")
def erase(context: AttackContext) -> Upload:
    """Take the class with the fewest honest holders for others: all attackers claim to hold it and contradict them.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        Of as many classes as the client holds: the victim and those that it is most easily taken for.
    """
    honest = context.honest_teacher
    label, classes = honest.argmax(1), honest.shape[1]
    holders = torch.stack([_held(upload) for upload in context.honest]).sum(0)
    victim = int(holders.argmin())
    of_victim = label == victim
    confused = honest[of_victim].sum(0) if bool(of_victim.any()) else honest.sum(0)
    confused[victim] = torch.inf
    claimed = torch.zeros(classes, dtype=torch.bool)
    claimed[confused.topk(max(2, int(_held(context.own).sum()))).indices] = True
    return _upload_within(context, claimed, of_victim)


@POISONING_ATTACKS.register("shift")
def shift(context: AttackContext) -> Upload:
    """The worst within the bounds of `RobustTrust`: no lie is larger than it needs to be, so that none costs precision.

    The attackers compute the location of each class if all of them report 0 and if all of them report 1. Where the
    range of another class reaches above that of the label, they push both by as much as the bound lets them, and by
    no more; elsewhere they report the location itself. All claim the classes that are most easily taken for the one
    with the fewest honest holders.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        Whose estimates are the chosen ones.
    """
    return _shifted(context, _claimed_classes(context))


@POISONING_ATTACKS.register("capture")
def capture(context: AttackContext) -> Upload:
    """The attack `shift` of attackers that claim the classes with the fewest honest holders.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        Whose estimates are the chosen ones.
    """
    holders = torch.stack([_held(upload) for upload in context.honest]).sum(0)
    claimed = torch.zeros(len(holders), dtype=torch.bool)
    claimed[holders.argsort(stable=True)[: max(2, int(_held(context.own).sum()))]] = True
    return _shifted(context, claimed)


@POISONING_ATTACKS.register("stealth")
def stealth(context: AttackContext) -> Upload:
    """The consensus of the honest clients, but for as many lies as leave the attacker as near to it as the median one.

    It claims the classes of `shift` and knows from which distance to the joint consensus a client loses weight. The
    lies are those of `shift`, the ones of the largest gain for their distance first.

    Parameters
    ----------
    context
        What the attacker knows.

    Returns
    -------
    Upload
        Whose estimates are the chosen ones.
    """
    claimed = _claimed_classes(context)
    found, shares = zip(*(_estimates(upload) for upload in context.honest), strict=True)
    honest, held = torch.stack(found), torch.stack(shares) > 0
    consensus = _consensus(honest, held)
    distances = ((honest - consensus).abs() * held.unsqueeze(1)).sum((1, 2)) / held.sum(1)
    lie, gain = _largest_lies(context, honest, torch.stack(shares), claimed)
    truth = consensus.clamp_min(SMALLEST)
    cost = ((lie - truth).abs() * claimed).sum(1) / claimed.sum()
    order = torch.where(gain > 0, gain.clamp(max=3 * CLIP) / cost.clamp_min(CLIP / 2), -torch.inf).argsort(
        descending=True
    )
    chosen = torch.zeros(len(gain), dtype=torch.bool)
    chosen[order] = (cost[order].cumsum(0) <= distances.median()) & (gain[order] > 0)
    return _upload_of(context, torch.where(chosen.unsqueeze(1), lie, truth) * claimed, claimed)


def _consensus(honest: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """The joint consensus (N, C) of estimates (M, N, C) by clients that hold these classes (M, C)."""
    client, class_ = held.nonzero(as_tuple=True)
    rest = (1 - honest.sum(2)).clamp(0, 1).T
    opinions = opinion_odds(honest[client, :, class_].T, rest, client, torch.ones(len(honest)))
    odds = torch.zeros(honest.shape[1:], dtype=torch.float64)
    return balance_classes(odds.index_add_(1, class_, opinions.to(torch.float64)))


def _shifted(context: AttackContext, claimed: torch.Tensor) -> Upload:
    """The upload of `shift` that claims these classes (C,)."""
    found, shares = zip(*(_estimates(upload) for upload in context.honest), strict=True)
    honest = torch.stack(found)
    middle = _location(honest, bounded_votes(torch.stack(shares)))
    lie, gain = _largest_lies(context, honest, torch.stack(shares), claimed)
    lie, truth = lie * claimed, middle.clamp(SMALLEST, 1) * claimed
    scale = honest.shape[2] / claimed.sum()
    chosen = _affordable(gain, truth.sum(1) * scale, lie.sum(1) * scale)
    return _upload_of(context, torch.where(chosen.unsqueeze(1), lie, truth), claimed)


def _largest_lies(
    context: AttackContext, honest: torch.Tensor, shares: torch.Tensor, claimed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Estimates (N, C) that push each label as far as the bounds of the location let them, and what they gain (N,)."""
    own = claimed.to(torch.float64) / claimed.sum()
    votes = bounded_votes(torch.cat([shares, own.expand(context.colluders, -1)]))
    middle = _location(honest, votes[: len(honest)])
    low, high = (
        _location(torch.cat([honest, torch.full_like(honest[:1], value).expand(context.colluders, -1, -1)]), votes)
        for value in (0.0, 1.0)
    )
    label = middle.argmax(1, keepdim=True)
    rival = high.scatter(1, label, -1.0).masked_fill(~claimed, -1.0).argmax(1, keepdim=True)
    lowest, highest = torch.where(claimed, low, middle).gather(1, label), high.gather(1, rival)
    others = middle.scatter(1, label, -1.0).amax(1, keepdim=True)
    named = torch.where(others > lowest, middle.gather(1, rival), highest + 2 * CLIP)
    lie = middle.scatter(1, label, lowest - 2 * CLIP).scatter(1, rival, named).clamp(SMALLEST, 1)
    return lie, (highest - lowest).squeeze(1)


def _upload_of(context: AttackContext, target: torch.Tensor, claimed: torch.Tensor) -> Upload:
    """The upload of which the rule makes these estimates (N, C) of the claimed classes (C,), equally common in it."""
    mass = target * (target.shape[1] / claimed.sum())
    ratio = mass.sum(1)
    return replace(
        context.own,
        predictions=(mass / ratio.unsqueeze(1)).to(torch.float32),
        scores=ratio.log(),
        class_counts=_claimed_counts(context.own, claimed),
    )


def _estimates(upload: Upload) -> tuple[torch.Tensor, torch.Tensor]:
    """The estimates (N, C) that the rule makes of an upload, and the shares (C,) of classes."""
    ratio, shares = ClassShares().ratio_and_shares(upload)
    scale = torch.where(shares > 0, 1 / (len(shares) * shares), 0.0)
    return (predictions_within(upload, shares) * ratio.unsqueeze(1) * scale).clamp(max=1), shares


def _location(estimates: torch.Tensor, votes: torch.Tensor) -> torch.Tensor:
    """(N, C): the rule's location of estimates (M, N, C) with votes (M, C)."""
    ordered, place = estimates.sort(0)
    weights = votes.unsqueeze(1).expand(estimates.shape)
    below = weights.gather(0, place).cumsum(0)
    middle = (below >= below[-1] / 2).to(torch.int8).argmax(0, keepdim=True)
    median = ordered.gather(0, middle).squeeze(0)
    clipped = ((estimates - median).clamp(-CLIP, CLIP) * weights).sum(0)
    return median + clipped / below[-1].clamp_min(SMALLEST)


def _affordable(gain: torch.Tensor, truth: torch.Tensor, lie: torch.Tensor) -> torch.Tensor:
    """(N,): the lies of positive gain, the largest first, as many as leave the ratio's mean over all samples at 1."""
    order = torch.where(lie <= truth, gain + 2, gain).argsort(descending=True)
    spent = truth.sum() + (lie - truth)[order].cumsum(0)
    chosen = torch.zeros(len(gain), dtype=torch.bool)
    chosen[order] = (gain[order] > 0) & (spent <= max(float(truth.sum()), len(gain)))
    return chosen


def _claimed_classes(context: AttackContext) -> torch.Tensor:
    """(C,): as many classes as the client holds, the one with the fewest honest holders and those taken for it."""
    honest = context.honest_teacher
    holders = torch.stack([_held(upload) for upload in context.honest]).sum(0)
    victim = int(holders.argmin())
    confused = honest.T @ honest[:, victim]
    confused[victim] = torch.inf
    claimed = torch.zeros(honest.shape[1], dtype=torch.bool)
    claimed[confused.topk(max(2, int(_held(context.own).sum()))).indices] = True
    return claimed


def _claimed_counts(own: Upload, claimed: torch.Tensor) -> torch.Tensor | None:
    """(C,): counts of the claimed classes, where label sets are shared."""
    return None if own.class_counts is None else claimed.to(own.class_counts.dtype) * own.class_counts.max()


def _name_runner_up(context: AttackContext, claimed: torch.Tensor) -> Upload:
    """The attack on the samples where the honest teacher's margin over the claimed classes is smallest."""
    honest = context.honest_teacher
    label = honest.argmax(1, keepdim=True)
    others = honest.scatter(1, label, -1.0).masked_fill(~claimed, -1.0)
    lead = honest.gather(1, label).squeeze(1) - others.amax(1)
    chosen = torch.zeros(len(honest), dtype=torch.bool)
    chosen[lead.argsort()[: max(1, int(MARGIN_PART * len(honest)))]] = True
    return _upload_within(context, claimed, chosen)


def _upload_within(context: AttackContext, claimed: torch.Tensor, chosen: torch.Tensor) -> Upload:
    """The honest teacher within the claimed classes (C,), and its strongest wrong class on the chosen samples (N,)."""
    honest = context.honest_teacher
    label = honest.argmax(1, keepdim=True)
    wrong = honest.scatter(1, label, -1.0).masked_fill(~claimed, -1.0).argmax(1)
    within = (honest * claimed).clamp_min(SMALLEST * claimed)
    mass = within.sum(1)
    votes = one_hot(wrong, honest.shape[1]).to(within.dtype)
    predictions = torch.where(chosen.unsqueeze(1), votes, within / mass.unsqueeze(1))
    scores = torch.where(chosen, 0.0, mass.clamp(max=1).log())
    return replace(
        context.own,
        predictions=predictions.to(torch.float32),
        scores=scores,
        class_counts=_claimed_counts(context.own, claimed),
    )


def _held(upload: Upload) -> torch.Tensor:
    """(C,): whether the client of an upload seems to hold a class."""
    if upload.class_counts is not None:
        return upload.class_counts > 0
    return estimate_shares(upload.predictions.to(torch.float64), scores_of(upload)) > 0

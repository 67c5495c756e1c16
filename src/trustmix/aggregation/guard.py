"""The guard: bounds on what one client can do to a teacher, under any rule.

Three bounds, each relative to the majority of clients, so that fewer than half of them cannot move it:

- *scores*: a client's scores, sorted, stay below the median of all clients' sorted scores plus three median absolute
  deviations. A client chooses the order of its own scores, not their size.
- *share*: where a rule weighs by scores, no client has more than `cap` of any sample; clients of weight 0 do not count.
- *weight*: a client that contradicts the others where both are confident loses weight, in the end all of it, and
  regains it slowly. Its regret against the others' consensus p is sum_x v (max p - q.p) / sum_x v max p, with v large
  where it and others are confident. The only expert of a class is confident where others are not: no regret there.

All uploads of a round are held until it is finished: M * N * (C + 1) numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from trustmix.aggregation.base import Aggregator, StateDict, Teacher, Upload, copy_upload, pack_uploads, unpack_uploads
from trustmix.aggregation.robust_trust import RobustTrust
from trustmix.aggregation.trust import Trust
from trustmix.aggregation.weighted_average import Accumulator
from trustmix.errors import TrustmixError

MIN_CLIENTS = 5
"""Fewer clients than this have no majority to compare with: their uploads pass as they are."""
MAX_MADS = 3.0
"""How many median absolute deviations above the median a score may lie."""
SHARPNESS = 3
"""A client's confidence in a sample is the rank of its score among its own scores, to this power."""
TOLERATED, SILENCED = 2.0, 3.0
"""Up to so many times the median regret a client keeps its full weight; from so many on it has none."""
LEAST_REGRET, LEAST_WITHIN = 0.2, 0.1
"""A median regret below this counts as this: among clients that nearly agree, small differences mean nothing. The
second is for clients that share their label sets: within them they agree more."""
N_ITERATIONS = 4
"""How often the consensus is computed anew with the weights that it has lowered."""
REPUTATION_DECAY = 0.5
"""A client's weight is its last one to this power, times that of the round: one bad round fades, many add up."""
MIN_REPUTATION = 1e-3
"""No weight falls below this from one round to the next, so that a client that becomes honest regains it."""
ZERO_WEIGHT, HALF = 0.01, 0.5
"""A smaller weight is 0: under a rule that takes weights, and under one that does not."""
REPORT_THRESHOLD = 0.05
"""The part of a client's scores from which on lowering them is reported."""


@dataclass(frozen=True)
class Guard:
    """The bounds of a guard.

    Parameters
    ----------
    cap
        The largest share of a sample's label that one client can have, where the rule weighs by scores; 0.5 to 1.
    """

    cap: float = 0.8

    def __post_init__(self) -> None:
        if not 0.5 <= self.cap <= 1:
            raise TrustmixError(f"cap is {self.cap}; a share that only one client can exceed is from 0.5 to 1.")


def guarded(rule: Aggregator, guard: Guard | None = None) -> Aggregator:
    """A rule under guard: `trust` by robust locations, any other one by the bounds of a `GuardedAggregator`.

    Parameters
    ----------
    rule
        An empty aggregator.
    guard
        The bounds.

    >>> type(guarded(Trust())).__name__, type(guarded(Accumulator(tau=1.0))).__name__
    ('RobustTrust', 'GuardedAggregator')
    """
    return RobustTrust() if type(rule) is Trust else GuardedAggregator(rule, guard)


class GuardedAggregator(Aggregator):
    """Another rule, under guard; what that rule refuses is refused when it is added.

    Parameters
    ----------
    rule
        The aggregator underneath, empty.
    guard
        The bounds.

    >>> from trustmix.aggregation.weighted_average import Accumulator
    >>> honest, lie = torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> rule = GuardedAggregator(Accumulator(tau=1.0))
    >>> for index in range(6):
    ...     rule.update(honest, torch.tensor([-1.0, -2.0]))
    >>> rule.update(Upload.from_arrays("liar", lie, [1e6, 1e6]))
    >>> [[round(p, 3) for p in row] for row in rule.compute().probabilities.tolist()]
    [[0.9, 0.1], [0.1, 0.9]]
    >>> rule.report()
    {'liar': {'scores': 1.0, 'regret': 0.889, 'weight': 0.0}}
    """

    def __init__(self, rule: Aggregator, guard: Guard | None = None) -> None:
        super().__init__()
        self.rule = rule
        self.guard = guard or Guard()
        self._uploads: list[Upload] = []
        self._reputation: dict[str, float] = {}
        self._new_reputation: dict[str, float] = {}
        self._report: dict[str, dict[str, float]] = {}

    def validate(self, upload: Upload) -> None:
        """Refuse what the rule refuses, and a client's second upload of a round."""
        super().validate(upload)
        self.rule.validate(upload)
        if any(earlier.client == upload.client for earlier in self._uploads):
            raise TrustmixError(f"client {upload.client}: a client has one upload a round, and this is its second.")

    def fold(self, upload: Upload) -> None:
        """Hold the upload until all of them are there."""
        self._uploads.append(copy_upload(upload))

    def estimate(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rule's own, of all uploads so far, bounded."""
        self._update_rule()
        return self.rule.estimate()

    def compute(self) -> Teacher[Any]:
        """The rule's teacher of the uploads that keep some weight."""
        self._update_rule()
        return self.rule.compute()

    def _update_rule(self) -> None:
        """Fold all uploads into the rule, with the scores and weights that the guard leaves them."""
        self.rule.reset()
        if self.tracked is not None:
            self.rule.track(self.tracked)
        self._report = {}
        scores = self._clipped_scores()
        weights = [effective_weight(weight, self.rule.takes_weights) for weight in self._weights(scores)]
        scores = self._capped_scores(scores, weights)
        for index, (upload, weight) in enumerate(zip(self._uploads, weights, strict=True)):
            if weight:
                score = upload.scores if scores is None else scores[index]
                self.rule.update(replace(upload, scores=score, weight=weight))

    def client_weights(self) -> Mapping[str, torch.Tensor] | None:
        """Those of the rule in the teacher computed last; a silenced client has none."""
        weights = self.rule.client_weights()
        if weights is None:
            return None
        nothing = torch.zeros_like(next(iter(weights.values())))
        return {upload.client: weights.get(upload.client, nothing) for upload in self._uploads}

    def report(self) -> dict[str, dict[str, float]]:
        """What the guard did, by client: the part of its scores that was lowered, its regret, the weight it kept."""
        return {
            client: {what: round(much, 3) for what, much in found.items()} for client, found in self._report.items()
        }

    def merge_state(self, other: Self) -> None:
        """Hold the other's uploads too; of two reputations the lower one counts."""
        if other.guard != self.guard or type(other.rule) is not type(self.rule):
            raise TrustmixError("guards of different rules or bounds cannot be merged.")
        for client, value in other._reputation.items():
            self._reputation[client] = min(value, self._reputation.get(client, 1.0))
        for upload in other._uploads:
            self.validate(upload)
        self._uploads += other._uploads

    def reset(self) -> None:
        """Forget the uploads; reputations stay."""
        super().reset()
        self.rule.reset()
        self._reputation |= self._new_reputation
        self._uploads, self._new_reputation, self._report = [], {}, {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The reputations that are less than good, the uploads that are held, and what the rule remembers."""
        rule = self.rule if not self._uploads else None
        kept = {f"{RULE}{key}": value for key, value in (rule.state_dict() if rule else {}).items()}
        held = {f"{HELD}{key}": value for key, value in pack_uploads(self._uploads).items()} if self._uploads else {}
        new = {} if self._uploads else self._new_reputation
        known = {c: value for c, value in {**self._reputation, **new}.items() if value < 1 - ZERO_WEIGHT}
        reputations = {f"{REPUTATION}{c}": torch.tensor(value, dtype=torch.float64) for c, value in known.items()}
        return {**super().state_dict(), **kept, **held, **reputations}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over reputations, held uploads, and what the rule remembers."""
        super().load_state_dict(state)
        self._reputation = {client: float(value) for client, value in _below(state, REPUTATION).items()}
        held = _below(state, HELD)
        self._uploads = unpack_uploads(held) if held else []
        self._new_reputation, self._report = {}, {}
        self.rule.load_state_dict(_below(state, RULE))

    def _clipped_scores(self) -> torch.Tensor | None:
        """(M, N): the scores, bounded, or None where a client has none."""
        given = [upload.scores for upload in self._uploads if upload.scores is not None]
        if not given or len(given) < len(self._uploads):
            return None
        raw = torch.stack(given)
        if len(raw) < MIN_CLIENTS:
            return raw
        scores = clip_scores(raw)
        lowered = (scores < raw).double().mean(1)
        for upload, part in zip(self._uploads, lowered.tolist(), strict=True):
            if part >= REPORT_THRESHOLD:
                self._report.setdefault(upload.client, {})["scores"] = part
        return scores

    def _capped_scores(self, scores: torch.Tensor | None, weights: Sequence[float]) -> torch.Tensor | None:
        """The scores (M, N) with which no client has more than the cap, among those that keep some weight."""
        tau = self.rule.tau if isinstance(self.rule, Accumulator) else 0.0
        counted = sum(weight > 0 for weight in weights)
        if scores is None or len(scores) < MIN_CLIENTS or counted < 2 or not 0 < tau < math.inf or self.guard.cap == 1:
            return scores
        return cap_share(scores, torch.tensor(weights, dtype=torch.float64), tau, self.guard.cap)

    def _weights(self, scores: torch.Tensor | None) -> list[float]:
        """Each client's weight, by its regret today and its reputation."""
        clients = [upload.client for upload in self._uploads]
        before = [max(self._reputation.get(client, 1.0), MIN_REPUTATION) ** REPUTATION_DECAY for client in clients]
        if len(clients) < MIN_CLIENTS:
            return [1.0] * len(clients)
        regret, weights = regret_weights(
            [upload.predictions for upload in self._uploads],
            scores,
            [upload.class_counts for upload in self._uploads],
            torch.tensor(before, dtype=torch.float64),
        )
        for client, much, weight in zip(clients, regret.tolist(), weights.tolist(), strict=True):
            self._new_reputation[client] = weight
            if weight < 1 - ZERO_WEIGHT:
                self._report.setdefault(client, {}).update(regret=much, weight=weight)
        return [1.0 if weight > 1 - ZERO_WEIGHT else weight for weight in weights.tolist()]


REPUTATION, RULE, HELD = "reputation/", "rule/", "held/"
"""What the names of a state begin with: the guard's memory, the rule's state, and uploads of an unfinished round."""


def _below(state: StateDict, prefix: str) -> dict[str, torch.Tensor]:
    return {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}


def clip_scores(scores: torch.Tensor) -> torch.Tensor:
    """Bound each client's k-th smallest score by the median of all clients' k-th smallest plus `MAX_MADS` deviations.

    The order of a client's scores stays; a constant added to all of them has no effect beyond the bound.

    Parameters
    ----------
    scores
        (M, N).

    Returns
    -------
    torch.Tensor
        (M, N), nowhere larger than the scores.

    >>> scores = torch.tensor([[1.0, 2.0], [1.5, 2.5], [2.0, 3.0], [9e5, 1e6]])
    >>> clip_scores(scores).tolist()
    [[1.0, 2.0], [1.5, 2.5], [2.0, 3.0], [3.0, 4.0]]
    """
    ordered, place = scores.sort(1)
    middle = ordered.median(0).values
    spread = (ordered - middle).abs().median(0).values
    # the low scores of many clients spread widely: what is allowed there must not exceed what is allowed above
    allowed = (middle + MAX_MADS * spread).flip(0).cummin(0).values.flip(0)
    return torch.empty_like(scores).scatter_(1, place, torch.minimum(ordered, allowed))


def effective_weight(weight: float, takes_weights: bool) -> float:
    """The weight with which a client is folded; 0 leaves it out.

    Parameters
    ----------
    weight
        What the guard leaves the client, from 0 to 1.
    takes_weights
        Whether the rule takes weights; if not, clients of at least one half count fully and the others not at all.

    >>> effective_weight(0.4, True), effective_weight(0.4, False), effective_weight(0.6, False)
    (0.4, 0.0, 1.0)
    """
    if weight < (ZERO_WEIGHT if takes_weights else HALF):
        return 0.0
    return weight if takes_weights else 1.0


def cap_share(scores: torch.Tensor, weights: torch.Tensor, tau: float, cap: float) -> torch.Tensor:
    """Lower the largest scores so that no client's share w_i exp(tau * l_i) / sum_j w_j exp(tau * l_j) exceeds the cap.

    Parameters
    ----------
    scores
        (M, N): l.
    weights
        (M,): w.
    tau
        The temperature of the rule, above 0 and finite.
    cap
        The largest share, below 1.

    Returns
    -------
    torch.Tensor
        (M, N), nowhere larger than the scores.

    >>> scores = torch.tensor([[9.0], [0.0], [0.0], [8.0]])
    >>> low = cap_share(scores, torch.tensor([1.0, 1.0, 1.0, 0.0]), tau=1.0, cap=0.8)
    >>> torch.softmax(low[:3], 0).flatten().tolist()
    [0.800000011920929, 0.10000000149011612, 0.10000000149011612]
    """
    log_weights = weights.to(scores.dtype).log().unsqueeze(1)
    log_shares = tau * scores + log_weights
    first = log_shares.argmax(0, keepdim=True)
    others = torch.logsumexp(log_shares.scatter(0, first, -torch.inf), 0, keepdim=True)
    allowed = (others + math.log(cap / (1 - cap)) - log_weights.squeeze(1)[first]) / tau
    return scores.scatter(0, first, torch.minimum(scores.gather(0, first), allowed))


def regret_weights(
    predictions: Sequence[torch.Tensor],
    scores: torch.Tensor | None,
    class_counts: Sequence[torch.Tensor | None],
    before: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The regret of every client against the consensus of the others, and the weight that it leaves.

    Parameters
    ----------
    predictions
        (N, C) of each client.
    scores
        (M, N); None where clients have none, and all samples count alike.
    class_counts
        (C,) of each client; one that shares its label set is compared on its own classes alone.
    before
        (M,): the weights that clients come with.

    Returns
    -------
    tuple of torch.Tensor
        Regrets (M,) and weights (M,), the latter at most `before`.
    """
    q = [one.cpu() for one in predictions]
    confidences = torch.ones(len(q), len(q[0])) if scores is None else rank_confidence(scores)
    weights = regret = before
    median = LEAST_REGRET if any(counts is None for counts in class_counts) else LEAST_WITHIN
    for _ in range(N_ITERATIONS):
        last, regret = weights, _regrets(q, confidences, weights.clamp_min(MIN_REPUTATION), class_counts)
        median = max(float(regret.median()), median)  # the clients that are left agree more: no reason to be stricter
        today = ((SILENCED - regret / median) / (SILENCED - TOLERATED)).clamp(0, 1)
        weights = before * today
        if torch.equal(weights, last):
            break
    return regret, weights


def rank_confidence(scores: torch.Tensor) -> torch.Tensor:
    """Each client's confidence in each sample: the rank of its score among its own scores, to the power `SHARPNESS`.

    Parameters
    ----------
    scores
        (M, N).

    Returns
    -------
    torch.Tensor
        (M, N), from 0 to 1; equal scores have the same confidence.

    >>> rank_confidence(torch.tensor([[-5.0, 1e9, 0.0, -4.0], [7.0, 7.0, 7.0, 7.0]])).tolist()
    [[0.001953125, 0.669921875, 0.244140625, 0.052734375], [0.125, 0.125, 0.125, 0.125]]
    """
    ordered, scores = scores.sort(1).values, scores.contiguous()
    below, up_to = (torch.searchsorted(ordered, scores, right=right) for right in (False, True))
    return ((below + up_to).to(torch.float64) / (2 * scores.shape[1])) ** SHARPNESS


def _regrets(
    predictions: Sequence[torch.Tensor],
    confidences: torch.Tensor,
    weights: torch.Tensor,
    class_counts: Sequence[torch.Tensor | None],
) -> torch.Tensor:
    """(M,): the regret of each client against the consensus of the others, from 0 to 1."""
    votes = confidences.to(torch.float64) * weights.unsqueeze(1)
    total, tiny = votes.sum(0), torch.finfo(torch.float64).tiny
    mixed = sum(vote.unsqueeze(1) * q for vote, q in zip(votes, predictions, strict=True))
    regrets = []
    for vote, q, counts in zip(votes, predictions, class_counts, strict=True):
        others = (total - vote).clamp_min(tiny)
        consensus = ((mixed - vote.unsqueeze(1) * q) / others.unsqueeze(1)).clamp_min(0)
        own, importance = q.to(torch.float64), vote * others / total
        if counts is not None:
            held = (counts > 0).to(torch.float64)
            consensus, own, importance = consensus * held, own * held, others
            own = own / own.sum(1, keepdim=True).clamp_min(tiny)
        largest, guess = own.max(1)
        of_guess = consensus.gather(1, guess.unsqueeze(1)).squeeze(1) * (largest > 0)
        best = consensus.amax(1)
        missed = best - torch.maximum((own * consensus).sum(1), of_guess)
        regrets.append(importance @ missed / (importance @ best).clamp_min(tiny))
    return torch.stack(regrets)

"""The guard: bounds on what one client can do to a teacher, under any rule.

Three bounds, each relative to the majority of clients, so that fewer than half of them cannot move it:

- *scores*: a client's scores, sorted, stay below the median of all clients' sorted scores plus three median absolute
  deviations. A client chooses the order of its own scores, not their size.
- *share*: where a rule weighs by scores, no client has more than `cap` of any sample; clients of weight 0 do not count.
- *weight*: a client that contradicts the others where both are confident loses weight, in the end all of it, and
  regains it slowly. Its regret against the others' consensus p is sum_x v (max p - q.p) / sum_x v max p, with v large
  where it and others are confident. The only expert of a class is confident where others are not: no regret there.

Uploads are kept in an `UploadSpool` until the round is finished, and read again in passes, one at a time: memory does
not grow with the number of clients. With more than `MAX_SAMPLE` clients, the median of sorted scores is that of so
many, drawn at random.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from trustmix.aggregation.base import Aggregator, StateDict, Teacher
from trustmix.aggregation.guard_bounds import (
    MIN_REPUTATION,
    ZERO_WEIGHT,
    clip_to_bounds,
    effective_weight,
    regret_weights,
    score_bounds,
    share_bounds,
)
from trustmix.aggregation.robust_trust import RobustTrust
from trustmix.aggregation.spool import UploadSpool
from trustmix.aggregation.trust import Trust
from trustmix.aggregation.upload import Upload, pack_uploads, unpack_uploads
from trustmix.aggregation.weighted_average import Accumulator
from trustmix.errors import TrustmixError
from trustmix.seeds import numpy_generator

MIN_CLIENTS = 5
"""Fewer clients than this have no majority to compare with: their uploads pass as they are."""
REPUTATION_DECAY = 0.5
"""A client's weight is its last one to this power, times that of the round: one bad round fades, many add up."""
MAX_SAMPLE = 1000
"""Medians of sorted scores are those of at most so many clients."""
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
        self._uploads = UploadSpool()
        self._reputation: dict[str, float] = {}
        self._new_reputation: dict[str, float] = {}
        self._report: dict[str, dict[str, float]] = {}

    def validate(self, upload: Upload) -> None:
        """Refuse what the rule refuses, and a client's second upload of a round."""
        super().validate(upload)
        self.rule.validate(upload)
        self._uploads.validate(upload)

    def fold(self, upload: Upload) -> None:
        """Hold the upload until all of them are there."""
        self._uploads.append(upload)

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
        for upload, weight, score in zip(self._uploads, weights, self._capped_scores(scores, weights), strict=True):
            if weight:
                self.rule.update(replace(upload, scores=score, weight=weight))

    def client_weights(self) -> Mapping[str, torch.Tensor] | None:
        """Those of the rule in the teacher computed last; a silenced client has none."""
        weights = self.rule.client_weights()
        if weights is None:
            return None
        nothing = torch.zeros_like(next(iter(weights.values())))
        return {client: weights.get(client, nothing) for client in self._uploads.clients}

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
        for upload in other._uploads:
            self._uploads.append(upload)

    def reset(self) -> None:
        """Forget the uploads; reputations stay."""
        super().reset()
        self.rule.reset()
        self._reputation |= self._new_reputation
        self._uploads.clear()
        self._new_reputation, self._report = {}, {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The reputations that are less than good, the uploads that are held, and what the rule remembers."""
        rule = self.rule if not self._uploads else None
        kept = {f"{RULE}{key}": value for key, value in (rule.state_dict() if rule else {}).items()}
        held = (
            {f"{HELD}{key}": value for key, value in pack_uploads(list(self._uploads)).items()} if self._uploads else {}
        )
        new = {} if self._uploads else self._new_reputation
        known = {c: value for c, value in {**self._reputation, **new}.items() if value < 1 - ZERO_WEIGHT}
        reputations = {f"{REPUTATION}{c}": torch.tensor(value, dtype=torch.float64) for c, value in known.items()}
        return {**super().state_dict(), **kept, **held, **reputations}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over reputations, held uploads, and what the rule remembers."""
        super().load_state_dict(state)
        self._reputation = {client: float(value) for client, value in _below(state, REPUTATION).items()}
        self._uploads.clear()
        held = _below(state, HELD)
        for upload in unpack_uploads(held) if held else []:
            self._uploads.append(upload)
        self._new_reputation, self._report = {}, {}
        self.rule.load_state_dict(_below(state, RULE))

    def _clipped_scores(self) -> "_Scores | None":
        """The scores, bounded, or None where a client has none."""
        if not self._uploads.scored:
            return None
        scores = _Scores(self._uploads)
        if len(self._uploads) >= MIN_CLIENTS:
            scores.allowed = score_bounds(torch.stack(list(self._sampled_scores())))
            for client, before, after in zip(self._uploads.clients, self._uploads.scores(), scores, strict=True):
                part = float((after < before).double().mean())
                if part >= REPORT_THRESHOLD:
                    self._report.setdefault(client, {})["scores"] = part
        return scores

    def _sampled_scores(self) -> Iterator[torch.Tensor]:
        """The scores (N,) of all clients, or of `MAX_SAMPLE` at random."""
        count = len(self._uploads)
        generator = numpy_generator(count, "scores", next(self._uploads.scores()).sum().item())
        drawn = set(generator.permutation(count)[:MAX_SAMPLE].tolist())
        return (scores for index, scores in enumerate(self._uploads.scores()) if index in drawn)

    def _capped_scores(self, scores: "_Scores | None", weights: Sequence[float]) -> Iterator[torch.Tensor | None]:
        """The scores with which no client has more than the cap, among those that keep some weight."""
        if scores is None:
            return (upload.scores for upload in self._uploads)
        tau = self.rule.tau if isinstance(self.rule, Accumulator) else 0.0
        counted = sum(weight > 0 for weight in weights)
        if len(weights) < MIN_CLIENTS or counted < 2 or not 0 < tau < math.inf or self.guard.cap == 1:
            return iter(scores)
        first, allowed = share_bounds(scores, weights, tau, self.guard.cap)
        return (torch.where(first == i, torch.minimum(one, allowed), one) for i, one in enumerate(scores))

    def _weights(self, scores: "_Scores | None") -> list[float]:
        """Each client's weight, by its regret today and its reputation."""
        clients = list(self._uploads.clients)
        before = [max(self._reputation.get(client, 1.0), MIN_REPUTATION) ** REPUTATION_DECAY for client in clients]
        if len(clients) < MIN_CLIENTS:
            return [1.0] * len(clients)
        regret, weights = regret_weights(
            _Predictions(self._uploads), scores, self._uploads.class_counts, torch.tensor(before, dtype=torch.float64)
        )
        for client, much, weight in zip(clients, regret.tolist(), weights.tolist(), strict=True):
            self._new_reputation[client] = weight
            if weight < 1 - ZERO_WEIGHT:
                self._report.setdefault(client, {}).update(regret=much, weight=weight)
        return [1.0 if weight > 1 - ZERO_WEIGHT else weight for weight in weights.tolist()]


@dataclass
class _Predictions:
    """The predictions (N, C) of all clients in turn, read again each time."""

    uploads: UploadSpool

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self.uploads.predictions()


@dataclass
class _Scores:
    """The scores (N,) of all clients in turn, bounded, read again each time."""

    uploads: UploadSpool
    allowed: torch.Tensor | None = None

    def __iter__(self) -> Iterator[torch.Tensor]:
        for scores in self.uploads.scores():
            yield scores if self.allowed is None else clip_to_bounds(scores, self.allowed)


REPUTATION, RULE, HELD = "reputation/", "rule/", "held/"
"""What the names of a state begin with: the guard's memory, the rule's state, and uploads of an unfinished round."""


def _below(state: StateDict, prefix: str) -> dict[str, torch.Tensor]:
    return {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}

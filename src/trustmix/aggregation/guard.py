"""Trust that cannot be stolen: what one client may do to a teacher is bounded, whatever it says, under any rule.

Three bounds, each measured by what most clients do, so that fewer than half of them cannot move it:

- *scores*: a client's scores, sorted, stay below the median of all clients' sorted scores plus three times their
  spread. Only the order of its own scores is a client's to choose, not their size.
- *share*: where a rule weighs by scores, no client has more than `cap` of any sample, silenced ones not counted.
- *say*: a client that contradicts the others where both know their way loses weight, in the end all of it, and
  regains it slowly. Its `regret` is what the others' consensus p thinks of its word q: sum_x v (max p - q.p) / sum_x v
  max p, with v large where it and others speak. An only expert speaks where the others do not, and is not judged there.

All uploads of a round are held until it is finished: M * N * (C + 1) numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple

import torch

from trustmix.aggregation.client_weights import Keeping, Weighing
from trustmix.aggregation.coupling import validate_counts
from trustmix.aggregation.rules import AggregatorFactory, Lasting, Memory
from trustmix.aggregation.weighted_average import LARGEST_SCORE, Teacher, validate_predictions, validate_scores
from trustmix.arrays import format_shape
from trustmix.errors import TrustmixError

MIN_CLIENTS = 5
"""Fewer clients than this have no majority to measure one by: their uploads pass as they are."""
MAX_MADS = 3.0
"""How many median absolute deviations above the median a score may lie."""
SHARPNESS = 3
"""A client's voice in a sample is the rank of its score among its own scores, to this power."""
TOLERATED, SILENCED = 2.0, 3.0
"""Up to so many times the median regret a client keeps its full say; from so many on it has none."""
LEAST_REGRET, LEAST_WITHIN = 0.2, 0.1
"""A median regret below this counts as this: among clients that nearly agree, small differences mean nothing. The
second is for clients that tell their label sets: judged within them, they agree more."""
N_ITERATIONS = 4
"""How often the consensus is formed anew without those it has lowered."""
REPUTATION_DECAY = 0.5
"""A client's say is its last one to this power, times today's: one bad round is soon forgotten, many add up."""
MIN_REPUTATION = 1e-3
"""No say falls below this from one round to the next, so that a client that mends its ways comes back."""
ZERO_WEIGHT, HALF = 0.01, 0.5
"""A smaller say is none: under a rule that takes weights, and under one that does not."""
REPORT_THRESHOLD = 0.05
"""The part of a client's scores from which on lowering them is reported."""


@dataclass(frozen=True)
class Guard:
    """How much one client may do."""

    cap: float = 0.8
    """The largest share of a sample's trust that one client can have, where the rule weighs by scores."""

    def __post_init__(self) -> None:
        if not 0.5 <= self.cap <= 1:
            raise TrustmixError(f"guard.cap is {self.cap}; a share that only one client can exceed is from 0.5 to 1.")


class BufferedUpload(NamedTuple):
    """An upload that waits for the others."""

    name: str
    predictions: Any
    scores: torch.Tensor | None
    classes: torch.Tensor | None
    ranks: Any


class GuardedAggregator:
    """Another rule, under guard; what that rule refuses is refused when it is added.

    >>> from functools import partial
    >>> from trustmix.aggregation.weighted_average import Accumulator
    >>> honest, lie = torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> rule = GuardedAggregator(partial(Accumulator, tau=1.0))
    >>> for index in range(6):
    ...     rule.add(honest, torch.tensor([-1.0, -2.0]), name=str(index))
    >>> rule.add(lie, torch.tensor([1e6, 1e6]), name="liar")
    >>> [[round(p, 3) for p in row] for row in rule.finish().probabilities.tolist()]
    [[0.9, 0.1], [0.1, 0.9]]
    >>> rule.report()
    {'liar': {'scores': 1.0, 'regret': 0.889, 'weight': 0.0}}
    """

    def __init__(self, rule: AggregatorFactory, guard: Guard | None = None) -> None:
        self.start = rule
        self.rule = rule()
        self.guard = guard or Guard()
        self._held: list[BufferedUpload] = []
        self._reputation: dict[str, float] = {}
        self._report: dict[str, dict[str, float]] = {}
        self._portions: dict[str, torch.Tensor] | None = None

    def add(
        self,
        predictions: Any,
        scores: Any = None,
        *,
        classes: Any = None,
        ranks: Any = None,
        name: str = "upload",
    ) -> None:
        """Check one upload and hold it; a client's second one is refused."""
        q = validate_predictions(predictions, name)
        if any(held.name == name for held in self._held):
            raise TrustmixError(f"{name}: it has said its word already; a client has one upload a round.")
        if self._held and q.shape != self._held[0].predictions.shape:
            wanted = format_shape(self._held[0].predictions)
            raise TrustmixError(f"{name}: predictions have the shape {format_shape(q)}; those before had {wanted}.")
        checked = None if scores is None else validate_scores(scores, len(q), name)
        told = None if classes is None else validate_counts(classes, q.shape[1], name)
        self.start().add(predictions, scores, classes=classes, ranks=ranks, name=name)
        self._held.append(BufferedUpload(name, predictions, checked, told, ranks))

    def finish(self) -> Teacher[Any]:
        """The rule's teacher of all uploads so far, bounded."""
        scores = self._scores()
        add: Any = self.rule.add
        weighs = "weight" in signature(add).parameters
        weights = [effective_weight(weight, weighs) for weight in self._weights(scores)]
        scores = self._capped(scores, weights)
        kept = []
        for index, (held, weight) in enumerate(zip(self._held, weights, strict=True)):
            even = torch.full((len(held.predictions),), weight, dtype=torch.float64)
            if weight:
                score = None if scores is None else scores[index]
                less = {"weight": weight} if weight < 1 else {}
                add(held.predictions, score, classes=held.classes, ranks=held.ranks, name=held.name, **less)
            kept.append(self.rule.latest() if weight and isinstance(self.rule, Keeping) else even)
        self._portions = self._dealt(torch.stack(kept), scores) if kept else None
        self._held = []
        return self.rule.finish()

    def portions(self) -> dict[str, torch.Tensor] | None:
        """Each client's share (N,) of the teacher that was finished last, where the rule weighs clients."""
        return self._portions

    def _dealt(self, kept: torch.Tensor, scores: torch.Tensor | None) -> dict[str, torch.Tensor] | None:
        """Shares from the weights (M, N) that clients were added with, and from the scores where the rule uses them."""
        if isinstance(self.rule, Weighing):
            said = torch.zeros_like(kept) if scores is None else scores
            kept = kept * self.rule.shares(said.masked_fill(kept == 0, -LARGEST_SCORE))
        elif not isinstance(self.rule, Keeping):
            return None
        return dict(zip([held.name for held in self._held], kept / kept.sum(0), strict=True))

    def report(self) -> dict[str, dict[str, float]]:
        """What was done to whom: the part of its scores that was lowered, its regret, and the weight that is left."""
        return {name: {what: round(much, 3) for what, much in found.items()} for name, found in self._report.items()}

    def recall(self, memory: Memory) -> None:
        """Begin with the reputations, and with what the rule remembers."""
        self._reputation = {key[len(OURS) :]: float(value) for key, value in memory.items() if key.startswith(OURS)}
        if isinstance(self.rule, Lasting):
            self.rule.recall({key[len(THEIRS) :]: value for key, value in memory.items() if key.startswith(THEIRS)})

    def memory(self) -> Memory:
        """The reputations that are less than good, and what the rule remembers."""
        theirs = self.rule.memory() if isinstance(self.rule, Lasting) else {}
        kept = {f"{THEIRS}{key}": value for key, value in theirs.items()}
        ours = {name: value for name, value in self._reputation.items() if value < 1 - ZERO_WEIGHT}
        return kept | {f"{OURS}{name}": torch.tensor(value, dtype=torch.float64) for name, value in ours.items()}

    def _scores(self) -> torch.Tensor | None:
        """(M, N): the scores, bounded, or None where a client has none."""
        told = [held.scores for held in self._held]
        if not told or any(score is None for score in told):
            return None
        said = torch.stack([score for score in told if score is not None])
        if len(said) < MIN_CLIENTS:
            return said
        scores = clip_scores(said)
        lowered = (scores < said).double().mean(1)
        for held, part in zip(self._held, lowered.tolist(), strict=True):
            if part >= REPORT_THRESHOLD:
                self._report.setdefault(held.name, {})["scores"] = part
        return scores

    def _capped(self, scores: torch.Tensor | None, weights: Sequence[float]) -> torch.Tensor | None:
        """The scores (M, N) with which nobody has more than the cap, among those who have a say."""
        tau, speaking = float(getattr(self.rule, "tau", 0.0)), sum(weight > 0 for weight in weights)
        if scores is None or len(scores) < MIN_CLIENTS or speaking < 2 or not 0 < tau < math.inf or self.guard.cap == 1:
            return scores
        return cap_share(scores, torch.tensor(weights, dtype=torch.float64), tau, self.guard.cap)

    def _weights(self, scores: torch.Tensor | None) -> list[float]:
        """Each client's say, by its regret today and its reputation."""
        names = [held.name for held in self._held]
        before = [max(self._reputation.get(name, 1.0), MIN_REPUTATION) ** REPUTATION_DECAY for name in names]
        if len(names) < MIN_CLIENTS:
            return [1.0] * len(names)
        regret, weights = regret_weights(
            [held.predictions for held in self._held],
            scores,
            [held.classes for held in self._held],
            torch.tensor(before, dtype=torch.float64),
        )
        for name, much, weight in zip(names, regret.tolist(), weights.tolist(), strict=True):
            self._reputation[name] = weight
            if weight < 1 - ZERO_WEIGHT:
                self._report.setdefault(name, {}).update(regret=much, weight=weight)
        return [1.0 if weight > 1 - ZERO_WEIGHT else weight for weight in weights.tolist()]


OURS, THEIRS = "reputation/", "rule/"
"""Where the memory keeps what the guard and what the rule remembers."""


def clip_scores(scores: torch.Tensor) -> torch.Tensor:
    """Scores (M, N), each client's k-th smallest at most the median of all clients' k-th smallest and `MAX_MADS` MADs.

    The order of a client's scores stays; who adds a million to all of them says what it would have said without.

    >>> said = torch.tensor([[1.0, 2.0], [1.5, 2.5], [2.0, 3.0], [9e5, 1e6]])
    >>> clip_scores(said).tolist()
    [[1.0, 2.0], [1.5, 2.5], [2.0, 3.0], [3.0, 4.0]]
    """
    ordered, place = scores.sort(1)
    middle = ordered.median(0).values
    spread = (ordered - middle).abs().median(0).values
    # the low scores of many clients spread widely: what is allowed there must not exceed what is allowed above
    allowed = (middle + MAX_MADS * spread).flip(0).cummin(0).values.flip(0)
    return torch.empty_like(scores).scatter_(1, place, torch.minimum(ordered, allowed))


def effective_weight(weight: float, weighs: bool) -> float:
    """The weight a client is added with, 0 where it is left out: small ones, and under a rule that takes none, halves.

    >>> effective_weight(0.4, weighs=True), effective_weight(0.4, weighs=False), effective_weight(0.6, weighs=False)
    (0.4, 0.0, 1.0)
    """
    if weight < (ZERO_WEIGHT if weighs else HALF):
        return 0.0
    return weight if weighs else 1.0


def cap_share(scores: torch.Tensor, weights: torch.Tensor, tau: float, cap: float) -> torch.Tensor:
    """Scores (M, N) by which nobody's share of a sample, in proportion w_i exp(tau * l_i), is above the cap.

    >>> scores = torch.tensor([[9.0], [0.0], [0.0], [8.0]])
    >>> low = cap_share(scores, torch.tensor([1.0, 1.0, 1.0, 0.0]), tau=1.0, cap=0.8)
    >>> torch.softmax(low[:3], 0).flatten().tolist()
    [0.800000011920929, 0.10000000149011612, 0.10000000149011612]
    """
    say = weights.to(scores.dtype).log().unsqueeze(1)
    loud = tau * scores + say
    first = loud.argmax(0, keepdim=True)
    others = torch.logsumexp(loud.scatter(0, first, -torch.inf), 0, keepdim=True)
    allowed = (others + math.log(cap / (1 - cap)) - say.squeeze(1)[first]) / tau
    return scores.scatter(0, first, torch.minimum(scores.gather(0, first), allowed))


def regret_weights(
    predictions: Sequence[Any],
    scores: torch.Tensor | None,
    classes: Sequence[torch.Tensor | None],
    before: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Regrets and weights (M,) of the clients' predictions (N, C), given the say each comes with.

    A client that tells its classes is judged on them alone, wherever the consensus sees them.
    """
    q = [torch.as_tensor(one).cpu() for one in predictions]
    voices = torch.ones(len(q), len(q[0])) if scores is None else rank_confidence(scores)
    weights = regret = before
    median = LEAST_REGRET if any(held is None for held in classes) else LEAST_WITHIN
    for _ in range(N_ITERATIONS):
        last, regret = weights, _regrets(q, voices, weights.clamp_min(MIN_REPUTATION), classes)
        median = max(float(regret.median()), median)  # those who are left agree more, which is no reason for rigour
        today = ((SILENCED - regret / median) / (SILENCED - TOLERATED)).clamp(0, 1)
        weights = before * today
        if torch.equal(weights, last):
            break
    return regret, weights


def rank_confidence(scores: torch.Tensor) -> torch.Tensor:
    """(M, N): how loudly a client speaks of each sample, by the rank of its score among its own; equal ones share it.

    >>> rank_confidence(torch.tensor([[-5.0, 1e9, 0.0, -4.0], [7.0, 7.0, 7.0, 7.0]])).tolist()
    [[0.001953125, 0.669921875, 0.244140625, 0.052734375], [0.125, 0.125, 0.125, 0.125]]
    """
    ordered, scores = scores.sort(1).values, scores.contiguous()
    below, up_to = (torch.searchsorted(ordered, scores, right=right) for right in (False, True))
    return ((below + up_to).to(torch.float64) / (2 * scores.shape[1])) ** SHARPNESS


def _regrets(
    predictions: Sequence[torch.Tensor],
    voices: torch.Tensor,
    weights: torch.Tensor,
    classes: Sequence[torch.Tensor | None],
) -> torch.Tensor:
    """(M,): what the consensus of the others holds against each client's word, from 0 (nothing) to 1."""
    loud = voices.to(torch.float64) * weights.unsqueeze(1)
    total, tiny = loud.sum(0), torch.finfo(torch.float64).tiny
    mixed = sum(voice.unsqueeze(1) * q for voice, q in zip(loud, predictions, strict=True))
    found = []
    for voice, q, held in zip(loud, predictions, classes, strict=True):
        others = (total - voice).clamp_min(tiny)
        consensus = ((mixed - voice.unsqueeze(1) * q) / others.unsqueeze(1)).clamp_min(0)
        said, heard = q.to(torch.float64), voice * others / total
        if held is not None:
            own = (held > 0).to(torch.float64)
            consensus, said, heard = consensus * own, said * own, others
            said = said / said.sum(1, keepdim=True).clamp_min(tiny)
        sure, word = said.max(1)
        likeliest = consensus.gather(1, word.unsqueeze(1)).squeeze(1) * (sure > 0)
        best = consensus.amax(1)
        missed = best - torch.maximum((said * consensus).sum(1), likeliest)
        found.append(heard @ missed / (heard @ best).clamp_min(tiny))
    return torch.stack(found)

"""Membership inference: what uploads reveal of who was in the private data.

The attacker stands where the server stands and chooses the public set: it asks every client about candidates, samples
that were trained on and fresh ones of the same classes, and gets real uploads of the last round, with codec and noise.
A server that keeps to the protocol sees predictions on other samples and learns less, so this bounds it from above.
The attacks: a client's predictions, the same against those of its peers (a likelihood ratio: the peers show how easy a
sample is), its scores, for the samples behind the density, and the teacher, which all clients see.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trustmix.aggregation.base import AggregatorFactory
from trustmix.attacks.poisoning import scores_of
from trustmix.data import Labelled
from trustmix.errors import TrustmixError
from trustmix.federation import Client, Public
from trustmix.seeds import derive_seed, numpy_generator
from trustmix.wire import decode_upload

FALSE_ALARMS = 0.01
"""The part of fresh samples that an attack may take for members."""
RESAMPLES = 400
"""Of the bootstrap behind the intervals."""


@dataclass(frozen=True)
class AttackScores:
    """An attack's scores, higher for members, each of what a group (a client) says of a sample."""

    scores: np.ndarray
    members: np.ndarray
    groups: np.ndarray
    samples: np.ndarray

    def strength(self, weights: np.ndarray | None = None) -> tuple[float, float]:
        """The area under the ROC curve, and the part of members caught at 1 % false alarms.

        >>> members = np.array([True, False, True, False])
        >>> AttackScores(np.array([3.0, 1, 2, 0]), members, np.zeros(4), np.arange(4)).strength()
        (1.0, 1.0)
        """
        weights = np.ones(len(self.scores)) if weights is None else weights
        levels, place = np.unique(-self.scores, return_inverse=True)
        inside, outside = (
            np.bincount(place, weights * kind, minlength=len(levels)) for kind in (self.members, ~self.members)
        )
        inside, outside = inside / inside.sum(), outside / outside.sum()
        caught, alarms = inside.cumsum(), outside.cumsum()
        area = float((outside * (caught - inside / 2)).sum())
        return area, float(caught[alarms <= FALSE_ALARMS + 1e-12].max(initial=0.0))

    def interval(self) -> tuple[float, float]:
        """95 % of the areas where groups and samples are both resampled, as clients share samples."""
        draws = numpy_generator(0, "audit")
        areas: list[float] = []
        while len(areas) < RESAMPLES:
            weights = _multiplicities(self.groups, draws) * _multiplicities(self.samples, draws)
            if weights[self.members].sum() and weights[~self.members].sum():
                areas.append(self.strength(weights)[0])
        low, high = np.quantile(areas, [0.025, 0.975])
        return float(low), float(high)


def _multiplicities(names: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """How often each name comes in a draw of as many names with replacement, for each entry."""
    found, place = np.unique(names, return_inverse=True)
    return np.bincount(draws.integers(len(found), size=len(found)), minlength=len(found))[place]


@dataclass(frozen=True)
class AttackResult:
    """How well one attack does: 0.5 is guessing, 1 knows every member."""

    attack: str
    auc: float
    low: float
    high: float
    caught: float
    """The part of members found at 1 % false alarms; 0.01 is guessing."""

    @classmethod
    def of(cls, attack: str, guesses: AttackScores) -> "AttackResult":
        """What the guesses of an attack are worth."""
        auc, caught = guesses.strength()
        return cls(attack, auc, *guesses.interval(), caught)


def infer_membership(
    clients: Sequence[Client], last: int, make_aggregator: AggregatorFactory | None
) -> list[AttackResult]:
    """Run all attacks on the uploads of the last round.

    Parameters
    ----------
    clients
        With the states that the run left, their private and test samples.
    last
        The number of the last round.
    make_aggregator
        The run's rule, for the attack on the teacher; None where there is none.

    Returns
    -------
    list of AttackResult
        One for each attack.
    """
    test = clients[0].test
    if test is None:
        raise TrustmixError("The run has no test samples, and the audit needs some that nobody trained on.")
    pool = _Pool([*(c.private for c in clients), *(c.calibration for c in clients), test])
    trained, calibrated = pool.held[: len(clients)], pool.held[len(clients) : -1]
    fresh = pool.held[-1] & ~np.any(pool.held[:-1], axis=0)
    odds, scores, teacher = _uploads(clients, last, pool, make_aggregator)
    labels = pool.samples.labels.numpy()
    knows = np.stack([np.isin(labels, np.unique(labels[mine])) for mine in trained])
    peers = _against_peers(odds, knows)
    attacks = [
        ("predictions", odds, trained),
        ("predictions against peers", peers, trained),
        ("scores", scores, calibrated),
    ]
    found = [
        AttackResult.of(name, _guesses(values, members, knows & fresh, labels)) for name, values, members in attacks
    ]
    if teacher is not None:
        anybody = np.any(trained, axis=0, keepdims=True)
        found.append(AttackResult.of("teacher", _guesses(teacher[None], anybody, fresh[None], labels)))
    return found


class _Pool:
    """All candidates, each once, and which of the given sets hold each: `held` (sets, samples)."""

    def __init__(self, sets: Sequence[Labelled]) -> None:
        inputs = torch.cat([one.inputs.cpu() for one in sets])
        labels = torch.cat([one.labels.cpu() for one in sets])
        rows = inputs.flatten(1).contiguous().view(torch.uint8).numpy()
        seen: dict[bytes, int] = {}
        place = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in rows])
        first = torch.from_numpy(np.unique(place, return_index=True)[1])
        self.samples = Labelled(inputs[first], labels[first])
        self.held = np.zeros((len(sets), len(first)), dtype=bool)
        self.held[np.repeat(np.arange(len(sets)), [len(one) for one in sets]), place] = True


def _uploads(
    clients: Sequence[Client], last: int, pool: _Pool, make_aggregator: AggregatorFactory | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """What uploads of the last round say of the candidates, asked in public sets of the run's size.

    Gives the log-odds of the true class (M, n), the scores (M, n), and the teacher's log-odds (n,).
    """
    size, total = len(clients[0].public.inputs), len(pool.samples)
    odds, scores = (np.zeros((len(clients), total)) for _ in range(2))
    teacher = np.zeros(total)
    for number, begin in enumerate(range(0, total, size)):
        asked = torch.arange(begin, begin + size) % total
        here = np.arange(begin, min(begin + size, total))
        some = pool.samples[asked]
        public = Public(some.inputs.to(clients[0].hardware.device), clients[0].public.classes)
        aggregator = make_aggregator() if make_aggregator is not None else None
        for index, client in enumerate(clients):
            client.seed = derive_seed(client.seed, "audit", number)  # other noise for another set
            upload = decode_upload(client.predict_on(last, public), public.header(client.id, last))
            odds[index, here] = _log_odds(upload.predictions, some.labels)[: len(here)]
            scores[index, here] = scores_of(upload).numpy()[: len(here)]
            if aggregator is not None:
                aggregator.update(upload)
        if aggregator is not None:
            teacher[here] = _log_odds(aggregator.compute().probabilities, some.labels)[: len(here)]
    return odds, scores, teacher if make_aggregator is not None else None


def _log_odds(predictions: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """log(q_y / (1 - q_y)) of the true class y, which is nearly normal where a loss is not."""
    q = predictions.to(torch.float64)
    right = torch.nn.functional.one_hot(labels, q.shape[1]).to(torch.bool)
    yes, no = q.masked_fill(~right, 0).sum(1), q.masked_fill(right, 0).sum(1)
    return (yes.clamp_min(1e-9).log() - no.clamp_min(1e-9).log()).numpy()


def _against_peers(values: np.ndarray, knows: np.ndarray) -> np.ndarray:
    """What each client says of each sample (M, n) beyond the mean of the others who know its class, if there are any.

    Who of them holds the sample is not asked: the attacker does not know, and it would give members away.
    """
    others = knows.sum(0) - knows
    total = (values * knows).sum(0) - values * knows
    beyond: np.ndarray = values - total / np.maximum(1, others)
    return beyond


def _guesses(values: np.ndarray, members: np.ndarray, fresh: np.ndarray, labels: np.ndarray) -> AttackScores:
    """All guesses on one scale: in standard deviations of fresh samples that the same client says of the same class.

    Each row of values, members and fresh (groups, n) is one group.
    """
    parts = []
    for group, (value, inside, outside) in enumerate(zip(values, members, fresh, strict=True)):
        for label in np.unique(labels[outside]):
            new = np.flatnonzero(outside & (labels == label))
            both = np.concatenate([np.flatnonzero(inside & (labels == label)), new])
            scaled = (value[both] - value[new].mean()) / max(float(value[new].std()), 1e-9)
            parts.append((scaled, inside[both], np.full(len(both), group), both))
    if not parts:
        raise TrustmixError("The test set has no fresh sample of any client's classes to compare members with.")
    return AttackScores(*(np.concatenate(column) for column in zip(*parts, strict=True)))

"""Membership inference: which samples were in the private data of a client, inferred from its uploads.

The attacker is a server that chooses the public set. It queries every client with candidates, which are training
samples and fresh samples of the same classes, and gets real uploads of the last round, with codec and noise. An honest
server sees predictions on other samples only and learns less, so the results are upper bounds for it.

Four attacks use the predictions of a client, the same relative to the mean of its peers (an approximate likelihood
ratio: the peers show how easy a sample is), its scores (for the samples behind the density), and the teacher.
A fifth one, LiRA, trains shadow models (`shadow_models`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trustmix.aggregation.base import AggregatorFactory
from trustmix.attacks.poisoning import scores_of
from trustmix.attacks.shadow_models import attack_client
from trustmix.data import Labelled
from trustmix.density import DISCRIMINATOR, RATIO
from trustmix.errors import TrustmixError
from trustmix.federation import Client, Public
from trustmix.seeds import derive_seed, numpy_generator
from trustmix.wire import decode_upload

MAX_FALSE_POSITIVE_RATE = 0.01
"""The false positive rate at which the true positive rate is measured."""
N_RESAMPLES = 400
"""The number of bootstrap resamples behind the intervals."""


@dataclass(frozen=True)
class AttackScores:
    """The scores of an attack, one for each pair of a group and a sample.

    Parameters
    ----------
    scores
        Float array (n,): higher for samples that the attack takes for members.
    members
        Boolean array (n,): whether the sample was in the group's data.
    groups
        Array (n,): the group, which is a client.
    samples
        Array (n,): the sample.
    """

    scores: np.ndarray
    members: np.ndarray
    groups: np.ndarray
    samples: np.ndarray

    def auc_and_tpr(self, weights: np.ndarray | None = None) -> tuple[float, float]:
        """Return the area under the ROC curve, and the true positive rate at `MAX_FALSE_POSITIVE_RATE`.

        Parameters
        ----------
        weights
            Array (n,): how often each entry counts; once if None.

        Returns
        -------
        float
            The area under the ROC curve.
        float
            The true positive rate.

        Examples
        --------
        >>> members = np.array([True, False, True, False])
        >>> AttackScores(np.array([3.0, 1, 2, 0]), members, np.zeros(4), np.arange(4)).auc_and_tpr()
        (1.0, 1.0)
        """
        weights = np.ones(len(self.scores)) if weights is None else weights
        levels, index = np.unique(-self.scores, return_inverse=True)
        inside, outside = (
            np.bincount(index, weights * kind, minlength=len(levels)) for kind in (self.members, ~self.members)
        )
        inside, outside = inside / inside.sum(), outside / outside.sum()
        true_positives, false_positives = inside.cumsum(), outside.cumsum()
        area = float((outside * (true_positives - inside / 2)).sum())
        return area, float(true_positives[false_positives <= MAX_FALSE_POSITIVE_RATE + 1e-12].max(initial=0.0))

    def interval(self) -> tuple[float, float]:
        """Return the 95 % bootstrap interval of the area under the ROC curve.

        Groups and samples are both resampled, since clients share samples.

        Returns
        -------
        tuple of float
            The lower and the upper end.
        """
        generator = numpy_generator(0, "audit")
        areas: list[float] = []
        while len(areas) < N_RESAMPLES:
            weights = _resample_counts(self.groups, generator) * _resample_counts(self.samples, generator)
            if weights[self.members].sum() and weights[~self.members].sum():
                areas.append(self.auc_and_tpr(weights)[0])
        low, high = np.quantile(areas, [0.025, 0.975])
        return float(low), float(high)


def _resample_counts(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """For each entry, how often its value is in a resample of the distinct values with replacement."""
    distinct, index = np.unique(values, return_inverse=True)
    size = len(distinct)
    return np.bincount(generator.integers(size, size=size), minlength=size)[index]


@dataclass(frozen=True)
class AttackResult:
    """The result of one attack.

    Parameters
    ----------
    attack
        The name of the attack.
    auc
        The area under the ROC curve; 0.5 is chance, 1 finds every member.
    low, high
        The 95 % interval of the area.
    tpr
        The true positive rate at a false positive rate of 0.01; 0.01 is chance.
    """

    attack: str
    auc: float
    low: float
    high: float
    tpr: float

    @classmethod
    def from_scores(cls, attack: str, scores: AttackScores) -> "AttackResult":
        """Compute the result of an attack.

        Parameters
        ----------
        attack
            The name of the attack.
        scores
            Its scores.

        Returns
        -------
        AttackResult
            The result.
        """
        auc, tpr = scores.auc_and_tpr()
        return cls(attack, auc, *scores.interval(), tpr)


def infer_membership(
    clients: Sequence[Client], last: int, make_aggregator: AggregatorFactory | None, *, shadows: int = 0
) -> list[AttackResult]:
    """Run all attacks on the uploads of the last round.

    Parameters
    ----------
    clients
        The clients with the states at the end of the run, their private and test samples.
    last
        The number of the last round.
    make_aggregator
        The rule of the run, for the attack on the teacher; None if the run has none.
    shadows
        The number of shadow models of each client for the likelihood ratio attack; 0 leaves it out.

    Returns
    -------
    list of AttackResult
        One for each attack.

    Raises
    ------
    TrustmixError
        If there are no test samples, or none of the classes of any client.
    """
    test = clients[0].test
    if test is None:
        raise TrustmixError("The run has no test samples, and the audit needs samples that no client was trained on.")
    candidates = _Candidates([*(c.private for c in clients), *(c.calibration for c in clients), test])
    trained, calibrated = candidates.held[: len(clients)], candidates.held[len(clients) : -1]
    fresh = candidates.held[-1] & ~np.any(candidates.held[:-1], axis=0)
    log_odds, scores, teacher = _query_clients(clients, last, candidates.samples, make_aggregator)
    labels = candidates.samples.labels.numpy()
    own_class = np.stack([np.isin(labels, np.unique(labels[mine])) for mine in trained])
    attacks = [
        ("predictions", log_odds, trained),
        ("predictions against peers", _subtract_peer_mean(log_odds, own_class), trained),
        ("scores", scores, _behind_density(clients[0].density, trained, calibrated)),
    ]
    results = [
        AttackResult.from_scores(name, _standardize(values, members, own_class & fresh, labels))
        for name, values, members in attacks
    ]
    if shadows:
        ratios = _likelihood_ratios(clients, last, candidates.samples, log_odds, own_class, make_aggregator, shadows)
        scored = _standardize(ratios, trained & own_class, own_class & fresh, labels)
        results.append(AttackResult.from_scores("shadow models (LiRA)", scored))
    if teacher is not None:
        members = np.any(trained, axis=0, keepdims=True)
        results.append(AttackResult.from_scores("teacher", _standardize(teacher[None], members, fresh[None], labels)))
    return results


def _likelihood_ratios(
    clients: Sequence[Client],
    last: int,
    samples: Labelled,
    log_odds: np.ndarray,
    own_class: np.ndarray,
    make_aggregator: AggregatorFactory | None,
    shadows: int,
) -> np.ndarray:
    """The likelihood ratios (M, n) of the candidates of each client's classes; 0 elsewhere."""
    teacher = _teacher_on_public_set(clients, last, make_aggregator)
    found = np.zeros_like(log_odds)
    for index, client in enumerate(clients):
        rows = np.flatnonzero(own_class[index])
        candidates = samples[torch.from_numpy(rows)].to(client.hardware.device)
        found[index, rows] = attack_client(
            client,
            candidates,
            log_odds[index, rows],
            teacher,
            last,
            shadows,
            lambda shadow, round_, asked: _query_clients([shadow], round_, asked, None)[0][0],
        )
    return found


def _teacher_on_public_set(
    clients: Sequence[Client], last: int, make_aggregator: AggregatorFactory | None
) -> torch.Tensor | None:
    """The teacher (N, C) of the last round, as the server has it."""
    if make_aggregator is None:
        return None
    aggregator, public = make_aggregator(), clients[0].public
    for client in clients:
        aggregator.update(decode_upload(client.predict_on(last, public), public.header(client.id, last)))
    return torch.as_tensor(aggregator.compute().probabilities)


def _behind_density(kind: str, trained: np.ndarray, calibrated: np.ndarray) -> np.ndarray:
    """The members (M, n) of the attack on scores: the samples that the density is fitted or trained on."""
    both: np.ndarray = trained | calibrated
    return both if kind == RATIO else trained if kind == DISCRIMINATOR else calibrated


class _Candidates:
    """The distinct samples of several sets, and which of the sets hold each: `held` (sets, samples)."""

    def __init__(self, sets: Sequence[Labelled]) -> None:
        inputs = torch.cat([one.inputs.cpu() for one in sets])
        labels = torch.cat([one.labels.cpu() for one in sets])
        rows = inputs.flatten(1).contiguous().view(torch.uint8).numpy()
        seen: dict[bytes, int] = {}
        index = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in rows])
        first = torch.from_numpy(np.unique(index, return_index=True)[1])
        self.samples = Labelled(inputs[first], labels[first])
        self.held = np.zeros((len(sets), len(first)), dtype=bool)
        self.held[np.repeat(np.arange(len(sets)), [len(one) for one in sets]), index] = True


def _query_clients(
    clients: Sequence[Client], last: int, samples: Labelled, make_aggregator: AggregatorFactory | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Query all clients with the samples, in public sets of the run's size, each a random part of the samples.

    A ratio to a public set of one client's samples would be another one than that to a set of fresh samples.
    Returns the log-odds of the true class (M, n), the scores (M, n), and the teacher's log-odds (n,).
    """
    size, total = len(clients[0].public.inputs), len(samples)
    log_odds, scores = (np.zeros((len(clients), total)) for _ in range(2))
    teacher = np.zeros(total)
    order = numpy_generator(0, "audit").permutation(total)
    for number, begin in enumerate(range(0, total, size)):
        rows = order[begin : begin + size]
        queried = samples[torch.from_numpy(order[np.arange(begin, begin + size) % total])]
        public = Public(queried.inputs.to(clients[0].hardware.device), clients[0].public.classes)
        aggregator = make_aggregator() if make_aggregator is not None else None
        for index, client in enumerate(clients):
            client.seed = derive_seed(client.seed, "audit", number)  # each public set needs noise of its own
            upload = decode_upload(client.predict_on(last, public), public.header(client.id, last))
            log_odds[index, rows] = _log_odds(upload.predictions, queried.labels)[: len(rows)]
            scores[index, rows] = scores_of(upload).numpy()[: len(rows)]
            if aggregator is not None:
                aggregator.update(upload)
        if aggregator is not None:
            teacher[rows] = _log_odds(aggregator.compute().probabilities, queried.labels)[: len(rows)]
    return log_odds, scores, teacher if make_aggregator is not None else None


def _log_odds(predictions: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """log(q_y / (1 - q_y)) of the true class y, which is closer to normal than the loss is."""
    q = predictions.to(torch.float64)
    right = torch.nn.functional.one_hot(labels, q.shape[1]).to(torch.bool)
    yes, no = q.masked_fill(~right, 0).sum(1), q.masked_fill(right, 0).sum(1)
    return (yes.clamp_min(1e-9).log() - no.clamp_min(1e-9).log()).numpy()


def _subtract_peer_mean(values: np.ndarray, own_class: np.ndarray) -> np.ndarray:
    """The values (M, n) minus the mean over the other clients that hold the sample's class, if there are any.

    Whether those clients hold the sample itself is not used: the attacker does not know it, and it would leak members.
    """
    others = own_class.sum(0) - own_class
    total = (values * own_class).sum(0) - values * own_class
    difference: np.ndarray = values - total / np.maximum(1, others)
    return difference


def _standardize(values: np.ndarray, members: np.ndarray, fresh: np.ndarray, labels: np.ndarray) -> AttackScores:
    """All scores on one scale: standardized by the fresh samples of the same group and class.

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

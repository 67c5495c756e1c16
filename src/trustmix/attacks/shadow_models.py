"""LiRA, the likelihood ratio attack with shadow models (Carlini et al. 2022), against clients that distil.

The attacker trains shadow models as a client trains: on random halves of the candidates, with the same settings and
noise, from the same teacher, which the server has. Each candidate is in half of the shadow models. The score of a
candidate is the log-likelihood ratio of the client's log-odds under the Gaussians of the models that were trained on it
and of those that were not. With few shadow models the variances are shared by all candidates, as the paper advises.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from trustmix.data import Labelled
from trustmix.errors import TrustmixError
from trustmix.federation import Client, MemoryStore, Request
from trustmix.seeds import derive_seed, numpy_generator
from trustmix.wire import encode_teacher

MAX_ROUNDS = 5
"""Rounds of a shadow model at most; the last ones decide what a model remembers."""


def likelihood_ratios(observed: np.ndarray, shadows: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """The log-likelihood ratio of membership for every candidate.

    Parameters
    ----------
    observed
        Float array (n,): the log-odds of the attacked model.
    shadows
        Float array (K, n): those of the shadow models.
    inside
        Boolean array (K, n): whether a shadow model was trained on a candidate; each is in some and not in others.

    Returns
    -------
    np.ndarray
        (n,): higher for likely members.

    Examples
    --------
    >>> inside = np.array([[True, False], [False, True]])
    >>> likelihood_ratios(np.array([4.0, 1.0]), np.where(inside, 4.0, 1.0), inside).round(1).tolist()
    [4.5, -4.5]
    """
    means, variances = [], []
    for chosen in (inside, ~inside):
        mean = (shadows * chosen).sum(0) / chosen.sum(0)
        freedom = max(1, int(chosen.sum()) - chosen.shape[1])
        variances.append(max(float((((shadows - mean) ** 2) * chosen).sum() / freedom), MIN_VARIANCE))
        means.append(mean)
    within, without = (
        -((observed - mean) ** 2) / (2 * variance) - np.log(variance) / 2
        for mean, variance in zip(means, variances, strict=True)
    )
    ratios: np.ndarray = within - without
    return ratios


MIN_VARIANCE = 1.0
"""The smallest variance of log-odds that is believed, from so few models."""


def attack_client(
    client: Client,
    candidates: Labelled,
    observed: np.ndarray,
    teacher: torch.Tensor | None,
    rounds: int,
    shadows: int,
    query: Callable[[Client, int, Labelled], np.ndarray],
) -> np.ndarray:
    """Train shadow models of a client and return the likelihood ratios of its candidates.

    Parameters
    ----------
    client
        The client, whose model, settings and privacy the shadow models share.
    candidates
        The n samples in question.
    observed
        Float array (n,): the client's log-odds of their labels.
    teacher
        Float tensor (N, C): the teacher on the client's public set, or None without one.
    rounds
        The number of rounds of the run.
    shadows
        K, the number of shadow models, an even number from 2.
    query
        Returns the log-odds (n,) of a client after a round for samples.

    Returns
    -------
    np.ndarray
        (n,): the log-likelihood ratios.

    Raises
    ------
    TrustmixError
        If the number of shadow models is odd or less than 2.
    """
    if shadows < 2 or shadows % 2:
        raise TrustmixError(f"there are {shadows} shadow models; it must be an even number, 2 or more")
    generator = numpy_generator(client.seed, "shadows", client.id)
    inside = generator.random((shadows, len(candidates))).argsort(0).argsort(0) < shadows // 2
    found = np.empty((shadows, len(candidates)))
    for index, chosen in enumerate(inside):
        half = candidates[torch.from_numpy(np.flatnonzero(chosen))]
        seed = derive_seed(client.seed, "shadow", client.id, index)
        shadow = replace(client, private=half, calibration=half, test=None, seed=seed, store=MemoryStore())
        last = _train(shadow, teacher, rounds)
        found[index] = query(shadow, last, candidates)
    return likelihood_ratios(observed, found, inside)


def _train(shadow: Client, teacher: torch.Tensor | None, rounds: int) -> int:
    """Train a shadow model for some rounds, from the same teacher in each, and return the last round."""
    last = min(rounds, MAX_ROUNDS)
    for number in range(1, last + 1):
        message = None
        if teacher is not None and number > 1:
            message = encode_teacher(teacher, shadow.public.header("server", number - 1), "float32")
        shadow.step(Request(number, message, upload=False))
    return last

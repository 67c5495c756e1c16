"""Label inference: which classes a client holds, and how many samples of each, inferred from its uploads.

The attacker is an honest but curious server: it uses the predictions and the scores of the last round on the run's own
public set, and compares the clients with each other. After many rounds all clients know all classes, but each has just
been trained on its own, which it still predicts more often, and whose samples its density scores highest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trustmix.attacks.membership_inference import AttackResult, AttackScores
from trustmix.attacks.poisoning import scores_of
from trustmix.federation import Client
from trustmix.wire import decode_upload


@dataclass(frozen=True)
class LabelInference:
    """What the uploads of a round reveal of the labels of clients.

    Parameters
    ----------
    results
        One result for each attack on the label sets; its entries are pairs of a client and a class.
    distance
        The mean total variation distance between the guessed and the true label histogram of a client, from 0 to 1.
    baseline
        The same for the guess that every client has the mean histogram.
    """

    results: Sequence[AttackResult]
    distance: float
    baseline: float


def infer_labels(clients: Sequence[Client], last: int) -> LabelInference:
    """Run all attacks on the uploads of the last round.

    Parameters
    ----------
    clients
        The clients with the states at the end of the run and their private samples.
    last
        The number of the last round.

    Returns
    -------
    LabelInference
        How well the attacks do.
    """
    public = clients[0].public
    uploads = [decode_upload(client.predict_on(last, public), public.header(client.id, last)) for client in clients]
    predictions = np.stack([upload.predictions.double().numpy() for upload in uploads])
    scores = np.stack([scores_of(upload).double().numpy() for upload in uploads])
    counts = [torch.bincount(client.private.labels.cpu(), minlength=public.classes) for client in clients]
    histograms = np.stack([count.double().numpy() / max(1, int(count.sum())) for count in counts])
    evidence = {"predictions": class_evidence(predictions), "scores": score_evidence(predictions, scores)}
    results = [_rate(f"label set, from {name}", found, histograms) for name, found in evidence.items()]
    guessed = guess_histograms(predictions)
    mean = np.broadcast_to(histograms.mean(0), histograms.shape)
    return LabelInference(results, _total_variation(guessed, histograms), _total_variation(mean, histograms))


def class_evidence(predictions: np.ndarray) -> np.ndarray:
    """How much more of each class a client predicts than the others do.

    Parameters
    ----------
    predictions
        Float array (M, N, C): the predictions of M clients.

    Returns
    -------
    np.ndarray
        (M, C): the log of the mean prediction of each class, minus its mean over clients.

    Examples
    --------
    >>> one, other = [[0.9, 0.1], [0.6, 0.4]], [[0.5, 0.5], [0.1, 0.9]]
    >>> bool(class_evidence(np.array([one, other]))[0, 0] > 0)
    True
    """
    logs = np.log(predictions.mean(1).clip(1e-12))
    found: np.ndarray = logs - logs.mean(0)
    return found


def score_evidence(predictions: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """How highly a client scores the samples of each class, by the consensus of all predictions.

    Parameters
    ----------
    predictions
        Float array (M, N, C): the predictions of M clients.
    scores
        Float array (M, N): their scores.

    Returns
    -------
    np.ndarray
        (M, C): the mean score of the samples of each class, in standard deviations of the client's scores, minus the
        mean over clients.
    """
    spread = scores.std(1, keepdims=True)
    standard = (scores - scores.mean(1, keepdims=True)) / np.maximum(spread, 1e-9)
    weights = predictions.mean(0)
    by_class = standard @ weights / weights.sum(0).clip(1e-12)
    found: np.ndarray = by_class - by_class.mean(0)
    return found


def guess_histograms(predictions: np.ndarray) -> np.ndarray:
    """Guess the label histogram of every client: what it predicts more often than the others do.

    Parameters
    ----------
    predictions
        Float array (M, N, C): the predictions of M clients.

    Returns
    -------
    np.ndarray
        (M, C): probabilities.

    Examples
    --------
    >>> one, other = [[0.9, 0.1], [0.6, 0.4]], [[0.5, 0.5], [0.1, 0.9]]
    >>> guess_histograms(np.array([one, other])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    shares = predictions.mean(1)
    excess = (shares - shares.mean(0)).clip(0)
    total = excess.sum(1, keepdims=True)
    guessed: np.ndarray = np.where(total > 0, excess / np.where(total > 0, total, 1), shares)
    return guessed


def _rate(attack: str, evidence: np.ndarray, histograms: np.ndarray) -> AttackResult:
    """The result of an attack on label sets; without a class that a client lacks there is nothing to find."""
    held = histograms > 0
    if held.all():
        return AttackResult(attack, 0.5, 0.5, 0.5, 0.0)
    clients, classes = (index.ravel() for index in np.indices(held.shape))
    return AttackResult.from_scores(attack, AttackScores(evidence.ravel(), held.ravel(), clients, classes))


def _total_variation(guessed: np.ndarray, histograms: np.ndarray) -> float:
    return float(np.abs(guessed - histograms).sum(1).mean() / 2)

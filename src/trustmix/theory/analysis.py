"""The teacher error over tau, its relation to accuracy, and sentences about both.

As tau goes from 0 (AVG) to 1 (UWA) trust is concentrated: the teacher's bias falls and its variance rises (Lemma 1).
Several draws, such as runs that differ in their seed, show both; a single draw shows their sum, the teacher error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from trustmix.aggregation import Accumulator, Teacher
from trustmix.theory.measurement import Measurement
from trustmix.theory.teacher import (
    TeacherErrorDecomposition,
    bias_variance,
    rank_correlation,
    teacher_error,
    teacher_error_decomposition,
    weights,
)

TAUS = [step / 40 for step in range(41)]
"""From AVG to UWA."""
LEMMA_TAUS = (0.0, 0.25, 1.0)
"""AVG, sUWA and UWA, for which Lemma 1 is computed."""


@dataclass(frozen=True)
class Uploads:
    """The predictions and scores of all clients of one round, on the same inputs."""

    predictions: torch.Tensor
    """(M, N, C)."""
    scores: torch.Tensor
    """(M, N)."""

    def teacher(self, tau: float) -> Teacher[torch.Tensor]:
        """The weighted average of the predictions at that tau.

        >>> uploads = Uploads(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]), torch.tensor([[0.0], [0.0]]))
        >>> uploads.teacher(1.0).probabilities
        tensor([[0.5000, 0.5000]])
        """
        rule = Accumulator(tau)
        for predictions, scores in zip(self.predictions, self.scores, strict=True):
            rule.update(predictions, scores)
        return rule.compute()


@dataclass(frozen=True)
class Curve:
    """The teacher error of one setting for every tau of `TAUS`, and over several runs its bias and variance."""

    name: str
    runs: int
    errors: list[float]
    concentrations: list[float]
    biases: list[float] | None = None
    variances: list[float] | None = None
    decompositions: dict[float, TeacherErrorDecomposition] | None = None
    """Lemma 1 at each of `LEMMA_TAUS`, where the runs share their split."""

    @property
    def best_tau(self) -> float:
        """The tau of the least error."""
        return TAUS[min(range(len(TAUS)), key=self.errors.__getitem__)]

    def error_at(self, tau: float) -> float:
        """The error at a tau of `TAUS`."""
        return self.errors[TAUS.index(tau)]


def compute_curve(name: str, draws: Sequence[Uploads], reference: torch.Tensor, *, same_split: bool = False) -> Curve:
    """The teacher error over tau.

    Parameters
    ----------
    name : str
        The name of the setting.
    draws : sequence of Uploads
        The uploads of each run of the setting, all on the same N inputs.
    reference : torch.Tensor (N, C)
        p* of these inputs.
    same_split : bool
        Whether client i holds the same data in all runs, so that Lemma 1 applies.

    Returns
    -------
    Curve
        With bias and variance if there are two draws or more.

    Examples
    --------
    >>> uploads = Uploads(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]), torch.tensor([[0.0], [-9.0]]))
    >>> curve = compute_curve("two clients", [uploads], torch.tensor([[1.0, 0.0]]))
    >>> curve.error_at(0.0), curve.best_tau
    (0.5, 1.0)
    """
    if len(draws) == 1:
        teachers = [draws[0].teacher(tau) for tau in TAUS]
        errors = [teacher_error(teacher.probabilities, reference) for teacher in teachers]
        return Curve(name, 1, errors, [float(teacher.concentration.mean()) for teacher in teachers])
    errors, concentrations, biases, variances = [], [], [], []
    for tau in TAUS:
        teachers = [uploads.teacher(tau) for uploads in draws]
        bias, variance = bias_variance(torch.stack([t.probabilities for t in teachers]), reference)
        errors.append(bias + variance)
        biases.append(bias)
        variances.append(variance)
        concentrations.append(fmean(float(t.concentration.mean()) for t in teachers))
    comparable = same_split and len({uploads.predictions.shape for uploads in draws}) == 1
    decompositions = {tau: _decompose(draws, tau, reference) for tau in LEMMA_TAUS} if comparable else None
    return Curve(name, len(draws), errors, concentrations, biases, variances, decompositions)


def _decompose(draws: Sequence[Uploads], tau: float, reference: torch.Tensor) -> TeacherErrorDecomposition:
    trust = torch.stack([weights(uploads.scores, tau) for uploads in draws])
    return teacher_error_decomposition(torch.stack([uploads.predictions for uploads in draws]), trust, reference)


@dataclass(frozen=True)
class ErrorCorrelation:
    """Spearman's correlation of teacher error and final accuracy."""

    runs: int
    """The number of runs."""
    overall: float | None
    """Over all runs; None for fewer than three."""
    within: float | None
    """The mean over the settings with three runs or more; None where there is no such setting."""
    settings: int
    """The number of such settings."""


def correlate_error_accuracy(settings: Sequence[Sequence[tuple[float, float]]]) -> ErrorCorrelation:
    """The rank correlation of teacher error and accuracy, over all runs and within settings.

    Parameters
    ----------
    settings : sequence of sequences of (float, float)
        The teacher error and the final accuracy of each run, grouped by setting.

    Returns
    -------
    ErrorCorrelation
        -1 means that the better teacher always made the better clients.

    Examples
    --------
    >>> correlate_error_accuracy([[(0.1, 0.9), (0.2, 0.8), (0.3, 0.7)]])
    ErrorCorrelation(runs=3, overall=-1.0, within=-1.0, settings=1)
    """
    pairs = [pair for setting in settings for pair in setting]
    within = [rank_correlation(*zip(*setting, strict=True)) for setting in settings if len(setting) > 2]
    overall = rank_correlation(*zip(*pairs, strict=True)) if len(pairs) > 2 else None
    return ErrorCorrelation(len(pairs), overall, fmean(within) if within else None, len(within))


def describe_measurement(measurement: Measurement) -> str:
    """The main quantities of one round, in two sentences."""
    ratio = measurement.floor / measurement.gradient
    where = f"{ratio:.3g} times what the run stands at" if ratio >= 1 else "below where the run stands"
    return (
        f"In round {measurement.round} a label rests on {measurement.effective_clients:.1f} of {measurement.clients} "
        f"clients and the teacher error is {measurement.teacher_error:.3f}. The predicted floor of |grad F|² is "
        f"{measurement.floor:.3g}, {where} ({measurement.gradient:.3g})."
    )


def describe_curve(curve: Curve) -> str:
    """How the teacher error changes from AVG to UWA, and whether tau = 0.25 is near the least error.

    >>> curve = Curve("setting", 1, [1 - tau for tau in TAUS], [0.5] * len(TAUS))
    >>> describe_curve(curve).partition("; ")[0]
    'From AVG to UWA the teacher error goes from 1.000 to 0.000'
    """
    soft, least = curve.error_at(0.25), curve.error_at(curve.best_tau)
    if soft <= 1.05 * least:
        choice = f"tau = 0.25 is a good choice here ({soft:.3f}, the least is {least:.3f} at {curve.best_tau:g})"
    else:
        choice = f"tau = 0.25 is not the best choice here: it has {soft:.3f}, tau = {curve.best_tau:g} has {least:.3f}"
    first, last = curve.error_at(0.0), curve.error_at(1.0)
    sentence = f"From AVG to UWA the teacher error goes from {first:.3f} to {last:.3f}; {choice}."
    if curve.biases is None or curve.variances is None:
        return sentence
    return (
        f"{sentence} Over {curve.runs} runs the squared bias goes from {curve.biases[0]:.3f} to {curve.biases[-1]:.3f} "
        f"and the variance from {curve.variances[0]:.3f} to {curve.variances[-1]:.3f}."
    )


def describe_correlation(correlation: ErrorCorrelation) -> str:
    """The correlation in a sentence; empty where it was not computed.

    >>> describe_correlation(ErrorCorrelation(runs=2, overall=None, within=None, settings=0))
    ''
    """
    if correlation.overall is None:
        return ""
    inside = (
        ""
        if correlation.within is None
        else f", {correlation.within:+.2f} within a setting (mean of {correlation.settings})"
    )
    return (
        f"Teacher error and final accuracy have a rank correlation of {correlation.overall:+.2f} over "
        f"{correlation.runs} runs{inside}; -1 means that the better teacher always made the better clients."
    )

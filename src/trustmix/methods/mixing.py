"""Arrays of predictions in, a teacher out, by the rule of any method: mixing without a federation.

DataFrames of pandas are aligned by their row and column labels, and the teacher is one too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from trustmix.aggregation.base import Teacher
from trustmix.aggregation.trust import Trust
from trustmix.aggregation.upload import Upload
from trustmix.arrays import AnyArray
from trustmix.errors import TrustmixError
from trustmix.federation.method import Rule, resolve_method

DEFAULT_TAU = 0.25
"""The paper's sUWA."""


def mix(
    predictions: AnyArray | Sequence[Any],
    scores: AnyArray | Sequence[Any] | None = None,
    *,
    tau: float | None = None,
    rule: Rule | None = None,
    label_sets: Sequence[Iterable[int | str]] | None = None,
) -> Teacher[Any]:
    """Mix the clients' predictions, sample by sample, by their scores.

    Parameters
    ----------
    predictions
        (M, N, C), probabilities; or a list of one array or DataFrame (N, C) per client.
    scores
        (M, N), log-likelihoods, log-ratios for the rule trust; a list of one array or Series (N,) per client, or a
        DataFrame with a column per client. None where all clients weigh alike.
    tau
        The temperature: 0 averages, 1 is the paper's UWA, 0.25 its sUWA, which is the default.
    rule
        Instead of tau: the name of a rule, such as "trust" or "median", an aggregator or its class.
    label_sets
        The classes that each client holds, by number or by the name of a column. The rule is then trust, unless one is
        given.

    Returns
    -------
    Teacher
        In the kind of array that the predictions came as.

    Raises
    ------
    TrustmixError
        If an array has the wrong shape, or values that it cannot have; if DataFrames have other labels.

    Examples
    --------
    >>> import numpy as np
    >>> q = np.array([[[0.9, 0.1]], [[0.2, 0.8]]])
    >>> teacher = mix(q, np.array([[0.0], [-50.0]]), tau=1.0)
    >>> teacher.probabilities.round(6).tolist(), teacher.effective_clients.round(6).tolist()
    ([[0.9, 0.1]], [1.0])
    >>> mix(q, rule="avg").probabilities.round(6).tolist()
    [[0.55, 0.45]]
    >>> mix(q)
    <Teacher of 1 samples x 2 classes: 2.0 of 2 clients, effectively>
    """
    if tau is not None and (rule is not None or label_sets is not None):
        raise TrustmixError("tau is the temperature of a weighted average; give it without rule and label_sets.")
    scores = _by_column(scores) if _is_frame(scores) else scores
    for what, given in (("scores", scores), ("label sets", label_sets)):
        if given is not None and len(predictions) != len(given):
            raise TrustmixError(f"predictions are of {len(predictions)} clients and {what} of {len(given)}.")
    default: Rule = (DEFAULT_TAU if tau is None else tau) if label_sets is None else Trust
    aggregator = resolve_method(default if rule is None else rule).make_aggregator()
    if len(predictions) == 0:
        raise TrustmixError("there is nothing to mix: predictions are of 0 clients.")
    first = predictions[0]
    for index, client in enumerate(predictions):
        place = f"client {index + 1} of {len(predictions)}"
        score, counts = (None if scores is None else scores[index]), None
        if label_sets is not None:
            counts = _class_counts(label_sets[index], first, place)
        if _is_frame(first):
            client, score = _align(client, first, place), _align(score, first, place)
        aggregator.update(Upload.from_arrays(str(index), client, score, class_counts=counts, source=place))
    teacher = aggregator.compute()
    return _as_frame(teacher, first) if _is_frame(first) else teacher


def _is_frame(array: object) -> bool:
    """Whether it is a DataFrame; pandas need not be installed."""
    return hasattr(array, "columns") and hasattr(array, "index")


def _by_column(frame: Any) -> list[Any]:
    return [frame[column] for column in frame]


def _align(given: Any, first: Any, place: str) -> Any:
    """The values of a DataFrame or Series in the order of the first one's labels; arrays as they are."""
    for axis in ("index", "columns"):
        if not hasattr(given, axis) or not hasattr(given, "to_numpy"):
            continue
        ours, theirs = getattr(given, axis), getattr(first, axis)
        if ours.equals(theirs):
            continue
        if not ours.is_unique or set(ours) != set(theirs):
            odd = next(iter(set(ours) ^ set(theirs)), "a label that occurs twice")
            raise TrustmixError(
                f'{place}: the {axis} differs from that of the first DataFrame in "{odd}"; the labels must be the same.'
            )
        given = given.reindex(theirs) if axis == "index" else given[list(theirs)]
    return given.to_numpy(dtype=float) if hasattr(given, "to_numpy") else given


def _as_frame(teacher: Teacher[Any], first: Any) -> Teacher[Any]:
    import pandas  # what gave the DataFrames

    probabilities = pandas.DataFrame(teacher.probabilities, index=first.index, columns=first.columns)
    concentration = pandas.Series(teacher.concentration, index=first.index)
    return replace(teacher, probabilities=probabilities, concentration=concentration)


def _class_counts(held: Iterable[int | str], first: Any, place: str) -> torch.Tensor:
    """A label set as counts (C,): 1 for each class held."""
    names = [str(name) for name in first.columns] if _is_frame(first) else []
    classes = len(names) or len(first[0])
    named = sorted({names.index(entry) if entry in names else entry for entry in held}, key=str)
    numbers = [entry for entry in named if isinstance(entry, int) and 0 <= entry < classes]
    if not named or numbers != named:
        wanted = f"0 to {classes - 1}" + (f", or {', '.join(names)}" if names else "")
        raise TrustmixError(f"{place}: the label set is {named}; it must name some of the classes {wanted}.")
    counts = torch.zeros(classes, dtype=torch.int64)
    counts[numbers] = 1
    return counts

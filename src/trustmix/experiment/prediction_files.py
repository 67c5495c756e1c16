"""Files of predictions in, a file with the teacher out: aggregation without a federation.

An npz file holds `predictions` (N, C), or `logits` (N, C) whose softmax they are; for trust, either `scores` (N,), or
`calibration_logits` (n, C) and `calibration_labels` (n,) that a density is fitted on: the density ratio for the rule
trust, the paper's Gaussians for the others. `held` (C,), how many samples of each class the client holds, is optional.
A csv file has a column of probabilities per class, and may have a column `score`. In both, names of samples (`id`) and
of classes align the rows and columns of the files.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from trustmix import storage
from trustmix.aggregation import Teacher, Upload
from trustmix.data import read_npz
from trustmix.data.tables import Table, read_table, table_format
from trustmix.density import resolve_density
from trustmix.errors import TrustmixError
from trustmix.federation import resolve_method

Array: TypeAlias = np.ndarray[Any, Any]

NOT_CLASSES = ("id", "score", "predicted", "label", "effective_clients")
"""Columns of a csv file that are not classes; files of `predict` and files with a teacher have the last ones."""


@dataclass(frozen=True)
class Predictions:
    """The predictions of one client for N samples and C classes.

    Parameters
    ----------
    probabilities : NumPy array
        (N, C), probabilities.
    scores : NumPy array, optional
        (N,), how familiar each sample is to the client, as a log-likelihood.
    held : NumPy array, optional
        (C,), how many samples of each class the client holds.
    ids : tuple of str
        The names of the samples; empty if they have none.
    classes : tuple of str
        The names of the classes; empty if they have none.
    """

    probabilities: Array
    scores: Array | None = None
    held: Array | None = None
    ids: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


def read_predictions(path: Path, density: str = "gaussians") -> Predictions:
    r"""Read a file of predictions.

    Parameters
    ----------
    path : Path
        An npz or a csv file.
    density : str
        The density that is fitted on calibration arrays, if the file has them.

    Returns
    -------
    Predictions
        The contents of the file.

    Raises
    ------
    TrustmixError
        If the file has another ending, lacks predictions, or holds something that is not a number.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = file.write_text("cat,dog\n0.9,0.1\n")
    >>> read_predictions(file).classes
    ('cat', 'dog')
    """
    if path.suffix == ".npz":
        return _from_arrays(path, read_npz(path), density)
    if table_format(path) == ".csv":
        return _from_table(path, read_table(path))
    raise TrustmixError(f"{path} is no file of predictions: its name must end in .npz or .csv.")


def mix_files(
    paths: Sequence[Path], rule: str | float = "suwa", label_sets: Path | None = None
) -> tuple[Teacher[Array], Predictions]:
    r"""Aggregate files of predictions.

    Parameters
    ----------
    paths : sequence of Path
        One file per client, with the same samples: in the same order, or in any order if the files name them.
    rule : str or float
        The name of a rule, "package.module:Class", or a tau.
    label_sets : Path, optional
        A csv file with the label set of each client: a column `file`, and a column per class with the number of samples
        that the client holds, or 1 for some.

    Returns
    -------
    teacher : Teacher
        The aggregated predictions, as NumPy arrays.
    first : Predictions
        The predictions of the first file, for the names of samples and classes.

    Raises
    ------
    TrustmixError
        If there is no file, files name different samples or classes, or the rule cannot aggregate them.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text("cat,dog,score\n0.9,0.1,0\n")
    >>> _ = (folder / "b.csv").write_text("cat,dog,score\n0.2,0.8,-50\n")
    >>> mix_files([folder / "a.csv", folder / "b.csv"], rule="uwa")[0].probabilities.round(3).tolist()
    [[0.9, 0.1]]
    """
    method = resolve_method(rule)
    aggregator = method.make_aggregator()
    first: Predictions | None = None
    sets = None if label_sets is None else read_table(label_sets)
    for path in paths:
        client = read_predictions(path, method.density)
        first = first or client
        client = _align(path, client, paths[0], first)
        if sets is not None and label_sets is not None:
            client = replace(client, held=_label_set(label_sets, sets, path, first))
        aggregator.update(
            Upload.from_arrays(
                str(path),
                client.probabilities,
                client.scores,
                class_counts=client.held,
                source=str(path),
            )
        )
    if first is None:
        raise TrustmixError("There is nothing to mix: no file was given.")
    return aggregator.compute(), first


def write_teacher(path: Path, teacher: Teacher[Array], names: Predictions) -> None:
    """Write a teacher to a file, which `read_predictions` can read again.

    Parameters
    ----------
    path : Path
        The file; a name that ends in .npz gives an npz file, any other a csv file.
    teacher : Teacher
        The teacher, as NumPy arrays.
    names : Predictions
        Predictions with the names of samples and classes.

    Raises
    ------
    StorageError
        If the file cannot be written.

    Examples
    --------
    >>> import tempfile, trustmix as tm
    >>> teacher = tm.mix(np.array([[[0.75, 0.25]], [[0.25, 0.75]]]))
    >>> file = Path(tempfile.mkdtemp()) / "teacher.csv"
    >>> write_teacher(file, teacher, Predictions(teacher.probabilities, classes=("cat", "dog")))
    >>> file.read_text().splitlines()
    ['cat,dog,predicted,effective_clients', '0.5,0.5,cat,2.0']
    """
    classes = names.classes or tuple(map(str, range(teacher.probabilities.shape[1])))
    predicted = teacher.probabilities.argmax(1)
    if path.suffix == ".npz":
        arrays = {"predictions": teacher.probabilities, "predicted": predicted}
        arrays |= {"effective_clients": teacher.effective_clients}
        arrays |= {"id": np.array(names.ids)} if names.ids else {}
        arrays |= {"classes": np.array(names.classes)} if names.classes else {}
        write_npz(path, arrays)
        return
    columns: dict[str, Sequence[object]] = {"id": names.ids} if names.ids else {}
    columns |= dict(zip(classes, teacher.probabilities.T.tolist(), strict=True))
    columns |= {"predicted": [classes[index] for index in predicted]}
    write_csv(path, columns | {"effective_clients": teacher.effective_clients.tolist()})


def write_csv(path: Path, columns: Mapping[str, Sequence[object]]) -> None:
    """Write columns of the same length to a csv file, atomically.

    Parameters
    ----------
    path : Path
        The file.
    columns : mapping of str to sequence
        The values of each column by its name.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows(zip(*columns.values(), strict=True))
    storage.write_bytes(path, text.getvalue().encode())


def validate_output_name(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Check the name of a file for predictions, before they are computed.

    Parameters
    ----------
    path : Path
        The file to write.
    inputs : iterable of Path
        Files that are read and must stay as they are.

    Raises
    ------
    TrustmixError
        If the name does not end in .npz or .csv, or is that of an input.

    Examples
    --------
    >>> validate_output_name(Path("teacher.csv"))
    """
    if path.suffix not in (".npz", ".csv"):
        raise TrustmixError(f"{path} (--out) must end in .npz or .csv.")
    if path.exists() and any(file.exists() and path.samefile(file) for file in inputs):
        raise TrustmixError(f"{path} (--out) is one of the files to read; choose another name.")


def write_npz(path: Path, arrays: dict[str, Array]) -> None:
    """Write arrays to one npz file, atomically.

    Parameters
    ----------
    path : Path
        The file.
    arrays : dict of str to NumPy array
        The arrays by name.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **arrays)
    storage.write_bytes(path, data.getvalue())


def _from_arrays(path: Path, arrays: dict[str, Array], density: str) -> Predictions:
    there = ", ".join(arrays) or "nothing"
    if "predictions" not in arrays and "logits" not in arrays:
        raise TrustmixError(f"{path} holds neither predictions nor logits (N, C); it has {there}.")
    logits = _numbers(path, arrays, "logits") if "logits" in arrays else None
    if logits is not None and (logits.ndim != 2 or not logits.size):
        raise TrustmixError(f"{path}: logits have the shape {logits.shape}; they must be (N, C), none of them 0.")
    if "predictions" in arrays:
        probabilities = _numbers(path, arrays, "predictions")
    else:
        assert logits is not None  # noqa: S101 - one of the two is there
        probabilities = _softmax(logits)
    names = [tuple(map(str, np.atleast_1d(arrays.get(key, ())))) for key in ("id", "classes")]
    pair = [key for key in CALIBRATION if key in arrays]
    if pair:
        return Predictions(probabilities, *_scores_by_calibration(path, arrays, logits, pair, density), *names)
    scores, held = (_numbers(path, arrays, key) if key in arrays else None for key in ("scores", "held"))
    return Predictions(probabilities, scores, held, *names)


CALIBRATION = ("calibration_logits", "calibration_labels")


def _scores_by_calibration(
    path: Path, arrays: dict[str, Array], logits: Array | None, pair: Sequence[str], kind: str
) -> tuple[Array, Array]:
    """The scores by the density fitted on the calibration arrays, and the classes held."""
    twice = [key for key in ("scores", "held") if key in arrays]
    if twice:
        raise TrustmixError(f"{path} holds both {twice[0]} and {pair[0]}; which counts? Leave one of them out.")
    if len(pair) == 1 or logits is None:
        missing = "logits" if len(pair) == 2 else (set(CALIBRATION) - set(pair)).pop()
        raise TrustmixError(f"{path} holds {pair[0]}, but no {missing}; a density needs all three.")
    known, labels = (_numbers(path, arrays, key) for key in CALIBRATION)
    if not (np.issubdtype(labels.dtype, np.integer) and ((labels >= 0) & (labels < logits.shape[1])).all()):
        raise TrustmixError(f"{path}: calibration_labels must be whole numbers from 0 to {logits.shape[1] - 1}.")
    try:
        scores = np.asarray(resolve_density(kind).fit(known, labels).log_prob(logits))
    except TrustmixError as error:
        raise TrustmixError(f"{path}: {error}") from error
    return scores, np.bincount(labels, minlength=logits.shape[1])


def _from_table(path: Path, table: Table) -> Predictions:
    classes = tuple(name for name in table if name not in NOT_CLASSES)
    if not classes:
        raise TrustmixError(f"{path} has no column of a class; it has {', '.join(table)}.")
    columns = {name: _column(path, name, table[name]) for name in (*classes, "score") if name in table}
    probabilities = np.stack([columns[name] for name in classes], 1)
    ids = tuple(map(str, table.get("id", ())))
    return Predictions(probabilities, columns.get("score"), ids=ids, classes=classes)


def _column(path: Path, name: str, values: Sequence[str]) -> Array:
    for row, value in enumerate(values, 1):
        try:
            float(value)
        except ValueError as error:
            raise TrustmixError(
                f'{path}, row {row}, column "{name}": "{value}" is not a number; columns but id and score are classes.'
            ) from error
    return np.array([float(value) for value in values])


def _numbers(path: Path, arrays: dict[str, Array], key: str) -> Array:
    if not np.issubdtype(arrays[key].dtype, np.number):
        raise TrustmixError(f"{path}: {key} is of type {arrays[key].dtype}; it must hold numbers.")
    return arrays[key]


def _softmax(logits: Array) -> Array:
    odds: Array = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    odds /= odds.sum(1, keepdims=True)
    return odds


def _align(path: Path, client: Predictions, first_path: Path, first: Predictions) -> Predictions:
    """The predictions with rows and columns in the first file's order, by the names of samples and classes."""
    if (client.scores is None) != (first.scores is None):
        without, with_ = (path, first_path) if client.scores is None else (first_path, path)
        raise TrustmixError(f"{with_} has scores, but {without} has none; either all files have them or none.")
    places = f"{path} and {first_path}"
    rows = _order("samples", client.ids, first.ids, places)
    columns = _order("classes", client.classes, first.classes, places)
    if rows is not None:
        scores = None if client.scores is None else client.scores[rows]
        client = replace(client, probabilities=client.probabilities[rows], scores=scores)
    if columns is not None:
        held = None if client.held is None else client.held[columns]
        client = replace(client, probabilities=client.probabilities[:, columns], held=held)
    return client


def _order(what: str, ours: Sequence[str], theirs: Sequence[str], places: str) -> list[int] | None:
    """Where each of their names is among ours; None where one file has no names, or both have the same order."""
    if not ours or not theirs or ours == theirs:
        return None
    place = {name: index for index, name in enumerate(ours)}
    if len(place) != len(ours) or len(set(theirs)) != len(theirs):
        raise TrustmixError(f"{places} name {what} in another order, and a name twice, so they cannot be aligned.")
    odd = sorted(set(ours) ^ set(theirs))
    if odd:
        raise TrustmixError(f'{places} name other {what}: "{odd[0]}" is in one of them alone ({len(odd)} such names).')
    return [place[name] for name in theirs]


def _label_set(file: Path, sets: Table, path: Path, first: Predictions) -> Array:
    """The row of a client in the table of label sets, in the order of the classes."""
    files = [Path(str(name)).name for name in sets.get("file", ())]
    classes = first.classes or tuple(map(str, range(first.probabilities.shape[1])))
    missing = [name for name in ("file", *classes) if name not in sets]
    if missing:
        raise TrustmixError(f'{file} has no column "{missing[0]}"; it needs file and {", ".join(classes)}.')
    if files.count(path.name) != 1:
        raise TrustmixError(
            f"{file} has {files.count(path.name)} rows with {path.name} in the column file; one is needed."
        )
    row = files.index(path.name)
    return np.array([_column(file, name, sets[name])[row] for name in classes])

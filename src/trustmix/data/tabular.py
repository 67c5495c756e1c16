"""Tables of numbers with one column per feature, and public sets that come without private data.

Features are read in the order of their columns, or of the columns named. They are not scaled.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trustmix import paths
from trustmix.data.dataset import Dataset, Labelled
from trustmix.data.hub import resolve_user_path
from trustmix.data.labels import build_dataset, read_labels, select_classes, split_off_test
from trustmix.data.loading import DATASETS, find_sklearn_file, labelled_part, read_npz, refuse_path
from trustmix.data.tables import Table, column, read_table, table_format
from trustmix.errors import TrustmixError


@DATASETS.register("table")
def table(
    path: Path | None = None,
    *,
    label: str = "label",
    columns: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    test: float = 0.2,
    group: str | None = None,
) -> Dataset:
    r"""Read a table of numbers with a column of labels.

    Parameters
    ----------
    path
        A csv, jsonl or parquet file, also compressed.
    label
        Name of the column of labels.
    columns
        Names of the features; None uses all columns but the label.
    classes
        The classes to keep, in this order; "a+b" makes one class of two. None keeps all.
    test
        Fraction of each class kept for tests.
    group
        Name of the column with the owner of each sample, such as a hospital, for split.kind = "column"; it is no
        feature.

    Returns
    -------
    Dataset
        The data set; inputs are float32 (features,).

    Raises
    ------
    TrustmixError
        If the file cannot be read, a column is missing, or a field is no number.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "animals.csv"
    >>> _ = file.write_text("legs,label\n" + "4,cat\n2,bird\n" * 5)
    >>> table(file).class_names
    ('bird', 'cat')
    """
    file = resolve_user_path(path, "table", "a csv, jsonl or parquet file")
    rows = read_table(file)
    names, indices = select_classes(read_labels(rows, label, file, "data.label"), classes)
    features = list(columns) if columns else [name for name in rows if name not in (label, group)]
    inputs = read_features(rows, features, file)
    labels = torch.tensor(indices)
    samples = Labelled(inputs[labels >= 0], labels[labels >= 0])
    train, held_out = split_off_test(samples, len(names), test, file.name)
    found = replace(build_dataset(file.stem, train, held_out, names), columns=tuple(features))
    if group is None:
        return found
    values, groups = _read_groups(rows, group, file)
    order = Labelled(groups[labels >= 0], samples.labels)  # the split depends on labels alone
    return replace(found, groups=split_off_test(order, len(names), test, file.name)[0].inputs, group_names=values)


@DATASETS.register("breast-cancer")
def breast_cancer(path: Path | None = None) -> Dataset:
    """Load the 569 biopsies of breast tissue inside scikit-learn (Wolberg et al. 1995); a fixed fifth is for tests.

    Parameters
    ----------
    path
        Must be None, as the data set is built in.

    Returns
    -------
    Dataset
        Two classes; inputs are 30 columns (30,), each of mean 0 and standard deviation 1 over the training pool.

    Examples
    --------
    >>> breast_cancer().class_names
    ('malignant', 'benign')
    """
    return _built_in_table(path, "breast-cancer", "breast_cancer.csv", ("malignant", "benign"))


@DATASETS.register("wine")
def wine(path: Path | None = None) -> Dataset:
    """Load the 178 analyses of Italian wines inside scikit-learn (Aeberhard and Forina 1991); a fifth is for tests.

    Parameters
    ----------
    path
        Must be None, as the data set is built in.

    Returns
    -------
    Dataset
        Three cultivars; inputs are 13 columns (13,), each of mean 0 and standard deviation 1 over the training pool.

    Examples
    --------
    >>> wine().shape
    (13,)
    """
    return _built_in_table(path, "wine", "wine_data.csv", ("cultivar 0", "cultivar 1", "cultivar 2"))


def _built_in_table(path: Path | None, name: str, file: str, classes: tuple[str, ...]) -> Dataset:
    """A table inside scikit-learn, its columns standardised; the last column is the class."""
    refuse_path(path, name)
    rows = torch.from_numpy(np.loadtxt(find_sklearn_file(file), np.float64, delimiter=",", skiprows=1))
    samples = Labelled(rows[:, :-1], rows[:, -1].to(torch.int64))
    train, test = split_off_test(samples, len(classes), 0.2, name)
    mean, std = train.inputs.mean(0), train.inputs.std(0, correction=0)
    scaled = [Labelled(((part.inputs - mean) / std).float(), part.labels) for part in (train, test)]
    return Dataset(name, scaled[0], scaled[1], classes)


@DATASETS.register("shared")
def shared(path: Path | None = None, *, classes: Sequence[str], columns: Sequence[str] | None = None) -> Dataset:
    """Read a public set alone, for a federation whose private data lie with its nodes (`trustmix serve`).

    Parameters
    ----------
    path
        A table of numbers without labels, or an npz file with `x_public` (N, ...) and optionally `y_public` (N,), which
        measures the teacher.
    classes
        Names of all classes of all nodes.
    columns
        Names of the features of a table; None uses all columns.

    Returns
    -------
    Dataset
        A data set whose training pool is the public set and whose test set is empty.

    Raises
    ------
    TrustmixError
        If the file cannot be read, a column or array is missing, or a field is no number.
    """
    file = resolve_user_path(path, "shared", "a table of numbers or an npz file")
    features: list[str] = []
    if table_format(file):
        rows = read_table(file)
        features = list(columns) if columns else list(rows)
        inputs = read_features(rows, features, file)
        public = Labelled(inputs, torch.full((len(inputs),), -1))
    else:
        arrays = read_npz(file)
        if "x_public" not in arrays:
            raise TrustmixError(f"{file} has no x_public; it has {', '.join(sorted(arrays)) or 'nothing'}.")
        public = labelled_part(file.stem, arrays, "public")
    empty = public[torch.zeros(0, dtype=torch.int64)]
    found = build_dataset(file.stem, public, empty, [str(name) for name in classes], public)
    return replace(found, columns=tuple(features))


def feature_names(path: Path, columns: Sequence[str] | None) -> list[str] | None:
    """Return the names of the features in the file of a shared public set.

    Parameters
    ----------
    path
        The file, as `shared` takes it.
    columns
        Names of the features, if the recipe names them.

    Returns
    -------
    list of str or None
        The names in order; None if the file is no table.

    Examples
    --------
    >>> feature_names(Path("public.csv"), ["age", "weight"])
    ['age', 'weight']
    """
    file = paths.find_path(path) or path
    return (list(columns) if columns else list(read_table(file))) if table_format(file) else None


def _read_groups(rows: Table, name: str, path: Path) -> tuple[tuple[str, ...], torch.Tensor]:
    """Return the values of a column, sorted, and the index of each row's value (n,)."""
    found = [str(value).strip() for value in column(rows, name, path, "data.group")]
    if "" in found:
        raise TrustmixError(f'{path}, row {found.index("") + 1}: the column "{name}" (data.group) is empty.')
    values = sorted(set(found))
    return tuple(values), torch.tensor([values.index(value) for value in found])


def read_features(rows: Table, names: Sequence[str], path: Path) -> torch.Tensor:
    """Return columns of numbers as a tensor.

    Parameters
    ----------
    rows
        The table.
    names
        The columns, in the order of the features.
    path
        The file of the table, for messages.

    Returns
    -------
    torch.Tensor
        (n, features) of float32.

    Raises
    ------
    TrustmixError
        If there is no column, a column is missing, or a field is no number.

    Examples
    --------
    >>> read_features(Table({"legs": ["4", "2"]}), ["legs"], Path("animals.csv")).tolist()
    [[4.0], [2.0]]
    """
    if not names:
        raise TrustmixError(f"{path} has no column of numbers beside the label.")
    return torch.stack([_parse_numbers(column(rows, name, path, "data.columns"), name, path) for name in names], 1)


def _parse_numbers(values: Sequence[Any], name: str, path: Path) -> torch.Tensor:
    """Return a column as float32; a field that is no number is refused with its row."""
    numbers = []
    for row, value in enumerate(values, 1):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise TrustmixError(
                f'{path}, row {row}: "{str(value)[:40]}" in column "{name}" is no number; fill it in, or name the '
                "columns to use in data.columns."
            )
        numbers.append(number)
    return torch.tensor(numbers, dtype=torch.float32)

"""Tables of numbers: a column for each feature, one for the label; and public sets that come without private data.

Features are taken as they are, in the order of their columns, or of the columns named; nothing is scaled.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trustmix import paths
from trustmix.data.dataset import Dataset, Labelled
from trustmix.data.labels import chosen_classes, scaled, split_off_test
from trustmix.data.loading import DATASETS, labelled, read_npz
from trustmix.data.tables import Table, column, kind_of, read_table
from trustmix.errors import TrustmixError


@DATASETS.register("table")
def table(
    path: Path | None = None,
    *,
    label: str = "label",
    columns: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    test: float = 0.2,
) -> Dataset:
    """A table of numbers with a column of labels: a csv, jsonl or parquet file, gz and xz unpacked.

    `columns` names the features, all but the label if not set; `classes` chooses some ("a+b" joins two) and sets their
    order; `test` is the part kept for tests.
    """
    place = found(path, "table", "a csv, jsonl or parquet file")
    rows = read_table(place)
    names, labels = chosen_classes(column(rows, label, place, "data.label"), classes)
    features = list(columns) if columns else [name for name in rows if name != label]
    inputs = _features(rows, features, place)
    known = torch.tensor(labels)
    whole = Labelled(inputs[known >= 0], known[known >= 0])
    train, held_out = split_off_test(whole, len(names), test, place.name)
    return scaled(place.stem, train, held_out, names)


@DATASETS.register("shared")
def shared(path: Path | None = None, *, classes: Sequence[str], columns: Sequence[str] | None = None) -> Dataset:
    """A public set alone, for a federation whose private data lie with its nodes: `trustmix serve` runs it.

    A table of numbers without labels, or an npz file with x_public (and y_public, to measure the teacher by).
    `classes` names all classes of all nodes.
    """
    place = found(path, "shared", "a table of numbers or an npz file")
    if kind_of(place):
        rows = read_table(place)
        features = list(columns) if columns else list(rows)
        inputs = _features(rows, features, place)
        public = Labelled(inputs, torch.full((len(inputs),), -1))
    else:
        arrays = read_npz(place)
        if "x_public" not in arrays:
            raise TrustmixError(f"{place} has no x_public; it has {', '.join(sorted(arrays)) or 'nothing'}.")
        public = labelled(place.stem, arrays, "public")
    return scaled(
        place.stem, public, public[torch.zeros(0, dtype=torch.int64)], [str(name) for name in classes], public
    )


def features_of(path: Path, columns: Sequence[str] | None) -> list[str] | None:
    """The names of the features in the shared file, in order; None where it is no table."""
    place = paths.find_path(path) or path
    return (list(columns) if columns else list(read_table(place))) if kind_of(place) else None


def found(path: Path | None, name: str, what: str) -> Path:
    """Where the file lies."""
    if path is None:
        raise TrustmixError(f'The data set "{name}" needs data.path, {what}.')
    return paths.find_path(path) or path


def _features(rows: Table, names: Sequence[str], path: Path) -> torch.Tensor:
    """The columns of that names, (n, features)."""
    if not names:
        raise TrustmixError(f"{path} has no column of numbers beside the label.")
    return torch.stack([_numbers(column(rows, name, path, "data.columns"), name, path) for name in names], 1)


def _numbers(values: Sequence[Any], name: str, path: Path) -> torch.Tensor:
    """A column as numbers; a field that is none is refused with its row."""
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

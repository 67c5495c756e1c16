"""Functions that all readers of data sets share.

The labels of a table, names and selection of classes, a test set for data without one, and normalization constants of
images.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trustmix.data.dataset import Dataset, Labelled
from trustmix.data.tables import Table, column, missing_value
from trustmix.errors import TrustmixError
from trustmix.seeds import numpy_generator


def read_labels(table: Table, name: str, path: Path, setting: str) -> list[Any]:
    """Return the column of labels of a table.

    Parameters
    ----------
    table
        The table.
    name
        Name of the column.
    path
        The file of the table, for messages.
    setting
        The setting that names the column, for messages.

    Returns
    -------
    list
        The label of each row, as text or number.

    Raises
    ------
    TrustmixError
        If there is no such column, or a row has no label or one that is neither text nor a number.

    Examples
    --------
    >>> read_labels(Table({"kind": ["cat", "dog"]}), "kind", Path("animals.csv"), "data.label")
    ['cat', 'dog']
    """
    labels = column(table, name, path, setting)
    for row, label in enumerate(labels, 1):
        if label is None or label != label or not str(label).strip():  # only NaN differs from itself
            raise missing_value(path, row, name, setting)
        if isinstance(label, bytes | list | dict):
            raise TrustmixError(f"{path}, row {row}: the label is {str(label)[:40]}; it must be text or a number.")
    return labels


def class_names(labels: Sequence[Any]) -> list[str]:
    """Return the names of all classes that occur.

    Parameters
    ----------
    labels
        The label of each sample, as text or number.

    Returns
    -------
    list of str
        The names in alphabetical order, or in the order of their size if all are whole numbers.

    Examples
    --------
    >>> class_names([10, 9, 10]), class_names(["b", "a"])
    (['9', '10'], ['a', 'b'])
    """
    found = {str(label) for label in labels}
    digits = all(name.isdecimal() for name in found)
    return sorted(found, key=lambda name: (int(name), name) if digits else (0, name))


def select_classes(labels: Sequence[Any], classes: Sequence[str] | None) -> tuple[list[str], list[int]]:
    """Return the names of the classes and the class index of each row.

    Parameters
    ----------
    labels
        The label of each row, as text or number.
    classes
        The classes to keep, in this order; "a+b" makes one class of two. None keeps all classes.

    Returns
    -------
    names : list of str
        Name of each class.
    indices : list of int
        The class index of each row; -1 if the row's class was not selected.

    Raises
    ------
    TrustmixError
        If a class is unknown or named twice.

    Examples
    --------
    >>> select_classes(["a", "b", "c", "a"], ["c", "a+b"])
    (['c', 'a+b'], [1, 1, 0, 1])
    """
    present = class_names(labels)
    names = list(classes) if classes else present
    index: dict[str, int] = {}
    for number, name in enumerate(names):
        for label in [name] if name in present else name.split("+"):
            if label not in present:
                more = " and more" if len(present) > 30 else ""
                shown = ", ".join(present[:30])
                raise TrustmixError(f'data.classes names "{label}", but the labels are {shown}{more}.')
            if label in index:
                raise TrustmixError(f'data.classes names "{label}" twice; a label belongs to one class.')
            index[label] = number
    return names, [index.get(str(label), -1) for label in labels]


def split_off_test(samples: Labelled, classes: int, fraction: float, name: str) -> tuple[Labelled, Labelled]:
    """Split samples into a training and a test set, stratified by class.

    Parameters
    ----------
    samples
        All samples.
    classes
        Number of classes.
    fraction
        Fraction of each class for the test set, between 0 and 1.
    name
        Name of the data set. The split depends on nothing else, so that it is the same on every machine.

    Returns
    -------
    train, test : Labelled
        The two sets, in the order of the samples.

    Raises
    ------
    TrustmixError
        If the fraction is not between 0 and 1.

    Examples
    --------
    >>> samples = Labelled(torch.zeros(10, 2), torch.arange(10) % 2)
    >>> [len(part) for part in split_off_test(samples, 2, 0.2, "mine")]
    [8, 2]
    """
    if not 0 < fraction < 1:
        raise TrustmixError(f"data.test is {fraction}; it is the part of the data kept for tests, between 0 and 1.")
    labels = samples.labels
    order = torch.from_numpy(numpy_generator(0, f"{name} test set").permutation(len(labels)))
    by_class = [order[labels[order] == cls] for cls in range(classes)]
    test = torch.cat([members[: round(fraction * len(members))] for members in by_class])
    held_out = torch.zeros(len(labels), dtype=torch.bool).index_fill_(0, test, True)
    return samples[~held_out], samples[held_out]


def build_dataset(
    name: str, train: Labelled, test: Labelled, names: Sequence[str], public: Labelled | None = None
) -> Dataset:
    """Build a data set with the mean and standard deviation of its training images, if they are uint8.

    Parameters
    ----------
    name
        Name of the data set.
    train, test
        Training and test samples.
    names
        Name of each class.
    public
        The public set, if the data have one of their own.

    Returns
    -------
    Dataset
        The data set.

    Examples
    --------
    >>> images = Labelled(torch.full((4, 1, 2, 2), 51, dtype=torch.uint8), torch.arange(4) % 2)
    >>> build_dataset("mine", images, images, ["a", "b"]).mean
    (0.2,)
    """
    mean, std = _channel_statistics(train.inputs) if train.inputs.dtype == torch.uint8 else ((0.0,), (1.0,))
    return Dataset(name, train, test, tuple(names), public, mean, std)


def _channel_statistics(images: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation of uint8 inputs divided by 255, per channel of images (channels, height, width)."""
    channels = images.flatten(2) if images.ndim > 3 else images.flatten(1).unsqueeze(1)
    # sums over a histogram of whole numbers are exact, and need no float copy of all images
    values = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([torch.bincount(channels[:, c].flatten(), minlength=256) for c in range(channels.shape[1])])
    shares = counts.double() / counts.sum(1, keepdim=True)
    mean = shares @ values
    std = (shares @ values.square() - mean.square()).clamp_min(0).sqrt().clamp_min(1e-3)
    return tuple(mean.tolist()), tuple(std.tolist())

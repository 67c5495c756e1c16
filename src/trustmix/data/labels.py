"""What the readers share: class names from labels, a choice of classes, a test set where the data bring none."""

from collections.abc import Sequence
from typing import Any

import torch

from trustmix.data.dataset import Dataset, Labelled
from trustmix.errors import TrustmixError
from trustmix.seeds import numpy_generator


def class_names(labels: Sequence[Any]) -> list[str]:
    """The names of all classes that occur, numbers in the order of their size.

    >>> class_names([10, 9, 10]), class_names(["b", "a"])
    (['9', '10'], ['a', 'b'])
    """
    found = {str(label) for label in labels}
    digits = all(name.isdecimal() for name in found)
    return sorted(found, key=lambda name: (int(name), name) if digits else (0, name))


def chosen_classes(labels: Sequence[Any], wanted: Sequence[str] | None) -> tuple[list[str], list[int]]:
    """The classes and the label of each row, -1 where the row's class was not chosen.

    `wanted` keeps those classes in that order; "a+b" makes one class of two.

    >>> chosen_classes(["a", "b", "c", "a"], ["c", "a+b"])
    (['c', 'a+b'], [1, 1, 0, 1])
    """
    for row, label in enumerate(labels, 1):
        if label is None or label != label or not str(label).strip():  # nan alone differs from itself
            raise TrustmixError(f"Row {row} of the data has no label; fill it in or leave the row out.")
        if isinstance(label, bytes | list | dict):
            raise TrustmixError(f"Row {row} of the data has the label {str(label)[:40]}; it must be text or a number.")
    present = class_names(labels)
    names = list(wanted) if wanted else present
    index: dict[str, int] = {}
    for number, name in enumerate(names):
        for part in [name] if name in present else name.split("+"):
            if part not in present:
                more = " and more" if len(present) > 30 else ""
                raise TrustmixError(f'data.classes names "{part}", but the labels are {", ".join(present[:30])}{more}.')
            if part in index:
                raise TrustmixError(f'data.classes names "{part}" twice; a label belongs to one class.')
            index[part] = number
    return names, [index.get(str(label), -1) for label in labels]


def split_off_test(whole: Labelled, classes: int, part: float, name: str) -> tuple[Labelled, Labelled]:
    """Training and test samples: a fixed part of each class, the same on every machine."""
    if not 0 < part < 1:
        raise TrustmixError(f"data.test is {part}; it is the part of the data kept for tests, between 0 and 1.")
    labels = whole.labels
    order = torch.from_numpy(numpy_generator(0, f"{name} test set").permutation(len(labels)))
    mine = [order[labels[order] == cls] for cls in range(classes)]
    test = torch.cat([own[: round(part * len(own))] for own in mine])
    held_out = torch.zeros(len(labels), dtype=torch.bool).index_fill_(0, test, True)
    return whole[~held_out], whole[held_out]


def scaled(name: str, train: Labelled, test: Labelled, names: Sequence[str], public: Labelled | None = None) -> Dataset:
    """A data set with the statistics of its training images, where they are uint8."""
    mean, std = _statistics(train.inputs) if train.inputs.dtype == torch.uint8 else ((0.0,), (1.0,))
    return Dataset(name, train, test, tuple(names), public, mean, std)


def _statistics(images: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of uint8 inputs scaled to 0..1, per channel where images are (channels, height, width)."""
    channels = images.flatten(2) if images.ndim > 3 else images.flatten(1).unsqueeze(1)
    # whole-number sums of values and squares: exact, and without a float copy of all images
    values = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([torch.bincount(channels[:, c].flatten(), minlength=256) for c in range(channels.shape[1])])
    shares = counts.double() / counts.sum(1, keepdim=True)
    mean = shares @ values
    std = (shares @ values.square() - mean.square()).clamp_min(0).sqrt().clamp_min(1e-3)
    return tuple(mean.tolist()), tuple(std.tolist())

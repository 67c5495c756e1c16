"""What a data set is here: inputs as compact tensors, integer labels, and names for the classes; checked on entry."""

from dataclasses import dataclass

import torch

from trustmix.errors import TrustmixError


@dataclass(frozen=True)
class Labelled:
    """Samples with labels: inputs (n, ...) of any type, labels (n,) int64."""

    inputs: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: str) -> "Labelled":
        """The samples on a device; themselves where they are there already."""
        if str(self.inputs.device) == device:
            return self
        return Labelled(self.inputs.to(device), self.labels.to(device))

    def __getitem__(self, index: torch.Tensor) -> "Labelled":
        return Labelled(self.inputs[index], self.labels[index])


@dataclass(frozen=True)
class Dataset:
    """A training pool, a test set, and, where the data bring one, a public set of their own.

    Labels of the public set are only ever used to measure the teacher, never to train; -1 says unknown.
    """

    name: str
    train: Labelled
    test: Labelled
    class_names: tuple[str, ...]
    public: Labelled | None = None
    mean: tuple[float, ...] = (0.0,)
    """Per channel, for uint8 images after division by 255; inputs of other types are taken as they are."""
    std: tuple[float, ...] = (1.0,)

    @property
    def classes(self) -> int:
        """C, the number of classes."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def public_only(self) -> bool:
        """Whether there is nothing but a public set: the private data lie elsewhere."""
        return self.train is self.public


def validate_dataset(dataset: Dataset) -> Dataset:
    """The data set itself, or one sentence that says what is wrong with it and where."""
    parts = {} if dataset.public_only else {"train": dataset.train, "test": dataset.test}
    if dataset.public is not None:
        parts["public"] = dataset.public
    for part, samples in parts.items():
        _check_part(f'Data set "{dataset.name}", {part} part', samples, dataset, unlabelled=part == "public")
    if dataset.public_only:
        return dataset
    counts = torch.bincount(dataset.train.labels, minlength=dataset.classes)
    empty = torch.nonzero(counts == 0).flatten().tolist()
    if empty:
        names = ", ".join(f"{index} ({dataset.class_names[index]})" for index in empty[:5])
        names += f" and {len(empty) - 5} more" if len(empty) > 5 else ""
        raise TrustmixError(
            f'Data set "{dataset.name}": no training sample has the class {names}; '
            f"labels must cover 0 to {dataset.classes - 1}."
        )
    return dataset


def _check_part(where: str, samples: Labelled, dataset: Dataset, *, unlabelled: bool) -> None:
    inputs, labels = samples.inputs, samples.labels
    if len(inputs) == 0:
        raise TrustmixError(f"{where}: there are no samples.")
    if labels.ndim != 1 or len(inputs) != len(labels):
        raise TrustmixError(f"{where}: {len(inputs)} inputs but labels of shape {tuple(labels.shape)}.")
    if tuple(inputs.shape[1:]) != dataset.shape:
        raise TrustmixError(f"{where}: inputs have the shape {tuple(inputs.shape[1:])}, training ones {dataset.shape}.")
    if inputs.dtype != dataset.train.inputs.dtype:
        raise TrustmixError(f"{where}: inputs are {inputs.dtype}, training ones {dataset.train.inputs.dtype}.")
    if inputs.dtype.is_floating_point:
        bad = ~torch.isfinite(inputs.flatten(1)).all(1)
        if bool(bad.any()):
            first = int(torch.nonzero(bad)[0])
            raise TrustmixError(
                f"{where}: {int(bad.sum())} of {len(inputs)} inputs contain NaN or infinity, the first is sample "
                f"{first}; remove or fill them."
            )
    lowest = -1 if unlabelled else 0
    wrong = (labels < lowest) | (labels >= dataset.classes)
    if bool(wrong.any()):
        first = int(torch.nonzero(wrong)[0])
        raise TrustmixError(
            f"{where}: sample {first} has the label {int(labels[first])}; with {dataset.classes} classes, labels go "
            f"from 0 to {dataset.classes - 1}."
        )

"""Data sets: inputs as compact tensors, integer labels and the names of the classes.

`validate_dataset` checks a data set once, when it is loaded.
"""

from dataclasses import dataclass

import numpy as np
import torch

from trustmix.arrays import ArrayLike
from trustmix.errors import TrustmixError

UNSUPPORTED_DTYPES = (torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128)
"""Types of inputs that no layer takes, or few operations of torch support."""


@dataclass(frozen=True)
class Labelled:
    """Samples with labels.

    Parameters
    ----------
    inputs
        Tensor (n, ...): float32, uint8 for images, or whole numbers for token ids.
    labels
        Tensor (n,) of int64; -1 means unknown.

    Examples
    --------
    >>> samples = Labelled(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    >>> len(samples[samples.labels == 1])
    2
    """

    inputs: torch.Tensor
    labels: torch.Tensor

    @classmethod
    def from_arrays(cls, inputs: ArrayLike, labels: ArrayLike) -> "Labelled":
        """Make samples from arrays or DataFrames.

        Parameters
        ----------
        inputs
            (n, ...): see `to_inputs`.
        labels
            (n,): whole numbers, the class of each sample.

        Returns
        -------
        Labelled
            The samples.

        Raises
        ------
        TrustmixError
            If labels are no whole numbers, or not as many as inputs.

        Examples
        --------
        >>> Labelled.from_arrays([[0.5, 1.0], [2.0, 3.0]], [0, 1])
        <Labelled: 2 samples of shape (2,)>
        """
        x = to_inputs(inputs)
        numbers = labels if isinstance(labels, torch.Tensor) else np.array(labels)
        y = numbers.tolist() if numbers.dtype == object else numbers
        try:
            classes = torch.as_tensor(y)
        except (TypeError, ValueError) as error:
            raise TrustmixError(f"labels must be whole numbers, the class of each sample ({error}).") from error
        if classes.dtype.is_floating_point and bool(((classes != classes.round()) | classes.isinf()).any()):
            raise TrustmixError("labels must be whole numbers, the class of each sample.")
        if classes.shape != x.shape[:1]:
            raise TrustmixError(
                f"labels have the shape {tuple(classes.shape)}; there must be one for each of {len(x)}."
            )
        return cls(x, classes.to(torch.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"<Labelled: {len(self)} samples of shape {tuple(self.inputs.shape[1:])}>"

    def to(self, device: str) -> "Labelled":
        """Return the samples on a device.

        Parameters
        ----------
        device
            Name of the device, such as "cpu" or "cuda".

        Returns
        -------
        Labelled
            A copy on the device, or the samples themselves if they are there already.
        """
        if str(self.inputs.device) == device:
            return self
        return Labelled(self.inputs.to(device), self.labels.to(device))

    def __getitem__(self, index: torch.Tensor) -> "Labelled":
        return Labelled(self.inputs[index], self.labels[index])


def to_inputs(array: ArrayLike) -> torch.Tensor:
    """Convert the inputs of samples to a tensor.

    Parameters
    ----------
    array
        (n, ...): a tensor, which is returned as it is; an array, a DataFrame of numbers or nested lists, whose float64
        become float32, as networks take them.

    Returns
    -------
    torch.Tensor
        A tensor of its own memory, if it was none.

    Raises
    ------
    TrustmixError
        If there is something else than numbers in it.

    Examples
    --------
    >>> to_inputs([[1.0, 2.5]])
    tensor([[1.0000, 2.5000]])
    """
    if isinstance(array, torch.Tensor):
        return array
    values = np.array(array)
    if values.dtype == object:  # as of a DataFrame with columns of several types
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise TrustmixError(f"inputs must be numbers ({error}); encode texts and categories first.") from error
    if values.dtype.kind not in "biuf":
        raise TrustmixError(f"inputs must be numbers, not {values.dtype}; encode texts and categories first.")
    return torch.from_numpy(values.astype(np.float32) if values.dtype.kind in "bf" else values)


@dataclass(frozen=True)
class Dataset:
    """A training pool, a test set and, for some data sets, a public set of their own.

    Parameters
    ----------
    name
        Name for messages and reports.
    train
        The pool from which private samples and, without `public`, public samples are drawn.
    test
        The samples on which accuracy is measured.
    class_names
        Name of each class.
    public
        The public set, or None. Its labels measure the teacher and are never trained on; -1 means unknown.
    mean
        Mean per channel of uint8 images after division by 255. Inputs of other types are not normalized.
    std
        Standard deviation per channel of uint8 images after division by 255.
    groups
        Tensor (n,): whose sample each of the training pool is, as an index of `group_names`, or None.
    group_names
        Name of each group, such as a hospital.
    columns
        Name of each feature, if the data are a table of numbers.

    Examples
    --------
    >>> samples = Labelled(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
    >>> data = Dataset("mine", samples, samples, ("cat", "dog"))
    >>> data.classes, data.shape
    (2, (2,))
    """

    name: str
    train: Labelled
    test: Labelled
    class_names: tuple[str, ...]
    public: Labelled | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    groups: torch.Tensor | None = None
    group_names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __repr__(self) -> str:
        public = "" if self.public is None else f", {len(self.public)} public"
        return (
            f"<Dataset {self.name}: {len(self.train)} training and {len(self.test)} test samples{public}, "
            f"shape {self.shape}, {self.classes} classes>"
        )

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
        """Whether the data set is a public set without private data."""
        return self.train is self.public


def validate_dataset(dataset: Dataset) -> Dataset:
    """Check that the parts of a data set fit together and hold no invalid values.

    Parameters
    ----------
    dataset
        The data set.

    Returns
    -------
    Dataset
        The data set itself.

    Raises
    ------
    TrustmixError
        If a part is empty, inputs and labels differ in number, parts differ in shape or type, the type is not
        supported, an input is not finite, a label is out of range, or a class has no training sample.

    Examples
    --------
    >>> samples = Labelled(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
    >>> validate_dataset(Dataset("mine", samples, samples, ("cat", "dog"))).name
    'mine'
    """
    parts = {} if dataset.public_only else {"train": dataset.train, "test": dataset.test}
    if dataset.public is not None:
        parts["public"] = dataset.public
    for part, samples in parts.items():
        where = f'Data set "{dataset.name}", {part} part'
        _validate_inputs(where, samples, dataset)
        _validate_labels(where, samples.labels, dataset.classes, lowest=-1 if part == "public" else 0)
    if not dataset.public_only:
        _validate_class_coverage(dataset)
    return dataset


def _validate_inputs(where: str, samples: Labelled, dataset: Dataset) -> None:
    inputs, labels = samples.inputs, samples.labels
    if len(inputs) == 0:
        raise TrustmixError(f"{where}: there are no samples.")
    if labels.ndim != 1 or len(inputs) != len(labels):
        raise TrustmixError(f"{where}: {len(inputs)} inputs but labels of shape {tuple(labels.shape)}.")
    if tuple(inputs.shape[1:]) != dataset.shape:
        raise TrustmixError(f"{where}: inputs have the shape {tuple(inputs.shape[1:])}, training ones {dataset.shape}.")
    if inputs.dtype != dataset.train.inputs.dtype:
        raise TrustmixError(f"{where}: inputs are {inputs.dtype}, training ones {dataset.train.inputs.dtype}.")
    if inputs.dtype in UNSUPPORTED_DTYPES:
        raise TrustmixError(
            f"{where}: inputs are {inputs.dtype}; convert numbers to float32, images to uint8 and token ids to int32."
        )
    if inputs.dtype.is_floating_point:
        bad = ~torch.isfinite(inputs.flatten(1)).all(1)
        if bool(bad.any()):
            first = int(torch.nonzero(bad)[0])
            raise TrustmixError(
                f"{where}: {int(bad.sum())} of {len(inputs)} inputs contain NaN or infinity, the first is sample "
                f"{first}; remove or fill them."
            )


def _validate_labels(where: str, labels: torch.Tensor, classes: int, *, lowest: int) -> None:
    wrong = (labels < lowest) | (labels >= classes)
    if bool(wrong.any()):
        first = int(torch.nonzero(wrong)[0])
        raise TrustmixError(
            f"{where}: sample {first} has the label {int(labels[first])}; with {classes} classes, labels go "
            f"from 0 to {classes - 1}."
        )


def _validate_class_coverage(dataset: Dataset) -> None:
    counts = torch.bincount(dataset.train.labels, minlength=dataset.classes)
    empty = torch.nonzero(counts == 0).flatten().tolist()
    if empty:
        names = ", ".join(f"{index} ({dataset.class_names[index]})" for index in empty[:5])
        names += f" and {len(empty) - 5} more" if len(empty) > 5 else ""
        raise TrustmixError(
            f'Data set "{dataset.name}": no training sample has the class {names}; '
            f"labels must cover 0 to {dataset.classes - 1}."
        )

"""New samples for a trained model: read whole, in the order of the file, with labels where they are known.

Unlike a data set for training, nothing is split off, classes may be absent, and labels may be missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trustmix.data.dataset import Dataset
from trustmix.data.loading import read_npz
from trustmix.data.tables import read_table, table_format
from trustmix.data.tabular import read_features
from trustmix.data.text import DEFAULT_TOKENIZER, join_columns, tokenize
from trustmix.data.vision import IMAGE_SUFFIXES, decode_image, stack_images
from trustmix.data.words import WORDS
from trustmix.errors import TrustmixError


@dataclass(frozen=True)
class InputSpec:
    """The inputs that the models of a data set take, and the classes they distinguish.

    Parameters
    ----------
    shape
        Shape of one input.
    dtype
        Type of the inputs, such as "float32".
    classes
        Name of each class.
    scale
        Mean and standard deviation per channel of uint8 images after division by 255; None for other inputs.
    columns
        Name of each feature, in order, if the model was trained on a table of numbers.

    Examples
    --------
    >>> print(InputSpec((1, 8, 8), "float32", ("0", "1")))
    inputs (1, 8, 8) of float32
    """

    shape: tuple[int, ...]
    dtype: str
    classes: tuple[str, ...]
    scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    columns: tuple[str, ...] = ()

    @classmethod
    def from_dataset(cls, data: Dataset) -> "InputSpec":
        """Return the specification of a data set's inputs.

        Parameters
        ----------
        data
            The data set.

        Returns
        -------
        InputSpec
            Shape, type and columns of its training inputs, and its classes.
        """
        dtype = str(data.train.inputs.dtype).removeprefix("torch.")
        scale = (data.mean, data.std) if dtype == "uint8" else None
        return cls(data.shape, dtype, data.class_names, scale, data.columns)

    @property
    def is_text(self) -> bool:
        """Whether inputs are token ids of texts."""
        return len(self.shape) == 1 and self.dtype in ("int16", "int32")

    def __str__(self) -> str:
        return f"inputs {self.shape} of {self.dtype}"


@dataclass(frozen=True)
class Samples:
    """Samples to predict.

    Parameters
    ----------
    inputs
        Tensor (n, ...).
    labels
        Tensor (n,) of int64; -1 means unknown.
    ids
        Name of each sample, or an empty tuple.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    ids: tuple[str, ...] = ()


def read_samples(path: Path, spec: InputSpec, options: Mapping[str, Any]) -> Samples:
    """Read samples to predict.

    Parameters
    ----------
    path
        An npz file, a table of numbers or of texts, an image or a folder of images.
    spec
        The inputs that the model takes.
    options
        The settings of `[data]` in the recipe of the run, such as the tokenizer.

    Returns
    -------
    Samples
        All samples of the file or folder.

    Raises
    ------
    TrustmixError
        If the path cannot be read, or its inputs are not those of the model.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "new.npz"
    >>> np.savez(file, x=np.zeros((2, 4)), y=["dog", "emu"])
    >>> read_samples(file, InputSpec((4,), "float32", ("cat", "dog")), {}).labels.tolist()
    [1, -1]
    """
    if path.suffix == ".npz":
        samples = _read_arrays(path, spec)
    elif table_format(path):
        texts = spec.is_text or options.get("tokenizer") == WORDS
        samples = (_read_texts if texts else _read_numbers)(path, spec, options)
    elif path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES:
        samples = _read_images(path, spec, options)
    else:
        raise TrustmixError(f"{path} is neither an npz file, a csv, jsonl or parquet table, nor images.")
    shape, dtype = tuple(samples.inputs.shape[1:]), str(samples.inputs.dtype).removeprefix("torch.")
    if (shape, dtype) != (spec.shape, spec.dtype):
        raise TrustmixError(f"{path} has inputs {shape} of {dtype}, but the model takes {spec}.")
    return samples


def encode_labels(labels: Sequence[Any], classes: Sequence[str]) -> torch.Tensor:
    """Convert labels to class indices.

    Parameters
    ----------
    labels
        Names or indices of classes (n,).
    classes
        Name of each class. A class "a+b" is also found by the names "a" and "b".

    Returns
    -------
    torch.Tensor
        Class indices (n,) of int64; -1 for a label that is no class.

    Examples
    --------
    >>> encode_labels(["dog", "cat", "emu", 1], ["cat", "dog+wolf"]).tolist()
    [1, 0, -1, 1]
    """
    index = {str(number): number for number in range(len(classes))}
    index |= {part: number for number, name in enumerate(classes) for part in (*name.split("+"), name)}
    return torch.tensor([index.get(str(label), -1) for label in labels], dtype=torch.int64)


def _read_arrays(path: Path, spec: InputSpec) -> Samples:
    """Read x and, where they exist, y and id; of the file of a whole data set, its test part."""
    arrays = read_npz(path)
    key = next((key for key in ("x", "x_test") if key in arrays), None)
    if key is None:
        raise TrustmixError(f"{path} has no array x (inputs) or x_test; it has {', '.join(arrays) or 'nothing'}.")
    x, y = arrays[key], arrays.get(key.replace("x", "y"))
    try:
        inputs = torch.as_tensor(x.astype(np.float32) if x.dtype in (np.float16, np.float64) else x)
    except TypeError as error:
        raise TrustmixError(f"{path}: {key} is of type {x.dtype}; inputs must be numbers.") from error
    if inputs.ndim == 0 or len(inputs) == 0:
        raise TrustmixError(f"{path}: {key} holds no samples.")
    for name, values in (("labels", y), ("ids", arrays.get("id"))):
        if values is not None and values.shape != (len(inputs),):
            raise TrustmixError(f"{path}: {len(inputs)} inputs but {name} of shape {values.shape}.")
    labels = torch.full((len(inputs),), -1) if y is None else encode_labels(y.tolist(), spec.classes)
    return Samples(inputs, labels, tuple(map(str, arrays.get("id", ()))))


def _read_texts(path: Path, spec: InputSpec, options: Mapping[str, Any]) -> Samples:
    """Read a table of texts, padded to the length of the model's inputs."""
    table = read_table(path)
    columns = options.get("text", "text")
    texts = join_columns(table, [columns] if isinstance(columns, str) else columns, path, "data.text of the run")
    length = max(3, min(int(options.get("length", 128)), spec.shape[0]))
    tokens = tokenize(texts, str(options.get("tokenizer", DEFAULT_TOKENIZER)), length)
    padded = torch.nn.functional.pad(tokens, (0, max(0, spec.shape[0] - tokens.shape[1])), value=-1)
    labels = table.get(str(options.get("label", "label")), [None] * len(texts))
    return Samples(padded, encode_labels(labels, spec.classes), tuple(map(str, table.get("id", ()))))


def _read_numbers(path: Path, spec: InputSpec, options: Mapping[str, Any]) -> Samples:
    """Read a table of numbers: the columns of the run; if it had none, all but those of the labels and the names."""
    if len(spec.shape) != 1 or spec.dtype != "float32":
        raise TrustmixError(f"{path} is a table, but the model takes {spec}; put them into an npz file as x.")
    table, label = read_table(path), str(options.get("label", "label"))
    names = options.get("columns") or spec.columns or [name for name in table if name not in (label, "id")]
    inputs = read_features(table, names, path)
    labels = table.get(label, [None] * len(inputs))
    ids = () if "id" in names else tuple(map(str, table.get("id", ())))
    return Samples(inputs, encode_labels(labels, spec.classes), ids)


def _read_images(path: Path, spec: InputSpec, options: Mapping[str, Any]) -> Samples:
    """Read an image, or every image below a folder; the folder of an image is its label, if it is a class."""
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        raise TrustmixError(f"{path} holds no images.")
    pixels = stack_images([decode_image(file, size=options.get("size")) for file in files], files)
    if spec.shape and pixels.shape[1] == 1 and spec.shape[0] == 3:
        pixels = pixels.repeat(1, 3, 1, 1)
    ids = tuple(str(file.relative_to(path)) if path.is_dir() else file.name for file in files)
    return Samples(pixels, encode_labels([file.parent.name for file in files], spec.classes), ids)

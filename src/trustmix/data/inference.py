"""New samples for a model that is trained already: read whole, in the order of the file, with labels where known.

Unlike a data set for training, nothing is split off, no class has to be there, and labels may be missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trustmix.data.dataset import Dataset
from trustmix.data.loading import read_npz
from trustmix.data.tables import column, kind_of, read_table
from trustmix.data.text import BERT, tokenize
from trustmix.data.vision import ENDINGS, decode_image, stack_images
from trustmix.errors import TrustmixError


@dataclass(frozen=True)
class InputSpec:
    """What a data set's models take, and the classes they tell."""

    shape: tuple[int, ...]
    dtype: str
    classes: tuple[str, ...]
    scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Mean and standard deviation per channel, of uint8 images."""

    @classmethod
    def of(cls, data: Dataset) -> "InputSpec":
        """Those of a data set."""
        dtype = str(data.train.inputs.dtype).removeprefix("torch.")
        return cls(data.shape, dtype, data.class_names, (data.mean, data.std) if dtype == "uint8" else None)

    @property
    def tokens(self) -> bool:
        """Whether inputs are token ids of texts."""
        return len(self.shape) == 1 and self.dtype in ("int16", "int32")

    def __str__(self) -> str:
        return f"inputs {self.shape} of {self.dtype}"


@dataclass(frozen=True)
class Samples:
    """Samples to predict: inputs (n, ...), labels (n,) with -1 where unknown, and names where samples have them."""

    inputs: torch.Tensor
    labels: torch.Tensor
    ids: tuple[str, ...] = ()


def read_samples(place: Path, like: InputSpec, options: Mapping[str, Any]) -> Samples:
    """The samples of an npz file, a table of texts, an image or a folder of images; options are the recipe's [data]."""
    if place.suffix == ".npz":
        found = _arrays(place, read_npz(place), like)
    elif kind_of(place):
        found = _texts(place, like, options)
    elif place.is_dir() or place.suffix.lower() in ENDINGS:
        found = _images(place, like, options)
    else:
        raise TrustmixError(f"{place} is neither an npz file, a csv, jsonl or parquet table, nor images.")
    shape, dtype = tuple(found.inputs.shape[1:]), str(found.inputs.dtype).removeprefix("torch.")
    if (shape, dtype) != (like.shape, like.dtype):
        raise TrustmixError(f"{place} has inputs {shape} of {dtype}, but the model takes {like}.")
    return found


def encode_labels(labels: Sequence[Any], classes: Sequence[str]) -> torch.Tensor:
    """Labels (n,) as numbers of the classes, by name or number; -1 where the label is none of them.

    >>> encode_labels(["dog", "cat", "emu", 1], ["cat", "dog+wolf"]).tolist()
    [1, 0, -1, 1]
    """
    known = {str(number): number for number in range(len(classes))}
    known |= {part: number for number, name in enumerate(classes) for part in (*name.split("+"), name)}
    return torch.tensor([known.get(str(label), -1) for label in labels], dtype=torch.int64)


def _arrays(place: Path, arrays: Mapping[str, np.ndarray[Any, Any]], like: InputSpec) -> Samples:
    """x, and y and id where they are there; of a whole data set's file the test part."""
    key = next((key for key in ("x", "x_test") if key in arrays), None)
    if key is None:
        raise TrustmixError(f"{place} has no array x (inputs) or x_test; it has {', '.join(arrays) or 'nothing'}.")
    x, y = arrays[key], arrays.get(key.replace("x", "y"))
    try:
        inputs = torch.as_tensor(x.astype(np.float32) if x.dtype == np.float64 else x)
    except TypeError as error:
        raise TrustmixError(f"{place}: {key} is of type {x.dtype}; inputs must be numbers.") from error
    if inputs.ndim == 0 or len(inputs) == 0:
        raise TrustmixError(f"{place}: {key} holds no samples.")
    for name, other in (("labels", y), ("ids", arrays.get("id"))):
        if other is not None and other.shape != (len(inputs),):
            raise TrustmixError(f"{place}: {len(inputs)} inputs but {name} of shape {other.shape}.")
    labels = torch.full((len(inputs),), -1) if y is None else encode_labels(y.tolist(), like.classes)
    return Samples(inputs, labels, tuple(map(str, arrays.get("id", ()))))


def _texts(place: Path, like: InputSpec, options: Mapping[str, Any]) -> Samples:
    if not like.tokens:
        raise TrustmixError(f"{place} is a table of texts, but the model takes {like}; put them into an npz file as x.")
    table = read_table(place)
    wanted = options.get("text", "text")
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    columns = [column(table, name, place, "data.text of the run") for name in names]
    texts = [" ".join(str(part) for part in row if part is not None) for row in zip(*columns, strict=True)]
    length = min(int(options.get("length", 128)), like.shape[0])
    tokens = tokenize(texts, str(options.get("tokenizer", BERT)), length)
    padded = torch.nn.functional.pad(tokens, (0, like.shape[0] - tokens.shape[1]), value=-1)
    known = table.get(str(options.get("label", "label")), [None] * len(texts))
    return Samples(padded, encode_labels(known, like.classes), tuple(map(str, table.get("id", ()))))


def _images(place: Path, like: InputSpec, options: Mapping[str, Any]) -> Samples:
    """Every image below the folder; the name of the folder it lies in is its label, where that is a class."""
    files = [place]
    if place.is_dir():
        files = sorted(file for file in place.rglob("*") if file.suffix.lower() in ENDINGS)
    if not files:
        raise TrustmixError(f"{place} holds no images.")
    pixels = stack_images([decode_image(file, size=options.get("size")) for file in files], files)
    if like.shape and pixels.shape[1] == 1 and like.shape[0] == 3:
        pixels = pixels.repeat(1, 3, 1, 1)
    ids = tuple(str(file.relative_to(place)) if place.is_dir() else file.name for file in files)
    return Samples(pixels, encode_labels([file.parent.name for file in files], like.classes), ids)

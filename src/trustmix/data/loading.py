"""Where data come from: built-in names, an npz file of arrays, or a Python function of the user's.

A source is a function of the recipe's `path`, and of options of its own, that returns a `Dataset`; `load` finds it,
calls it and checks the result.
"""

import gzip
import inspect
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from trustmix import paths
from trustmix.data.dataset import Dataset, Labelled, validate_dataset
from trustmix.data.labels import scaled, split_off_test
from trustmix.errors import TrustmixError
from trustmix.imports import import_object
from trustmix.registry import Registry, did_you_mean

Source: TypeAlias = Callable[..., Dataset]

DATASETS: Registry[Source] = Registry("data set")


def load(
    name: str | None = None, *, path: str | Path | None = None, source: str | None = None, **options: Any
) -> Dataset:
    """A checked data set, by name, from a file of arrays, or from a function 'package.module:function'.

    The options are those of the data set's function, as `text` and `label` are of "text".

    >>> load("digits").train.inputs.shape
    torch.Size([1438, 1, 8, 8])
    """
    if source is not None:
        return validate_dataset(_from_function(source, options))
    if name is None:
        raise TrustmixError("The recipe names no data: set data.name, data.source or data.path.")
    read = DATASETS.get(name)
    options = _checked_options(name, read, options)
    try:
        data = read(Path(path).expanduser() if path is not None else None, **options)
    except TrustmixError:
        raise
    except Exception as error:  # a file that is not what it seems to be makes its reader raise anything
        where = f" from {path}" if path is not None else ""
        raise TrustmixError(
            f'The data set "{name}" could not be read{where} ({type(error).__name__}: {error}).'
        ) from error
    return validate_dataset(data)


def _checked_options(name: str, read: Source, options: dict[str, Any]) -> dict[str, Any]:
    """The options as the data set's function takes them; a list of classes may name them by numbers."""
    parameters = inspect.signature(read).parameters.items()
    takes = {key: entry for key, entry in parameters if entry.kind is entry.KEYWORD_ONLY}
    known = list(takes)
    for key in options:
        if key not in known:
            there = f"There are: {', '.join(known)}" if known else "It has none but path"
            raise TrustmixError(f'The data set "{name}" has no setting "{key}".{did_you_mean(key, known)} {there}.')
    needed = [key for key, entry in takes.items() if entry.default is entry.empty and key not in options]
    if needed:
        raise TrustmixError(f'The data set "{name}" needs data.{needed[0]}.')
    types, found = get_type_hints(read), {}
    for key, value in options.items():
        given = [str(entry) for entry in value] if key == "classes" and isinstance(value, list | tuple) else value
        try:
            found[key] = TypeAdapter(types[key]).validate_python(given)
        except ValidationError as error:
            wanted = error.errors()[0]["msg"]
            raise TrustmixError(f"data.{key}: {wanted[0].lower() + wanted[1:]} (given: {value!r}).") from error
    return found


@DATASETS.register("digits")
def digits(path: Path | None = None) -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels, from inside scikit-learn; a fixed fifth of each class is for tests."""
    if path is not None:
        raise TrustmixError(f'data.path is {path}, but the data set "digits" is built in and has no path.')
    package = find_spec("sklearn")  # its folder; importing it would load scipy and pandas too
    if package is None or not package.submodule_search_locations:
        raise TrustmixError('The data set "digits" is a file of scikit-learn: pip install scikit-learn.')
    file = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = torch.from_numpy(np.loadtxt(file, np.uint8, delimiter=","))
    inputs = table[:, :64].to(torch.float32).div(16).reshape(-1, 1, 8, 8)
    train, test = split_off_test(Labelled(inputs, table[:, 64].to(torch.int64)), 10, 0.2, "digits")
    return Dataset("digits", train, test, tuple(map(str, range(10))))


FASHION_NAMES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


@DATASETS.register("fashion")
def fashion(path: Path | None = None) -> Dataset:
    """Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 grey images of 28 x 28, ten kinds of clothing; idx files."""
    folder = _find_folder("fashion", path, "train-images-idx3-ubyte", "Debian's package dataset-fashion-mnist")
    train, test = (
        Labelled(
            _idx(folder, f"{part}-images-idx3-ubyte").unsqueeze(1), _idx(folder, f"{part}-labels-idx1-ubyte").long()
        )
        for part in ("train", "t10k")
    )
    return Dataset("fashion", train, test, FASHION_NAMES, mean=(0.2860,), std=(0.3530,))


def _find_folder(name: str, path: Path | None, file: str, remedy: str) -> Path:
    """The first folder that holds the file: the recipe's path, or else one of the usual places."""
    usual = [*paths.search_paths(name, here=False), paths.DEBIAN / f"{name}-mnist"]
    searched = paths.search_paths(path) if path is not None else usual
    for place in searched:
        if any((place / (file + ending)).is_file() for ending in ("", ".gz")):
            return place
    raise TrustmixError(
        f'The data set "{name}" was not found: no {file}[.gz] in {", ".join(map(str, searched))}. '
        f"Install {remedy}, or set data.path or TRUSTMIX_DATA to where the files lie."
    )


def _idx(folder: Path, name: str) -> torch.Tensor:
    """An idx file (LeCun's format: two zero bytes, type 8 = unsigned byte, rank, sizes, values), plain or gzipped."""
    plain, zipped = folder / name, folder / (name + ".gz")
    file = plain if plain.is_file() else zipped
    try:
        raw = plain.read_bytes() if file == plain else gzip.decompress(zipped.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise TrustmixError(f"{file} could not be read ({error}).") from error
    rank = raw[3] if len(raw) > 3 else 0
    header = 4 + 4 * rank
    sizes = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(rank)]
    if raw[:3] != b"\x00\x00\x08" or len(raw) != header + int(np.prod(sizes)):
        raise TrustmixError(f"{file} is not a whole idx file of unsigned bytes ({len(raw)} bytes).")
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=header).reshape(sizes).copy())


@DATASETS.register("npz")
def npz(path: Path | None = None) -> Dataset:
    """The user's arrays: x_train, y_train, x_test, y_test; optionally x_public, y_public and classes (the names)."""
    if path is None:
        raise TrustmixError('The data set "npz" needs data.path, the npz file.')
    path = paths.find_path(path) or path
    return from_arrays(path.stem, read_npz(path))


def read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an npz file; Python objects in it are refused, since reading them could execute something."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except Exception as error:  # a damaged archive may raise anything
        reason = "it is none, or holds Python objects" if "pickle" in str(error) else error
        raise TrustmixError(f"{path} could not be read as an npz file of plain arrays ({reason}).") from error


def _from_function(source: str, options: dict[str, Any]) -> Dataset:
    function = import_object(source, "data.source")
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise TrustmixError(
            f"data.source {source} cannot be called with {options or 'no settings'}: {error}."
        ) from error
    result = function(**options)
    if isinstance(result, Dataset):
        return result
    if isinstance(result, dict):
        return from_arrays(source, result)
    raise TrustmixError(
        f"{source} returned {type(result).__name__}; it must return a trustmix.Dataset or a dict of the arrays "
        "x_train, y_train, x_test, y_test."
    )


def from_arrays(name: str, arrays: dict[str, Any]) -> Dataset:
    """A data set from x_train, y_train, x_test, y_test (and x_public, y_public, classes), NumPy or torch.

    >>> x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    >>> from_arrays("mine", {"x_train": x, "y_train": y, "x_test": x, "y_test": y}).classes
    2
    """
    missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]
    if missing:
        raise TrustmixError(
            f'Data set "{name}" lacks {", ".join(missing)}; it has {", ".join(sorted(arrays)) or "nothing"}.'
        )
    train, test = (labelled(name, arrays, part) for part in ("train", "test"))
    public = labelled(name, arrays, "public") if "x_public" in arrays else None
    highest = int(train.labels.max()) if len(train) else 0
    if "classes" not in arrays and not 0 <= highest < max(len(train), 1):
        raise TrustmixError(
            f'Data set "{name}": the labels go up to {highest} with {len(train)} samples; number the classes from 0.'
        )
    names = (
        tuple(map(str, np.atleast_1d(arrays["classes"])))
        if "classes" in arrays
        else tuple(map(str, range(highest + 1)))
    )
    return scaled(name, train, test, names, public)


def labelled(name: str, arrays: dict[str, Any], part: str) -> Labelled:
    """The samples x_<part> and y_<part> of some arrays; public ones may come without labels, which are -1 then."""
    try:
        x = torch.as_tensor(np.asarray(arrays[f"x_{part}"]))
        known = arrays.get(f"y_{part}", np.full(x.shape[:1], -1))
        y = torch.as_tensor(np.asarray(known))
    except (TypeError, ValueError) as error:  # ValueError: numbers in another machine's order of bytes
        raise TrustmixError(f'Data set "{name}", {part} part: inputs and labels must be numbers ({error}).') from error
    if x.ndim < 2 or y.ndim != 1:
        shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
        raise TrustmixError(f'Data set "{name}": x_{part} and y_{part} are {shapes}; they must be (n, ...) and (n,).')
    if y.dtype.is_floating_point or y.dtype == torch.bool:
        raise TrustmixError(f'Data set "{name}": y_{part} is of type {y.dtype}; labels must be integers.')
    if x.dtype in (torch.float64, torch.float16):
        x = x.to(torch.float32)
    return Labelled(x, y.to(torch.int64))

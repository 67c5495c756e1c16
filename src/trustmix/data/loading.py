"""Loading of data sets: by name, from an npz file of arrays, or from a Python function of the user.

A reader is a function of the recipe's `path`, with keyword arguments of its own, that returns a `Dataset`. `load` finds
it in the registry `DATASETS`, calls it and validates the result.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from trustmix.data.dataset import Dataset, Labelled, validate_dataset
from trustmix.data.hub import resolve_user_path
from trustmix.data.labels import build_dataset
from trustmix.data.unpacking import validate_archive
from trustmix.errors import TrustmixError
from trustmix.imports import import_object
from trustmix.paths import expand_user
from trustmix.registry import Registry, did_you_mean

DatasetReader: TypeAlias = Callable[..., Dataset]
"""A function `(path, **options)` that returns a data set."""

DATASETS: Registry[DatasetReader] = Registry("data set")


def load(
    name: str | None = None, *, path: str | Path | None = None, source: str | None = None, **options: Any
) -> Dataset:
    """Load and validate a data set.

    Parameters
    ----------
    name
        Name of a registered data set; required without `source`.
    path
        File or folder of the data. None uses the search paths, for data sets that have a place of their own.
    source
        Import path "package.module:function" of a user's function that returns a `Dataset` or a dict of arrays.
    **options
        Keyword arguments of the data set's function, such as `text` and `label` of "text".

    Returns
    -------
    Dataset
        The data set.

    Raises
    ------
    TrustmixError
        If the data set is unknown, cannot be found or read, or is not valid.

    Examples
    --------
    >>> load("digits").train.inputs.shape
    torch.Size([1438, 1, 8, 8])
    """
    if source is not None:
        return validate_dataset(_call_source(source, options))
    if name is None:
        raise TrustmixError("The recipe names no data: set data.name, data.source or data.path.")
    read = DATASETS.get(name)
    options = _validate_options(name, read, options)
    try:
        data = read(expand_user(path) if path is not None else None, **options)
    except TrustmixError:
        raise
    except Exception as error:  # a file that is not what it seems to be makes its reader raise anything
        where = f" from {path}" if path is not None else ""
        raise TrustmixError(
            f'The data set "{name}" could not be read{where} ({type(error).__name__}: {error}).'
        ) from error
    return validate_dataset(data)


def _validate_options(name: str, read: DatasetReader, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with the types that the reader's parameters have; `classes` may be a list of numbers."""
    parameters = inspect.signature(read).parameters.items()
    accepted = {key: entry for key, entry in parameters if entry.kind is entry.KEYWORD_ONLY}
    known = list(accepted)
    for key in options:
        if key not in known:
            choices = f"There are: {', '.join(known)}" if known else "It has none but path"
            raise TrustmixError(f'The data set "{name}" has no setting "{key}".{did_you_mean(key, known)} {choices}.')
    missing = [key for key, entry in accepted.items() if entry.default is entry.empty and key not in options]
    if missing:
        raise TrustmixError(f'The data set "{name}" needs data.{missing[0]}.')
    types, converted = get_type_hints(read), {}
    for key, value in options.items():
        given = [str(entry) for entry in value] if key == "classes" and isinstance(value, list | tuple) else value
        try:
            converted[key] = TypeAdapter(types[key]).validate_python(given)
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise TrustmixError(f"data.{key}: {problem[0].lower() + problem[1:]} (given: {value!r}).") from error
    return converted


def _call_source(source: str, options: dict[str, Any]) -> Dataset:
    """Call a user's function and convert its result to a data set."""
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


@DATASETS.register("npz")
def npz(path: Path | None = None) -> Dataset:
    """Read arrays of the user from an npz file.

    Parameters
    ----------
    path
        The npz file with the arrays that `from_arrays` takes.

    Returns
    -------
    Dataset
        The data set, named after the file.

    Raises
    ------
    TrustmixError
        If there is no such file, or an array is missing.
    """
    file = resolve_user_path(path, "npz", "the npz file")
    return from_arrays(file.stem, read_npz(file))


def read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read the arrays of an npz file. Python objects are refused, since reading them could execute code.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    dict
        The arrays by name.

    Raises
    ------
    TrustmixError
        If the file cannot be read or holds Python objects.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "mine.npz"
    >>> np.savez(file, x=np.zeros((2, 3)))
    >>> read_npz(file)["x"].shape
    (2, 3)
    """
    validate_archive(path)
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except Exception as error:  # a damaged archive may raise anything
        reason = "it is none, or holds Python objects" if "pickle" in str(error) else error
        raise TrustmixError(f"{path} could not be read as an npz file of plain arrays ({reason}).") from error
    other = [key for key, array in arrays.items() if not isinstance(array, np.ndarray)]
    if other:
        raise TrustmixError(f"{path} is no npz file of plain arrays: {other[0][:80]!a} is no array.")
    return arrays


def from_arrays(name: str, arrays: Mapping[str, object]) -> Dataset:
    """Build a data set from NumPy arrays or torch tensors.

    Parameters
    ----------
    name
        Name of the data set.
    arrays
        `x_train` (n, ...), `y_train` (n,), `x_test` (m, ...) and `y_test` (m,); optionally `x_public` (N, ...),
        `y_public` (N,) and `classes` (C,), the names of the classes. Labels are class indices from 0.

    Returns
    -------
    Dataset
        The data set. Floats of other precision are converted to float32.

    Raises
    ------
    TrustmixError
        If an array is missing or of the wrong shape or type.

    Examples
    --------
    >>> x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    >>> from_arrays("mine", {"x_train": x, "y_train": y, "x_test": x, "y_test": y}).classes
    2
    """
    missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]
    if missing:
        raise TrustmixError(
            f'Data set "{name}" lacks {", ".join(missing)}; it has {", ".join(sorted(arrays)) or "nothing"}.'
        )
    train, test = (labelled_part(name, arrays, part) for part in ("train", "test"))
    public = labelled_part(name, arrays, "public") if "x_public" in arrays else None
    highest = int(train.labels.max()) if len(train) else 0
    if "classes" not in arrays and not 0 <= highest < max(len(train), 1):
        raise TrustmixError(
            f'Data set "{name}": the labels go up to {highest} with {len(train)} samples; number the classes from 0.'
        )
    names = np.atleast_1d(np.asarray(arrays["classes"])) if "classes" in arrays else range(highest + 1)
    return build_dataset(name, train, test, [str(entry) for entry in names], public)


def labelled_part(name: str, arrays: Mapping[str, object], part: str) -> Labelled:
    """Return one part of a data set's arrays as samples.

    Parameters
    ----------
    name
        Name of the data set, for messages.
    arrays
        The arrays `x_<part>` (n, ...) and `y_<part>` (n,). Without the latter, all labels are -1, which means unknown.
    part
        "train", "test" or "public".

    Returns
    -------
    Labelled
        The samples.

    Raises
    ------
    TrustmixError
        If an array is of the wrong shape or type.

    Examples
    --------
    >>> labelled_part("mine", {"x_public": np.zeros((2, 3))}, "public").labels.tolist()
    [-1, -1]
    """
    try:
        inputs = torch.as_tensor(np.asarray(arrays[f"x_{part}"]))
        labels = torch.as_tensor(np.asarray(arrays.get(f"y_{part}", np.full(inputs.shape[:1], -1))))
    except (TypeError, ValueError) as error:  # ValueError: numbers in another machine's byte order
        raise TrustmixError(f'Data set "{name}", {part} part: inputs and labels must be numbers ({error}).') from error
    if inputs.ndim < 2 or labels.ndim != 1:
        shapes = f"{tuple(inputs.shape)} and {tuple(labels.shape)}"
        raise TrustmixError(f'Data set "{name}": x_{part} and y_{part} are {shapes}; they must be (n, ...) and (n,).')
    if labels.dtype.is_floating_point or labels.dtype == torch.bool:
        raise TrustmixError(f'Data set "{name}": y_{part} is of type {labels.dtype}; labels must be integers.')
    if inputs.dtype in (torch.float64, torch.float16):
        inputs = inputs.to(torch.float32)
    return Labelled(inputs, labels.to(torch.int64))


def find_sklearn_file(name: str) -> Path:
    """Find a data file inside scikit-learn, which is not imported: that would load scipy and pandas too.

    Parameters
    ----------
    name
        Name of the file.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    TrustmixError
        If scikit-learn is not installed.
    """
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise TrustmixError("The data set is a file of scikit-learn: pip install scikit-learn.")
    return Path(package.submodule_search_locations[0]) / "datasets" / "data" / name


def refuse_path(path: Path | None, name: str) -> None:
    """Raise if a path is given for a data set that is built in."""
    if path is not None:
        raise TrustmixError(f'data.path is {path}, but the data set "{name}" is built in and has no path.')

"""Files on disk: safetensors and JSON only, so that no file that is read can execute code.

Every write is atomic: a temporary file is flushed to disk and renamed over the target, so a reader finds the old file
or the new one, complete.

Records carry the version of their format under the key `format`; a record without it is of version 1. A new field does
not change the version, since readers ignore fields that they do not know; anything that they would misread does.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import safetensors.torch
import torch
from filelock import FileLock, Timeout
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from trustmix.errors import StorageError, TrustmixError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RecordT = TypeVar("RecordT", bound="DataclassInstance")

METADATA = "trustmix"
"""The key of our metadata in the header of a safetensors file."""
PRIVATE_MODE = 0o700
"""The permissions of a directory that only its owner can enter."""
OTHERS_MODE = 0o077
"""The permissions of all but the owner."""
LOCK_FILE = ".lock"
"""The file that `lock_directory` leaves in a directory."""


def pack(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any] | None = None) -> bytes:
    """Serialize tensors and metadata as one safetensors byte string.

    Parameters
    ----------
    tensors
        Tensors by name; tensors that share memory are written as copies.
    metadata
        Values that JSON can hold, by name.

    Returns
    -------
    bytes
        The bytes of a safetensors file.

    Examples
    --------
    >>> tensors, metadata = unpack(pack({"a": torch.ones(2)}, {"round": 3}))
    >>> tensors["a"].tolist(), metadata
    ([1.0, 1.0], {'round': 3})
    """
    header = {METADATA: json.dumps(metadata or {})}  # one entry, since safetensors writes several in random order
    plain: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for key, value in tensors.items():
        tensor = value.detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        plain[key] = tensor.clone() if address in seen else tensor  # safetensors refuses tied weights
        seen.add(address)
    return safetensors.torch.save(plain, header)


def unpack(data: bytes, source: str = "the data") -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read the bytes that `pack` wrote.

    Parameters
    ----------
    data
        The bytes of a safetensors file.
    source
        The name of the data in an error message.

    Returns
    -------
    tuple of dict
        The tensors and the metadata.

    Raises
    ------
    StorageError
        If the bytes are anything else.
    """
    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        metadata = json.loads(header["__metadata__"][METADATA])
    except Exception as error:  # the bytes may come from an attacker, and the readers raise errors of many kinds
        raise StorageError(f"{source} is not a whole safetensors file of trustmix ({error}).") from error
    if not isinstance(metadata, dict):
        raise StorageError(f"{source} is not a whole safetensors file of trustmix (its metadata are no object).")
    return tensors, metadata


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically; missing parent directories are created.

    Parameters
    ----------
    path
        The file.
    data
        Its new content.

    Raises
    ------
    StorageError
        If the file cannot be written; the old file, if there is one, is unchanged.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:  # never through a link that has this name
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        _remove_quietly(temporary)
        reason = error.strerror or str(error)
        raise StorageError(f"Could not write {path}: {reason}. What was there before is untouched.") from error


def _remove_quietly(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # the folder itself may be what failed; the caller reports the first error


def read_bytes(path: Path) -> bytes:
    """Read a file.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    bytes
        Its content.

    Raises
    ------
    StorageError
        If the file cannot be read.
    """
    if path.exists() and not path.is_file():
        raise StorageError(f"Could not read {path}: it is no regular file.")  # a pipe may have no end
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise StorageError(f"Could not read {path}: {getattr(error, 'strerror', None) or error}.") from error


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically.

    Parameters
    ----------
    path
        The file.
    value
        A value that JSON can hold.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read the value of a JSON file.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    object
        Its value.

    Raises
    ------
    StorageError
        If the file cannot be read or is not JSON.
    """
    return parse_json(read_bytes(path), str(path))


def parse_json(text: str | bytes, source: str) -> Any:
    """Parse JSON.

    Parameters
    ----------
    text
        JSON.
    source
        The name of the text in an error message.

    Returns
    -------
    object
        Its value.

    Raises
    ------
    StorageError
        If the text is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{source} is not valid JSON ({error}).") from error


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any] | None = None) -> None:
    """Write tensors and metadata as one safetensors file, atomically.

    Parameters
    ----------
    path
        The file.
    tensors, metadata
        As in `pack`.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    write_bytes(path, pack(tensors, metadata))


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read a safetensors file that `write_tensors` wrote.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    tuple of dict
        The tensors and the metadata.

    Raises
    ------
    StorageError
        If the file cannot be read or is anything else.
    """
    return unpack(read_bytes(path), str(path))


def check_format(found: object, supported: int, source: str) -> None:
    """Refuse a version of a format that this version of trustmix does not read.

    Parameters
    ----------
    found
        The version in the file.
    supported
        The newest version that is read.
    source
        The name of the file in an error message.

    Raises
    ------
    StorageError
        If the version is newer or is no version.

    Examples
    --------
    >>> check_format(2, 1, "run/recipe.toml")
    Traceback (most recent call last):
    ...
    trustmix.errors.StorageError: run/recipe.toml has format 2; this version of trustmix reads format 1: upgrade it.
    """
    if type(found) is not int or not 1 <= found <= supported:
        raise StorageError(
            f"{source} has format {found!r}; this version of trustmix reads format {supported}: upgrade it."
        )


def validate_record(record: object, supported: int, source: str) -> dict[str, Any]:
    """Check that a record is an object of a format that this version of trustmix reads.

    Parameters
    ----------
    record
        A JSON value that was read; without the key `format` it is of version 1.
    supported
        The newest version that is read.
    source
        The name of the record in an error message.

    Returns
    -------
    dict
        The fields of the record without `format`.

    Raises
    ------
    StorageError
        If the record is not an object or is of a newer version.

    Examples
    --------
    >>> validate_record({"format": 1, "round": 3}, 1, "rounds.jsonl")
    {'round': 3}
    """
    if not isinstance(record, dict):
        raise StorageError(f"{source} holds {json.dumps(record)[:60]} where an object with named fields belongs.")
    check_format(record.get("format", 1), supported, source)
    return {key: value for key, value in record.items() if key != "format"}


def select_fields(kind: type["DataclassInstance"], found: Mapping[str, Any]) -> dict[str, Any]:
    """Select the entries that a dataclass has a field for; a newer trustmix may have written more.

    Parameters
    ----------
    kind
        A dataclass.
    found
        Values by name.

    Returns
    -------
    dict
        The values whose names are fields of the dataclass.
    """
    known = {field.name for field in fields(kind)}
    return {name: value for name, value in found.items() if name in known}


def validate_types(types: Mapping[str, Any], found: Mapping[str, Any], source: str) -> None:
    """Check the types of the values of a record; numbers must be finite, integers of at most 64 bits.

    Parameters
    ----------
    types
        The type of each field by name, such as the type hints of a dataclass.
    found
        Values by name; fields without a value or without a type are not checked.
    source
        The name of the record in an error message.

    Raises
    ------
    StorageError
        If a value is of another type.

    Examples
    --------
    >>> validate_types({"round": int}, {"round": "three"}, "rounds.jsonl")
    Traceback (most recent call last):
    ...
    trustmix.errors.StorageError: rounds.jsonl: round is "three" (input should be a valid integer).
    """
    for name, value in found.items():
        if name in types:
            try:
                _type_adapter(types[name]).validate_python(value)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                shown = json.dumps(first["input"], default=str)[:60] if _is_printable(first["input"]) else "too large"
                reason = first["msg"][0].lower() + first["msg"][1:]
                raise StorageError(f"{source}: {name} is {shown} ({reason}).") from error


def _is_printable(value: object) -> bool:
    """Whether Python writes the value: integers of thousands of digits it does not."""
    return not isinstance(value, int) or abs(value) < 2**64


@lru_cache(maxsize=256)
def _type_adapter(kind: Any) -> TypeAdapter[Any]:
    config = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    return TypeAdapter(_bound_integers(kind), config=config)


def _bound_integers(kind: Any) -> Any:
    """The type with integers of at most 64 bits, in containers too."""
    if kind is int:
        return Annotated[int, Field(ge=-(2**63), lt=2**63)]
    origin, parts = get_origin(kind), get_args(kind)
    return origin[tuple(map(_bound_integers, parts))] if origin in (dict, list) and parts else kind


def parse_record(kind: type[RecordT], record: object, supported: int, source: str) -> RecordT:
    """Build a dataclass from a record of it; fields that the dataclass does not have are ignored.

    Parameters
    ----------
    kind
        A dataclass.
    record, supported, source
        As in `validate_record`.

    Returns
    -------
    dataclass instance
        The instance.

    Raises
    ------
    StorageError
        If the record is not an object, is of another version, lacks a field or has one of another type.
    """
    found = select_fields(kind, validate_record(record, supported, source))
    validate_types(get_type_hints(kind), found, source)
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in required if name not in found]
    if missing:
        raise StorageError(f"{source} is no record of a {kind.__name__}; it lacks {', '.join(missing)}.")
    return kind(**found)


def make_private_directory(folder: Path) -> None:
    """Make a directory that only its owner can enter, or take away the access of others to one that exists.

    Parameters
    ----------
    folder
        The directory; missing parents are created as usual.

    Raises
    ------
    StorageError
        If the directory cannot be created or changed.

    Examples
    --------
    >>> import stat, tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "state"
    >>> make_private_directory(folder)
    >>> oct(stat.S_IMODE(folder.stat().st_mode))
    '0o700'
    """
    try:
        folder.mkdir(mode=PRIVATE_MODE, parents=True, exist_ok=True)
        if folder.stat().st_mode & OTHERS_MODE:
            folder.chmod(PRIVATE_MODE)
    except OSError as error:
        raise StorageError(f"Could not make the directory {folder} private: {error.strerror}.") from error


@contextmanager
def lock_directory(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a directory, which is created if it does not exist.

    The lock is on a file `.lock` in the directory, which stays there. It ends with the process, however that ends.

    Parameters
    ----------
    folder
        The directory.
    wait
        Whether to wait while another process holds the lock.

    Raises
    ------
    TrustmixError
        If another process holds the lock and `wait` is false.
    StorageError
        If the directory cannot be created or locked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"Could not make the directory {folder}: {error.strerror}.") from error
    lock = FileLock(folder / LOCK_FILE, blocking=wait)
    try:
        lock.acquire()
    except Timeout as error:
        raise TrustmixError(f"Another process is running in {folder}; wait for it, or use another one.") from error
    except OSError as error:
        raise StorageError(f"Could not lock the directory {folder}: {error.strerror}.") from error
    try:
        yield
    finally:
        lock.release()

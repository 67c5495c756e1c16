"""Bytes on disk: safetensors and JSON, nothing else, so nothing that is read can execute.

Every write is atomic (a temporary file, flushed to disk, then renamed over the target): whoever reads finds the
old file or the new one, whole, whatever happened in between.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from trustmix.errors import StorageError, TrustmixError

METADATA = "trustmix"


def pack(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any] | None = None) -> bytes:
    """Tensors and JSON-able metadata as one safetensors byte string.

    >>> tensors, metadata = unpack(pack({"a": torch.ones(2)}, {"round": 3}))
    >>> tensors["a"].tolist(), metadata
    ([1.0, 1.0], {'round': 3})
    """
    facts = {METADATA: json.dumps(metadata or {})}  # one entry, since safetensors writes several in random order
    plain: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for key, value in tensors.items():
        tensor = value.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        plain[key] = tensor.clone() if place in seen else tensor  # safetensors refuses tied weights
        seen.add(place)
    return safetensors.torch.save(plain, facts)


def unpack(data: bytes, source: str = "the data") -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and the metadata of `pack`; anything else is refused in a sentence that names the source."""
    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        facts = json.loads(header["__metadata__"][METADATA])
    except Exception as error:  # bytes may come from anybody, and the readers have errors of many kinds
        raise StorageError(f"{source} is not a whole safetensors file of trustmix ({error}).") from error
    if not isinstance(facts, dict):
        raise StorageError(f"{source} is not a whole safetensors file of trustmix (its metadata are no object).")
    return tensors, facts


def write_bytes(path: Path, data: bytes) -> None:
    """Write the file whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
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
    """The file's bytes, or one sentence why not."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise StorageError(f"Could not read {path}: {error.strerror or error}.") from error


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    data = read_bytes(path)
    try:
        return json.loads(data)
    except ValueError as error:
        raise StorageError(f"{path} is not valid JSON ({error}).") from error


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any] | None = None) -> None:
    """Write tensors and metadata as one safetensors file, atomically."""
    write_bytes(path, pack(tensors, metadata))


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and metadata of a safetensors file."""
    return unpack(read_bytes(path), str(path))


@contextmanager
def lock_directory(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the folder, made if need be; while another process holds it, wait or be refused.

    The lock ends with the process, however it ends.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise StorageError(f"Could not make the directory {folder}: {error.strerror}.") from error
    try:
        _take(handle, folder, wait)
        yield
    finally:
        os.close(handle)


def _take(handle: int, folder: Path, wait: bool) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        raise TrustmixError(f"Another process is running in {folder}; wait for it, or use another one.") from error
    except OSError as error:
        raise StorageError(f"Could not lock the directory {folder}: {error.strerror}.") from error


def check_format(found: Any, supported: int, source: str) -> None:
    """Refuse a file of a newer format than this version reads.

    >>> check_format(2, 1, "run/recipe.toml")
    Traceback (most recent call last):
    ...
    trustmix.errors.StorageError: run/recipe.toml has format 2; this version of trustmix reads format 1: upgrade it.
    """
    if not isinstance(found, int) or found > supported:
        raise StorageError(
            f"{source} has format {found}; this version of trustmix reads format {supported}: upgrade it."
        )

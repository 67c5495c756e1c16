"""Files on disk: safetensors and JSON only, so that no file that is read can execute code.

Every write is atomic: a temporary file is flushed to disk and renamed over the target, so a reader finds the old file
or the new one, complete.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from filelock import FileLock, Timeout

from trustmix.errors import StorageError, TrustmixError

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

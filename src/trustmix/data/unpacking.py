"""Reading of compressed files of users: no file is unpacked to more than there is room for.

A few kilobytes can unpack to more than any machine holds. Sizes are checked before memory is taken.
"""

import bz2
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from trustmix.errors import TrustmixError

COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
MAX_RATIO = 100
"""How much longer than its file a text may be, once it is larger than `SMALL`; tables have a ratio of 3 to 30."""
SMALL = 2**26
"""Bytes that any file may unpack to."""


def memory_limit() -> int:
    """Bytes that a file may unpack to at most: half of the memory that is free."""
    return int(psutil.virtual_memory().available // 2)


def require_file(path: Path) -> None:
    """Refuse a path that is no regular file: a device or a pipe may have no end.

    Parameters
    ----------
    path
        A path; one that does not exist, or a folder, is left to the reader's own error.

    Raises
    ------
    TrustmixError
        If it is a device, a pipe or a socket.

    Examples
    --------
    >>> require_file(Path("/dev/null"))
    Traceback (most recent call last):
    ...
    trustmix.errors.TrustmixError: /dev/null is no regular file, but a device or a pipe; give a file.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise TrustmixError(f"{path} is no regular file, but a device or a pipe; give a file.")


def read_unpacked(path: Path) -> bytes:
    """Read a file; .gz, .xz and .bz2 are unpacked.

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
    TrustmixError
        If the file cannot be read, or unpacks to more than there is room for.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.csv.gz"
    >>> _ = file.write_bytes(gzip.compress(b"a,b"))
    >>> read_unpacked(file)
    b'a,b'
    """
    require_file(path)
    opener = COMPRESSED.get(path.suffix)
    try:
        packed = path.stat().st_size
        if opener is None:
            _validate_size(path, packed, packed)
            return path.read_bytes()
        limit = min(max(SMALL, MAX_RATIO * packed), memory_limit())
        with opener(path) as file:
            content: bytes = file.read(limit + 1)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise TrustmixError(f"{path} could not be read ({error}).") from error
    if len(content) > limit:
        raise TrustmixError(f"{path} has {packed:,} bytes and would unpack to more than {limit:,}; unpack it yourself.")
    return content


def validate_archive(path: Path) -> None:
    """Refuse a zip archive, such as an npz file, that unpacks to more than there is room for.

    Parameters
    ----------
    path
        The file; one that is no zip archive is left to its reader.

    Raises
    ------
    TrustmixError
        If it is no regular file, or its parts together are too large.
    """
    require_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            _validate_size(path, path.stat().st_size, sum(part.file_size for part in archive.infolist()))
    except (OSError, zipfile.BadZipFile):
        return


def _validate_size(path: Path, packed: int, unpacked: int) -> None:
    limit = memory_limit()
    if unpacked > limit:
        raise TrustmixError(
            f"{path} has {packed:,} bytes and would unpack to {unpacked:,}; there is room for {limit:,} in memory."
        )

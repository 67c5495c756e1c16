"""The file or folder of a data set: `data.path`, one of the search paths, or Hugging Face's hub (the extra `hub`).

Downloaded data sets are stored as parquet files in the cache folder, which is one of the search paths.
"""

import importlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from trustmix import paths
from trustmix.errors import TrustmixError


def locate_dataset(name: str, path: Path | None, repository: str, homepage: str) -> Path:
    """Find a data set on this machine, or download it.

    Parameters
    ----------
    name
        Name of the data set, which is also the name of its folder below the search paths.
    path
        The path of the recipe, or None to use the search paths and the hub.
    repository
        Name of the data set on the hub.
    homepage
        Where users can get the data set, for the message.

    Returns
    -------
    Path
        The file or folder.

    Raises
    ------
    TrustmixError
        If the data set is not found and cannot be downloaded.
    """
    if path is not None:
        return require_path(path)
    found = paths.find_path(name, here=False)
    if found is not None:
        return found
    searched = ", ".join(map(str, paths.search_paths(name, here=False)))
    problem = download_dataset(name, repository)
    if problem is None:
        return paths.cache_dir() / name
    raise TrustmixError(
        f'The data set "{name}" was not found in {searched}, nor fetched from the hub ({problem}). Get it from '
        f"{homepage} and put it there, or set data.path or TRUSTMIX_DATA to where it lies."
    )


def resolve_user_path(path: Path | None, dataset: str, expected: str) -> Path:
    """Return the file or folder that the recipe names, for a data set that needs a path.

    Parameters
    ----------
    path
        The path of the recipe, or None if the recipe has none.
    dataset
        Name of the data set, for the message.
    expected
        What the path must be, for the message.

    Returns
    -------
    Path
        The existing file or folder.

    Raises
    ------
    TrustmixError
        If there is no path, or nothing at the path.
    """
    if path is None:
        raise TrustmixError(f'The data set "{dataset}" needs data.path, {expected}.')
    return require_path(path)


def require_path(path: Path) -> Path:
    """Return the first search path that exists.

    Parameters
    ----------
    path
        A path, or a name below one of the search paths.

    Returns
    -------
    Path
        The existing file or folder.

    Raises
    ------
    TrustmixError
        If none of them exists.
    """
    found = paths.find_path(path)
    if found is None:
        searched = ", ".join(map(str, paths.search_paths(path)))
        raise TrustmixError(f"data.path is {path}, and there is nothing there (looked for {searched}).")
    return found


def download_dataset(name: str, hub: str) -> str | None:
    """Fetch a data set into the cache folder; gives the reason where that is not possible, else None."""
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError:
        return 'the extra "hub" is not installed'
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "10")
    target = paths.cache_dir() / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=target.parent))
    except OSError as error:
        return f"{target.parent} cannot be written: {error.strerror}"
    try:
        for part, rows in datasets.load_dataset(hub).items():
            rows.to_parquet(work / f"{part}.parquet")
        os.replace(work, target)  # whole or not at all
    except Exception as error:  # noqa: BLE001 - whatever the network or the library says is the reason
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else hub}"
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return None

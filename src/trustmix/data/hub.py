"""The file or folder of a data set: `data.path`, one of the search paths, or Hugging Face's hub (the extra `hub`).

Downloaded data sets are stored as parquet files in the cache folder, which is one of the search paths.
"""

import os
import shutil
import tempfile
from pathlib import Path

from trustmix import paths
from trustmix.errors import TrustmixError
from trustmix.huggingface import require_repository
from trustmix.imports import require_extra


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
    try:
        return download_dataset(name, repository)
    except TrustmixError as error:
        reason = str(error).rstrip(".")
        raise TrustmixError(
            f'The data set "{name}" was not found in {searched}, nor fetched from the hub ({reason}). Get it from '
            f"{homepage} and put it there, or set data.path or TRUSTMIX_DATA to where it lies."
        ) from error


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


def download_dataset(name: str, repository: str) -> Path:
    """Download a data set from the hub into the cache folder.

    Parameters
    ----------
    name
        Name of the data set, which is also the name of its folder.
    repository
        Name of the data set on the hub.

    Returns
    -------
    Path
        The folder, with one parquet file per part of the data set.

    Raises
    ------
    TrustmixError
        If the data set cannot be downloaded or stored; the text is the reason, to be put in brackets.
    """
    datasets = require_extra("datasets", "the hub", "hub")
    if not datasets.config.HF_HUB_OFFLINE:  # offline, `load_dataset` reads its own cache without any request
        require_repository(repository, "dataset")
    target = paths.cache_dir() / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=target.parent))
    except OSError as error:
        raise TrustmixError(f"{target.parent} cannot be written: {error.strerror}") from error
    try:
        for part, rows in datasets.load_dataset(repository).items():
            rows.to_parquet(work / f"{part}.parquet")
        os.replace(work, target)  # the folder appears only when it is complete
    except Exception as error:  # the errors of the network and of the library have no common class
        reason = (str(error).splitlines() or [repository])[0]
        raise TrustmixError(f"{type(error).__name__}: {reason}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target

"""Where a data set lies: the recipe's path, else the usual places, else Hugging Face's hub (the extra `hub`).

What is fetched is kept as parquet files in the cache folder, which is one of the usual places, and read like any other.
"""

import importlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from trustmix import paths
from trustmix.errors import TrustmixError


def locate_dataset(name: str, path: Path | None, hub: str, remedy: str) -> Path:
    """The file or folder of a data set; `hub` is its name there, and `remedy` says where people get it."""
    if path is not None:
        return resolve_user_path(path)
    found = paths.find_path(name, here=False)
    if found is not None:
        return found
    searched = ", ".join(map(str, paths.search_paths(name, here=False)))
    problem = fetch(name, hub)
    if problem is None:
        return paths.cache_dir() / name
    raise TrustmixError(
        f'The data set "{name}" was not found in {searched}, nor fetched from the hub ({problem}). Get it from '
        f"{remedy} and put it there, or set data.path or TRUSTMIX_DATA to where it lies."
    )


def resolve_user_path(path: Path, setting: str = "data.path") -> Path:
    """A path of the recipe's, which must be there."""
    found = paths.find_path(path)
    if found is None:
        searched = ", ".join(map(str, paths.search_paths(path)))
        raise TrustmixError(f"{setting} is {path}, and there is nothing there (looked for {searched}).")
    return found


def fetch(name: str, hub: str) -> str | None:
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

"""Where files are looked for: the path as given, $TRUSTMIX_DATA, the user's cache, Debian's data sets.

One order for data and weights alike, so that a recipe can say `path = "bert_tiny"` on every machine.
"""

import os
from pathlib import Path

DEBIAN = Path("/usr/share/datasets")


def cache_dir() -> Path:
    """The user's own folder for what can be made or fetched again."""
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "trustmix"


def search_paths(name: str | Path, *, here: bool = True) -> list[Path]:
    """The places where a name is looked for, in this order; an absolute path is only itself.

    With here = False the current folder is none of them: the name is a data set's, not a path.

    >>> search_paths("/data/cifar10")
    [PosixPath('/data/cifar10')]
    """
    path = Path(name)
    try:
        path = path.expanduser()
    except RuntimeError:
        return [path]  # of a user who is not there
    if path.is_absolute():
        return [path]
    base = os.environ.get("TRUSTMIX_DATA")
    chosen = [Path(base).expanduser() / path] if base else []
    return [*([path] if here else []), *chosen, cache_dir() / path, DEBIAN / path]


def find_path(name: str | Path, *, here: bool = True) -> Path | None:
    """The first of the places that exists."""
    try:
        return next((place for place in search_paths(name, here=here) if place.exists()), None)
    except OSError:
        return None  # a name too long for any place

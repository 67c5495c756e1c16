"""Path search for data and weights: the path as given, $TRUSTMIX_DATA, the user's cache, Debian's data sets.

Data and weights are searched in the same order, so a recipe with `path = "bert_tiny"` works on every machine.
"""

import os
from pathlib import Path

DEBIAN = Path("/usr/share/datasets")


def cache_dir() -> Path:
    """Return the user's directory for files that can be made or downloaded again."""
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "trustmix"


def expand_user(name: str | Path) -> Path:
    """Replace ~ by the user's home directory.

    Parameters
    ----------
    name
        A path.

    Returns
    -------
    Path
        The path; ~user of a user that the system does not know stays as it is.

    Examples
    --------
    >>> expand_user("~no-such-user/data").as_posix()
    '~no-such-user/data'
    """
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def search_paths(name: str | Path, *, here: bool = True) -> list[Path]:
    """List the paths at which a name is searched, in this order.

    Parameters
    ----------
    name
        A path or the name of a data set; an absolute path stands for itself alone.
    here
        Whether the current directory is searched; not for the name of a data set, which is no path.

    Returns
    -------
    list of Path
        The paths, whether they exist or not.

    Examples
    --------
    >>> [path.as_posix() for path in search_paths("/data/cifar10")]
    ['/data/cifar10']
    """
    path = expand_user(name)
    if path.is_absolute():
        return [path]
    base = os.environ.get("TRUSTMIX_DATA")
    chosen = [Path(base).expanduser() / path] if base else []
    return [*([path] if here else []), *chosen, cache_dir() / path, DEBIAN / path]


def find_path(name: str | Path, *, here: bool = True) -> Path | None:
    """Find a file or a directory.

    Parameters
    ----------
    name, here
        As in `search_paths`.

    Returns
    -------
    Path or None
        The first of the searched paths that exists.
    """
    try:
        return next((path for path in search_paths(name, here=here) if path.exists()), None)
    except OSError:
        return None  # a name that is too long for a path

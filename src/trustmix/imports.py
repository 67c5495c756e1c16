"""Lazy imports: functions of the user's own code, and libraries that are extras."""

import importlib
import sys
from pathlib import Path
from typing import Any

from trustmix.errors import TrustmixError


def import_object(reference: str, key: str, *, function: bool = True) -> Any:
    """Import a function or a class by its name; modules in the current directory are found too.

    Parameters
    ----------
    reference
        "package.module:name".
    key
        The setting that holds the reference, for the error message.
    function
        Whether it must be a function or a class; if not, it may be any value.

    Returns
    -------
    object
        The function, the class or the value.

    Raises
    ------
    TrustmixError
        If the reference has another form, is of Python's standard library, cannot be imported, or is not callable.

    Examples
    --------
    >>> import_object("torch.nn:Linear", "model.source")(3, 2)
    Linear(in_features=3, out_features=2, bias=True)
    """
    module_name, colon, name = reference.partition(":")
    if not (module_name and colon and name):
        raise TrustmixError(f'{key} is "{reference}"; it must look like "package.module:name".')
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        raise TrustmixError(f'{key} is "{reference}", which is of Python\'s standard library; name code of your own.')
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module_name), name)
    except ImportError as error:
        raise TrustmixError(f'{key} is "{reference}", but {module_name} cannot be imported ({error}).') from error
    except AttributeError as error:
        raise TrustmixError(f'{key} is "{reference}", but {module_name} has no {name}.') from error
    if function and not callable(found):
        raise TrustmixError(f'{key} is "{reference}", which is not a function.')
    return found


def require_extra(module: str, need: str, name: str) -> Any:
    """Import a library that belongs to an extra.

    Parameters
    ----------
    module
        The module to import.
    need
        The setting or the function that needs it, for the error message.
    name
        The extra.

    Returns
    -------
    module
        The module; its type is open, since the library may not be installed where types are checked.

    Raises
    ------
    TrustmixError
        If the library is not installed; the message says how to install it.

    Examples
    --------
    >>> require_extra("no_such_library", "track.mlflow", "track")
    Traceback (most recent call last):
    ...
    trustmix.errors.TrustmixError: track.mlflow needs no_such_library: pip install "trustmix[track]".
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise TrustmixError(f'{need} needs {library}: pip install "trustmix[{name}]".') from error

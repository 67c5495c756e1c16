"""What is imported only when it is wanted: a user's own functions, and libraries that are extras."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trustmix.errors import TrustmixError


def import_object(reference: str, key: str) -> Callable[..., Any]:
    """The function a recipe's key refers to; modules beside the caller (the current folder) are found too.

    >>> import_object("math:sqrt", "model.source")(9.0)
    3.0
    """
    module_name, colon, name = reference.partition(":")
    if not (module_name and colon and name):
        raise TrustmixError(f'{key} is "{reference}"; it must look like "package.module:function".')
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module_name), name)
    except ImportError as error:
        raise TrustmixError(f'{key} is "{reference}", but {module_name} cannot be imported ({error}).') from error
    except AttributeError as error:
        raise TrustmixError(f'{key} is "{reference}", but {module_name} has no {name}.') from error
    if not callable(found):
        raise TrustmixError(f'{key} is "{reference}", which is not a function.')
    return found  # type: ignore[no-any-return]


def require_extra(module: str, need: str, name: str) -> Any:
    """A library that is an extra; without it, one sentence says what needs it and how to get it.

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

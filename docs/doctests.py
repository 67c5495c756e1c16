"""Doctests as blocks of code: Markdown would read `>>>` as a quotation and `[a][b]` as a link."""

import re
from typing import Any

from griffe import Extension, Object

DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.M)
"""A doctest, up to the next empty line."""


class FencedDoctests(Extension):
    """An extension of griffe that puts a fence around every doctest of a docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of an object after it was read."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

"""Formulas as MathML, written when the documentation is built: nothing is fetched, and no script runs in the page."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
"""What pymdownx.arithmatex leaves of a formula in its generic mode."""


def on_page_content(text: str, **_: Any) -> str:
    """The page with every formula rendered; mkdocs calls this for each page."""
    return FORMULA.sub(_rendered, text)


def _rendered(found: re.Match[str]) -> str:
    tag, bracket, latex = found.groups()
    return f"<{tag}>{convert(html.unescape(latex), display='block' if bracket == '[' else 'inline')}</{tag}>"

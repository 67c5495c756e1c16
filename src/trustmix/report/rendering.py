"""The templates of both HTML pages: one jinja2 environment that escapes every text it is given.

Two kinds of text are marked as safe, both made by this package: the style sheet and the script (here), and the drawing
of a chart (`svg.draw_chart`). Texts from recipes, run directories and clients are always escaped.
"""

from dataclasses import dataclass
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trustmix.report.palette import PALETTE


@dataclass(frozen=True)
class PageSection:
    """One section of a page.

    Parameters
    ----------
    key : str
        The section's anchor.
    title : str
        The section's heading, also its entry in the list of sections.
    template : str
        The name of the template of the section's body.
    content : object
        What the template shows; it reads it as `section.content`.
    """

    key: str
    title: str
    template: str
    content: object = None


def render(template: str, **context: object) -> str:
    """Fill in a template of this package, with everything escaped that is not marked as safe.

    Parameters
    ----------
    template : str
        The name of a file in report/templates.
    context : object
        The template's variables.

    Returns
    -------
    str
        The HTML text.

    Examples
    --------
    >>> render("recipes.html", section=PageSection("recipe", "", "recipes.html", [("<b>", "seed = 0")])).strip()
    '<details class="recipe"><summary>&lt;b&gt;</summary><pre>seed = 0</pre></details>'
    """
    return _environment().get_template(template).render(context)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("trustmix.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.globals["palette"] = PALETTE
    environment.globals["stylesheet"] = _static_file("page.css")
    environment.globals["script"] = _static_file("page.js")
    return environment


def _static_file(name: str) -> Markup:
    """A file that is written into pages as it is; it is no template, since it may hold braces."""
    text = (resources.files("trustmix.report") / "templates" / name).read_text("utf-8")
    return Markup(text)  # noqa: S704 - a file of this package, not of a user

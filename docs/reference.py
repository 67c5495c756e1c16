"""Parts of pages that are generated when the documentation is built: settings, commands, public names, results.

A line such as `<!-- every setting -->` is replaced. The text comes from the model of a recipe, from the parser of the
command line, from the `__all__` of every room, and from RESULTS.md.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trustmix.attacks.byzantine_engine import ATTACKS
from trustmix.cli import app
from trustmix.data import DATASETS
from trustmix.federation import ENGINES, METHODS
from trustmix.learners import OPTIMIZERS
from trustmix.models import MODELS
from trustmix.settings.config import ModelConfig, StudentConfig
from trustmix.settings.recipe import Recipe
from trustmix.wire import CODECS

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

NAMES = {
    "rule": METHODS.names(),
    "data.name": DATASETS.names(),
    "public.data": DATASETS.names(),
    "model.name": MODELS.names(),
    "student.name": MODELS.names(),
    "train.optimizer": OPTIMIZERS.names(),
    "engine.name": ENGINES.names(),
    "attack.kind": ATTACKS,
    "wire.up": CODECS.names(),
    "wire.down": CODECS.names(),
}
"""Settings that are a name of something registered."""

ROOMS = (
    *("aggregation", "density", "metrics", "models", "data", "wire", "privacy", "learners", "federation", "callbacks"),
    *("theory", "attacks", "engines", "methods", "settings", "experiment", "sweeps", "report", "transport", "deploy"),
)
"""Rooms in the order of the page of the API: each imports only earlier ones. The commands have a page of their own."""

ROOT = Path(__file__).parents[1]
PICTURE = re.compile(r"\]\((?:benchmarks/results/)?([^)/]*\.svg)\)")
"""A picture in `benchmarks/results`, as RESULTS.md and the pages beside the picture link it."""


def on_files(files: "Files", config: Any) -> "Files":
    """Return the files of the documentation with the pages and pictures of `benchmarks/results`."""
    from mkdocs.structure.files import File  # only mkdocs calls this; tests read the rest without mkdocs

    for path in sorted((ROOT / "benchmarks" / "results").iterdir()):
        folder = {".md": "results", ".svg": "images"}.get(path.suffix)
        if folder is not None:
            files.append(File.generated(config, f"{folder}/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """Return the page with generated text in place of markers; mkdocs calls this for each page."""
    if page.file.src_uri.startswith("results/"):
        return result_page(text)
    writers = {"every setting": settings, "every command": commands, "every public name": api, "the results": results}
    for marker, write in writers.items():
        line = f"<!-- {marker} -->"
        if line in text:
            text = text.replace(line, write())
    return text


def settings() -> str:
    """A table for each section of a recipe."""
    top = {key: info for key, info in Recipe.model_fields.items() if _section(key, info) is None}
    parts = ["### The top level", "", *_table("", top)]
    for name, info in Recipe.model_fields.items():
        section = _section(name, info)
        if section is not None:
            parts += ["", f"### [{name}]", "", inspect.cleandoc(section.__doc__ or ""), ""]
            parts += _table(f"{name}.", section.model_fields)
    return "\n".join(parts)


def _section(name: str, info: FieldInfo) -> type[BaseModel] | None:
    known: dict[str, type[BaseModel]] = {"model": ModelConfig, "student": StudentConfig}
    found: Any = known.get(name, info.annotation)
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _table(before: str, fields: dict[str, FieldInfo]) -> Iterator[str]:
    yield from ("| setting | default | meaning |", "|---|---|---|")
    for key, info in fields.items():
        default = "none" if info.default is None else str(info.default).lower()
        path = f"{before}{key}"
        choices = NAMES[path] if path in NAMES else _choices(info.annotation)
        listed = f"; one of {', '.join(f'`{choice}`' for choice in choices)}" if choices else ""
        yield f"| `{path}` | `{default}` | {info.description}{listed} |"


def _choices(kind: Any) -> tuple[str, ...]:
    return tuple(map(str, get_args(kind))) if get_origin(kind) is Literal else ()


def commands() -> str:
    """Every command with its arguments and options."""
    group: Any = typer.main.get_command(app)
    parts: list[str] = []
    for name, command in group.commands.items():
        text, _, example = inspect.cleandoc(command.help or "").partition("Example: ")
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        words = " ".join(f"{one.name.upper()}{'...' if one.nargs == -1 else ''}" for one in arguments)
        parts += [
            f"## {name}",
            "",
            text.strip(),
            "",
            "```text",
            f"trustmix {name} {words} [OPTIONS]".replace("  ", " "),
        ]
        parts += ["```", "", "For example:", "", "```text", " ".join(example.split()), "```", ""]
        rows = [_row(one) for one in command.params if "--help" not in one.opts]
        parts += ["| | default | |", "|---|---|---|", *rows, ""] if rows else []
    return "\n".join(parts)


def _row(one: Any) -> str:
    option = one.param_type_name == "option"
    name = ", ".join(one.opts) if option else one.name.upper()
    default = "" if not option or one.default is None or one.default is False else f"`{one.default}`"
    return f"| `{name}` | {default} | {getattr(one, 'help', '') or ''} |"


def api() -> str:
    """Return a table of the names of the package, and a section for each room with the documentation of its names."""
    package = importlib.import_module("trustmix")
    rooms = {room: importlib.import_module(f"trustmix.{room}") for room in ROOMS}
    homes = {id(getattr(module, name)): module for module in reversed(rooms.values()) for name in public_names(module)}
    parts = ["## trustmix", "", "| name | |", "|---|---|"]
    for name in public_names(package):
        entry = getattr(package, name)
        home = homes.get(id(entry), package).__name__
        parts.append(f"| [`tm.{name}`][{home}.{name}] | {inspect.cleandoc(entry.__doc__).splitlines()[0]} |")
    parts += [f"\n::: trustmix.{name}" for name in public_names(package) if id(getattr(package, name)) not in homes]
    for room, module in rooms.items():
        parts += ["", f"## trustmix.{room}", "", inspect.cleandoc(module.__doc__ or "")]
        parts += [f"\n::: {module.__name__}.{name}" for name in public_names(module)]
    return "\n".join(parts)


def public_names(module: ModuleType) -> list[str]:
    """Return the names in `__all__`, or, of a module without it, those of the classes and functions that it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [name for name, entry in vars(module).items() if getattr(entry, "__module__", "") == module.__name__]


def results() -> str:
    """RESULTS.md below its title, its links as they are from here."""
    text = (ROOT / "RESULTS.md").read_text("utf-8").partition("\n")[2]
    text = PICTURE.sub(r"](images/\1)", text)
    return text.replace("](docs/", "](").replace("](benchmarks/results/", "](results/")


def result_page(text: str) -> str:
    """A page of `benchmarks/results`, its links as they are from the folder `results` of the documentation."""
    text = PICTURE.sub(r"](../images/\1)", text)
    return text.replace("](../../docs/", "](../").replace("](../../RESULTS.md", "](../results.md")

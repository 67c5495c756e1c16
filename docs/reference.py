"""Pages that the code itself writes when the documentation is built: every setting, every command, the results.

A page says where by a line such as `<!-- every setting -->`; what stands there comes from the recipe's own model, from
the command line's own parser, and from RESULTS.md.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trustmix.aggregation.rules import RULES
from trustmix.attacks.byzantine_engine import ATTACKS
from trustmix.cli import app
from trustmix.data import DATASETS
from trustmix.experiment.config import ModelConfig, StudentConfig
from trustmix.experiment.recipe import Recipe
from trustmix.federation import CENTRALIZED, ENGINES, LOCAL_ONLY, OPTIMIZERS
from trustmix.methods.registry import SERVERS
from trustmix.models import MODELS
from trustmix.wire import CODECS

NAMES = {
    "rule": [*RULES.names(), *SERVERS, LOCAL_ONLY, CENTRALIZED],
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

ROOT = Path(__file__).parents[1]
PICTURE = re.compile(r"\]\((benchmarks/[^)]*\.(?:svg|png))\)")


def on_files(files: Files, config: Any) -> Files:
    """The documentation's files, and the pictures that RESULTS.md shows."""
    for path in PICTURE.findall((ROOT / "RESULTS.md").read_text("utf-8")):
        files.append(File.generated(config, f"images/{Path(path).name}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(text: str, **_: Any) -> str:
    """The page with what the code knows filled in; mkdocs calls this for each page."""
    for marker, write in (("every setting", settings), ("every command", commands), ("the results", results)):
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
        told = f"; one of {', '.join(f'`{choice}`' for choice in choices)}" if choices else ""
        yield f"| `{path}` | `{default}` | {info.description}{told} |"


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


def results() -> str:
    """RESULTS.md below its title, its links as they are from here."""
    text = (ROOT / "RESULTS.md").read_text("utf-8").partition("\n")[2]
    return PICTURE.sub(lambda found: f"](images/{Path(found[1]).name})", text).replace("](docs/", "](")

"""Parts of pages that are generated from the code: settings, commands, public names, results.

`python docs/reference.py` writes the settings and the commands into `settings.md` and `cli.md`, below `GENERATED`.
When the site is built, a line such as `<!-- every public name -->` is replaced: by the documentation of the names in
the `__all__` of every room, or by RESULTS.md.
"""

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import typer

from trustmix.cli import app
from trustmix.settings.reference import TOP, describe_settings

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOMS = (
    *("aggregation", "density", "metrics", "models", "data", "wire", "privacy", "learners", "federation", "callbacks"),
    *("theory", "attacks", "engines", "methods", "settings", "experiment", "sweeps", "report", "transport", "deploy"),
)
"""Rooms in the order of the page of the API: each imports only earlier ones. The commands have a page of their own."""

ROOT = Path(__file__).parents[1]
GENERATED = "<!-- generated from the code by docs/reference.py: what is below this line is not edited by hand -->\n"
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
    writers = {"every public name": api, "the results": results}
    for marker, write in writers.items():
        line = f"<!-- {marker} -->"
        if line in text:
            text = text.replace(line, write())
    return text


def write_pages(folder: Path) -> None:
    """Write the settings and the commands into the pages `settings.md` and `cli.md` of a folder, below their line."""
    for name, write in (("settings.md", settings), ("cli.md", commands)):
        page = folder / name
        written, line, _ = page.read_text("utf-8").partition(GENERATED)
        if not line:
            raise SystemExit(f"{page} has no line {GENERATED.strip()}; put it where the generated text begins.")
        page.write_text(f"{written}{line}\n{write().rstrip()}\n", "utf-8")


def settings() -> str:
    """A table for each section of a recipe."""
    parts: list[str] = []
    for section in describe_settings():
        title = "The top level" if section.name == TOP else f"[{section.name}]"
        parts += [f"## {title}", "", section.text, "", "| setting | default | meaning |", "|---|---|---|"]
        for one in section.settings:
            listed = f"; one of {', '.join(f'`{choice}`' for choice in one.choices)}" if one.choices else ""
            parts.append(f"| `{one.path}` | `{one.default}` | {one.meaning}{listed} |")
        parts.append("")
    return "\n".join(parts)


def commands() -> str:
    """Every command with its arguments and options."""
    group: Any = typer.main.get_command(app)
    parts: list[str] = []
    for name, command in group.commands.items():
        text, _, example = inspect.cleandoc(command.help or "").partition("Example: ")
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        words = " ".join(_word(one) for one in arguments)
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
        parts += ["| argument or option | default | meaning |", "|---|---|---|", *rows, ""] if rows else []
    return "\n".join(parts)


def _word(argument: Any) -> str:
    word = f"{argument.name.upper()}{'...' if argument.nargs == -1 else ''}"
    return word if argument.required else f"[{word}]"


def _row(one: Any) -> str:
    option = one.param_type_name == "option"
    name = ", ".join(one.opts) if option else one.name.upper()
    unset = one.default is None or one.default is False or one.default == ""
    default = f"`{one.default}`" if option and not unset else ""
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


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs")

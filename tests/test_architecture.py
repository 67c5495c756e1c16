"""The page about the architecture states what is true of the source: its rooms exist, and imports point one way."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/trustmix"
PAGE = (ROOT / "docs/architecture.md").read_text("utf-8")
PICTURE = (ROOT / "docs/images/architecture.svg").read_text("utf-8")

ROOMS = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)
"""From the top down: a room imports only rooms that come later."""
MODULES = {file.stem for file in SOURCE.glob("*.py")} - {"__init__", *ROOMS}
"""Single modules below all rooms."""


class Import(NamedTuple):
    """A place in the source and the room or module that it imports; "trustmix" is the package itself."""

    origin: str
    target: str
    place: str


def imports() -> Iterator[Import]:
    for file in sorted(SOURCE.rglob("*.py")):
        path = file.relative_to(SOURCE)
        if path != Path("__init__.py"):
            origin = path.parts[0].removesuffix(".py")
            for line, name in imported_names(ast.parse(file.read_text("utf-8"))):
                package, _, rest = name.partition(".")
                if package == "trustmix":
                    target = rest.partition(".")[0]
                    known = target in ROOMS or target in MODULES
                    yield Import(origin, target if known else "trustmix", f"{path}:{line}")


def imported_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def format_imports(found: Iterator[Import]) -> str:
    return "\n".join(dict.fromkeys(f"{one.place} imports {one.target}" for one in found))


def test_the_page_names_every_room_and_no_other() -> None:
    folders = {file.parent.name for file in SOURCE.glob("*/__init__.py")}
    assert set(ROOMS) == folders | {"metrics"}
    assert len(ROOMS) == len(set(ROOMS))


def test_the_page_names_every_module_below_the_rooms() -> None:
    for module in MODULES:
        assert f"`{module}`" in PAGE, module


def test_every_file_that_the_page_names_exists() -> None:
    for name in re.findall(r"`([\w/]+\.py)`", PAGE):
        assert (SOURCE / name).is_file() or (ROOT / name).is_file(), name


def test_the_picture_names_rooms_that_exist() -> None:
    named = re.findall(r'<text class="room"[^>]*>(\w+)</text>', PICTURE)
    assert named
    assert set(named) <= set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    top, *others = ROOMS
    order = [top, "trustmix", *others]  # the public names of the package are gathered from all rooms but the top one
    allowed = {*order[order.index(room) :], *MODULES}
    against = format_imports(one for one in imports() if one.origin == room and one.target not in allowed)
    assert not against, against


def test_a_module_below_the_rooms_imports_no_room() -> None:
    against = format_imports(one for one in imports() if one.origin in MODULES and one.target not in MODULES)
    assert not against, against


def test_flowers_internals_are_imported_by_one_file() -> None:
    public = ("flwr.app.", "flwr.serverapp.", "flwr.clientapp.")
    found = set()
    for file in SOURCE.rglob("*.py"):
        for _, name in imported_names(ast.parse(file.read_text("utf-8"))):
            if name.startswith("flwr.") and not (name.startswith(public) and name.count(".") == 2):
                found.add(file.relative_to(SOURCE).as_posix())
    assert found == {"transport/flower_internals.py"}

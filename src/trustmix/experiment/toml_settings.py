"""Settings as TOML: read from a file, changed on the command line, written back with every value spelled out."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trustmix.errors import TrustmixError


def read(file: Path) -> dict[str, Any]:
    """The settings in a file."""
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise TrustmixError(f"{file} is not a TOML file: it is not UTF-8 text.") from error
    except OSError as error:
        raise TrustmixError(f"{file} could not be read ({error.strerror}).") from error
    return parse(text, str(file))


def parse(text: str, where: str) -> dict[str, Any]:
    """The settings in a text; `where` names it in the complaint.

    >>> parse("rounds = 3", "a note")
    {'rounds': 3}
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TrustmixError(f"{where} is not valid TOML: {error}.") from error


def override(fields: dict[str, Any], change: str) -> None:
    """Put 'split.classes_per_client=3' into the fields."""
    path, equals, text = change.partition("=")
    *sections, key = path.strip().split(".")
    if not equals or not key:
        raise TrustmixError(f'--set takes key=value, such as rule=avg or split.classes_per_client=3, not "{change}".')
    value = parse_value(text)
    for section in sections:
        inner = fields.get(section)
        if isinstance(inner, list):
            raise TrustmixError(f'"{change}" sets one of several {section} tables; change them in the recipe itself.')
        fields[section] = dict(inner) if isinstance(inner, Mapping) else {}
        fields = fields[section]
    if sections and key == "name" and fields.get(key) != value:
        fields.clear()  # the other settings of the section were those of the old name
    fields[key] = value


def parse_value(text: str) -> Any:
    """The value a text stands for on the command line: TOML, and what is no TOML counts as a string.

    So does `nan`, which is an attack and no setting's number.

    >>> parse_value("{ tau = 0.4 }"), parse_value("suwa"), parse_value("nan")
    ({'tau': 0.4}, 'suwa', 'nan')
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
    return value if value == value else text.strip()  # nan alone differs from itself


def write(fields: Mapping[str, Any]) -> str:
    """Fields as TOML: plain values first, then one table a section, or an array of tables for a list of them."""
    plain = {key: value for key, value in fields.items() if not _is_table(value)}
    lines = [f"{key} = {toml_value(value)}" for key, value in plain.items()]
    for key, value in fields.items():
        if _is_table(value):
            for table in value if isinstance(value, (list, tuple)) else [value]:
                heading = f"[[{key}]]" if isinstance(value, (list, tuple)) else f"[{key}]"
                lines += ["", heading, *(f"{name} = {toml_value(entry)}" for name, entry in table.items())]
    return "\n".join(lines) + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, (list, tuple)) and len(value) > 0 and isinstance(value[0], Mapping)
    )


def toml_value(value: Any) -> str:
    """A TOML value; JSON's strings, numbers, booleans and flat lists are TOML's too."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml_value(entry)}" for key, entry in value.items()) + " }"
    return "inf" if value == float("inf") else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

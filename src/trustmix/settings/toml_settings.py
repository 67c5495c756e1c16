"""Settings as TOML: read from a file, overridden on the command line, written with every value."""

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from trustmix.errors import TrustmixError


def read(file: Path) -> dict[str, Any]:
    """Read the settings in a file.

    Parameters
    ----------
    file : Path
        A TOML file.

    Returns
    -------
    dict
        The settings by key; a section is a dictionary.

    Raises
    ------
    TrustmixError
        If the file cannot be read or is not TOML.
    """
    if file.exists() and not file.is_file():
        raise TrustmixError(f"{file} is not a TOML file, but a folder, a device or a pipe.")
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise TrustmixError(f"{file} is not a TOML file: it is not UTF-8 text.") from error
    except OSError as error:
        raise TrustmixError(f"{file} could not be read ({error.strerror}).") from error
    return parse(text, str(file))


def parse(text: str, where: str) -> dict[str, Any]:
    """Parse the settings in a text.

    Parameters
    ----------
    text : str
        TOML.
    where : str
        The name of the text in an error message.

    Returns
    -------
    dict
        The settings by key; a section is a dictionary.

    Raises
    ------
    TrustmixError
        If the text is not TOML.

    Examples
    --------
    >>> parse("rounds = 3", "a note")
    {'rounds': 3}
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
        raise TrustmixError(f"{where} is not valid TOML: {error}.") from error


def override(fields: dict[str, Any], change: str) -> None:
    """Change one setting in place.

    Parameters
    ----------
    fields : dict
        Settings by key.
    change : str
        `key=value` with the key's sections in front of it, as on the command line. Another `name` or `source` of a
        section removes the section's other settings, which belong to the old one.

    Raises
    ------
    TrustmixError
        If the text has another form or the section is a list of tables.

    Examples
    --------
    >>> fields = {"split": {"kind": "classes"}}
    >>> override(fields, "split.classes_per_client=3")
    >>> fields
    {'split': {'kind': 'classes', 'classes_per_client': 3}}
    """
    path, equals, text = change.partition("=")
    *sections, key = path.strip().split(".")
    if not equals or not key:
        raise TrustmixError(f'--set takes key=value, such as rule=avg or split.classes_per_client=3, not "{change}".')
    if not is_unicode(change):
        raise TrustmixError(f"--set takes UTF-8 text, not {ascii(change)[:80]}.")
    value = parse_value(text)
    for section in sections:
        inner = fields.get(section)
        if isinstance(inner, list):
            raise TrustmixError(f'"{change}" sets one of several {section} tables; change them in the recipe itself.')
        fields[section] = dict(inner) if isinstance(inner, Mapping) else {}
        fields = fields[section]
    if resets_section(change) and fields.get(key) != value:
        fields.clear()
    fields[key] = value


def resets_section(change: str) -> bool:
    """Whether a change names what a section is about, so that the section's other settings do not apply to it.

    Parameters
    ----------
    change : str
        `key=value`, as on the command line.

    Returns
    -------
    bool

    Examples
    --------
    >>> resets_section("model.source=my_model:wide"), resets_section("model.width=8")
    (True, False)
    """
    return change.partition("=")[0].strip().endswith((".name", ".source"))


def is_unicode(text: str) -> bool:
    r"""Whether a text can be written as UTF-8: bytes of a command line that cannot become lone surrogates.

    Parameters
    ----------
    text : str
        A text.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_unicode("é"), is_unicode("\udce9")
    (True, False)
    """
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def parse_value(text: str) -> Any:
    """Parse a value of the command line.

    Parameters
    ----------
    text : str
        A TOML value; any other text counts as a string. So does `nan`, which names an attack.

    Returns
    -------
    object
        The value.

    Examples
    --------
    >>> parse_value("{ tau = 0.4 }"), parse_value("suwa"), parse_value("nan")
    ({'tau': 0.4}, 'suwa', 'nan')
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text.strip()
    return value if value == value else text.strip()  # nan alone differs from itself


def write(fields: Mapping[str, object]) -> str:
    """Format settings as a TOML document.

    Parameters
    ----------
    fields : mapping of str to object
        Settings by key; None, which TOML does not have, is left out.

    Returns
    -------
    str
        The document.

    Examples
    --------
    >>> print(write({"rounds": 3, "student": None, "rule": {"tau": float("inf")}}), end="")
    rounds = 3
    <BLANKLINE>
    [rule]
    tau = inf
    """
    return tomli_w.dumps(_without_none(fields))


def _without_none(value: object) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(entry) for key, entry in value.items() if entry is not None}
    return [_without_none(entry) for entry in value] if isinstance(value, list | tuple) else value


def toml_value(value: object) -> str:
    """Format one value as TOML on one line, which `tomli_w` does not do for arrays and tables.

    Directories of a sweep are named after these texts.

    Parameters
    ----------
    value : object
        A string, a number, a boolean, or lists and tables of them.

    Returns
    -------
    str
        The text.

    Raises
    ------
    TypeError
        If the value is anything else.

    Examples
    --------
    >>> toml_value({"tau": 0.4, "steps": [1, 2]})
    '{ tau = 0.4, steps = [1, 2] }'
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml_value(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

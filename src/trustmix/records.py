"""Records: JSON objects with a version, checked before anything is made of them.

A record carries the version of its format under the key `format`; one without it is of version 1. A new field does not
change the version, since readers ignore fields that they do not know; anything that they would misread does.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from trustmix.errors import StorageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RecordT = TypeVar("RecordT", bound="DataclassInstance")


def check_format(found: object, supported: int, source: str) -> None:
    """Refuse a version of a format that this version of trustmix does not read.

    Parameters
    ----------
    found
        The version in the file.
    supported
        The newest version that is read.
    source
        The name of the file in an error message.

    Raises
    ------
    StorageError
        If the version is newer or is no version.

    Examples
    --------
    >>> check_format(2, 1, "run/recipe.toml")
    Traceback (most recent call last):
    ...
    trustmix.errors.StorageError: run/recipe.toml has format 2; this version of trustmix reads format 1: upgrade it.
    """
    if type(found) is not int or not 1 <= found <= supported:
        raise StorageError(
            f"{source} has format {found!r}; this version of trustmix reads format {supported}: upgrade it."
        )


def validate_record(record: object, supported: int, source: str) -> dict[str, Any]:
    """Check that a record is an object of a format that this version of trustmix reads.

    Parameters
    ----------
    record
        A JSON value that was read; without the key `format` it is of version 1.
    supported
        The newest version that is read.
    source
        The name of the record in an error message.

    Returns
    -------
    dict
        The fields of the record without `format`.

    Raises
    ------
    StorageError
        If the record is not an object or is of a newer version.

    Examples
    --------
    >>> validate_record({"format": 1, "round": 3}, 1, "rounds.jsonl")
    {'round': 3}
    """
    if not isinstance(record, dict):
        raise StorageError(f"{source} holds {json.dumps(record)[:60]} where an object with named fields belongs.")
    check_format(record.get("format", 1), supported, source)
    return {key: value for key, value in record.items() if key != "format"}


def select_fields(kind: type["DataclassInstance"], found: Mapping[str, Any]) -> dict[str, Any]:
    """Select the entries that a dataclass has a field for; a newer trustmix may have written more.

    Parameters
    ----------
    kind
        A dataclass.
    found
        Values by name.

    Returns
    -------
    dict
        The values whose names are fields of the dataclass.
    """
    known = {field.name for field in fields(kind)}
    return {name: value for name, value in found.items() if name in known}


def validate_types(types: Mapping[str, Any], found: Mapping[str, Any], source: str) -> None:
    """Check the types of the values of a record; numbers must be finite, integers of at most 64 bits.

    Parameters
    ----------
    types
        The type of each field by name, such as the type hints of a dataclass.
    found
        Values by name; fields without a value or without a type are not checked.
    source
        The name of the record in an error message.

    Raises
    ------
    StorageError
        If a value is of another type.

    Examples
    --------
    >>> validate_types({"round": int}, {"round": "three"}, "rounds.jsonl")
    Traceback (most recent call last):
    ...
    trustmix.errors.StorageError: rounds.jsonl: round is "three" (input should be a valid integer).
    """
    for name, value in found.items():
        if name in types:
            try:
                _type_adapter(types[name]).validate_python(value)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                shown = json.dumps(first["input"], default=str)[:60] if _is_printable(first["input"]) else "too large"
                reason = first["msg"][0].lower() + first["msg"][1:]
                raise StorageError(f"{source}: {name} is {shown} ({reason}).") from error


def _is_printable(value: object) -> bool:
    """Whether Python writes the value: integers of thousands of digits it does not."""
    return not isinstance(value, int) or abs(value) < 2**64


@lru_cache(maxsize=256)
def _type_adapter(kind: Any) -> TypeAdapter[Any]:
    config = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    return TypeAdapter(_bound_integers(kind), config=config)


def _bound_integers(kind: Any) -> Any:
    """The type with integers of at most 64 bits, in containers too."""
    if kind is int:
        return Annotated[int, Field(ge=-(2**63), lt=2**63)]
    origin, parts = get_origin(kind), get_args(kind)
    return origin[tuple(map(_bound_integers, parts))] if origin in (dict, list) and parts else kind


def parse_record(kind: type[RecordT], record: object, supported: int, source: str) -> RecordT:
    """Build a dataclass from a record of it; fields that the dataclass does not have are ignored.

    Parameters
    ----------
    kind
        A dataclass.
    record, supported, source
        As in `validate_record`.

    Returns
    -------
    dataclass instance
        The instance.

    Raises
    ------
    StorageError
        If the record is not an object, is of another version, lacks a field or has one of another type.
    """
    found = select_fields(kind, validate_record(record, supported, source))
    validate_types(get_type_hints(kind), found, source)
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in required if name not in found]
    if missing:
        raise StorageError(f"{source} is no record of a {kind.__name__}; it lacks {', '.join(missing)}.")
    return kind(**found)

"""Tables of text and labels from the files in which people have them: csv, JSON lines, parquet; gz and xz unpacked.

A table is a dict of columns. Nothing is guessed: a column that is not there is an error that names those that are.
"""

import bz2
import csv
import gzip
import importlib
import io
import json
import lzma
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from trustmix.errors import TrustmixError

Table: TypeAlias = dict[str, list[Any]]

PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
KINDS = (".csv", ".jsonl", ".parquet")


def kind_of(path: Path) -> str:
    """The kind of table a file holds by its name, '' if none; 'train.csv.gz' is a '.csv'.

    >>> kind_of(Path("train.jsonl.xz"))
    '.jsonl'
    """
    ending = Path(path.stem).suffix if path.suffix in PACKED else path.suffix
    return ending if ending in KINDS else ""


def read_table(path: Path, columns: Sequence[str] | None = None) -> Table:
    """A file's columns. `columns` names those of a csv file that has no header line."""
    readers = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
    kind = kind_of(path)
    if not kind:
        raise TrustmixError(f"{path} is no table: its name must end in {', '.join(KINDS)} (or that with .gz, .xz).")
    table = readers[kind](path, columns)
    if not table or not any(table.values()):
        raise TrustmixError(f"{path} holds no rows.")
    return table


def column(table: Table, name: str, path: Path, setting: str) -> list[Any]:
    """One column, or a sentence that names the setting and the columns there are."""
    if name not in table:
        raise TrustmixError(f'{path} has no column "{name}" ({setting}); it has {", ".join(table)}.')
    return table[name]


def _lines(path: Path) -> io.StringIO:
    """The unpacked text of a file."""
    try:
        opener = PACKED.get(path.suffix)
        raw: bytes = opener(path).read() if opener else path.read_bytes()
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise TrustmixError(f"{path} could not be read ({error}).") from error
    try:
        return io.StringIO(raw.decode("utf-8-sig"), newline="")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise TrustmixError(f"{path}, line {line}: this is not UTF-8 text; save the file as UTF-8.") from error


def _csv(path: Path, columns: Sequence[str] | None) -> Table:
    csv.field_size_limit(2**24)
    try:
        rows = list(csv.reader(_lines(path)))
    except csv.Error as error:
        raise TrustmixError(f"{path} is not a csv file ({error}).") from error
    rows = [row for row in rows if row]  # blank lines
    names = list(columns) if columns else rows.pop(0) if rows else []
    odd = next((name for index, name in enumerate(names) if not name.strip() or name in names[:index]), None)
    if odd is not None:
        fault = f'has the column "{odd}" twice' if odd.strip() else "has a column without a name"
        raise TrustmixError(f"{path} {fault}; every column needs a name of its own.")
    for number, row in enumerate(rows):
        if len(row) != len(names):
            raise TrustmixError(f"{path}, row {number + 1}: {len(row)} fields, but the columns are {', '.join(names)}.")
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def _jsonl(path: Path, _columns: Sequence[str] | None) -> Table:
    rows = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            rows.append(dict(json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            raise TrustmixError(f"{path}, line {number} is not a JSON object ({error}).") from error
    names = rows[0] if rows else {}
    # a column counts if every row has it; others, such as notes on some rows, are left alone
    return {name: [row[name] for row in rows] for name in names if all(name in row for row in rows)}


def _parquet(path: Path, _columns: Sequence[str] | None) -> Table:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise TrustmixError(f'{path} needs pyarrow to be read: pip install "trustmix[hub]".') from error
    try:
        table: Table = parquet.read_table(path).to_pydict()
    except Exception as error:  # pyarrow has errors of its own, of many kinds
        raise TrustmixError(f"{path} is not a whole parquet file ({error}).") from error
    return table

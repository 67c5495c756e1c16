"""Tables from csv, JSON lines and parquet files; gz, xz and bz2 are unpacked.

A column that is not there is an error that names those that are. Rows are counted from 1, without the header of a csv
file and without blank lines.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trustmix.data.unpacking import COMPRESSED, read_unpacked, require_file
from trustmix.errors import TrustmixError
from trustmix.imports import require_extra

TABLE_FORMATS = (".csv", ".jsonl", ".parquet")


class Table(dict[str, list[Any]]):
    """The columns of a table by name: a dict of lists of the same length.

    Parameters
    ----------
    columns
        The values of each column.
    incomplete
        Columns that only some rows of a jsonl file have, such as notes, with the first row that has no value. They are
        not among the columns.

    Examples
    --------
    >>> animals = Table({"legs": [4, 2]}, incomplete={"note": 2})
    >>> list(animals)
    ['legs']
    """

    def __init__(self, columns: Mapping[str, list[Any]], incomplete: Mapping[str, int] | None = None) -> None:
        super().__init__(columns)
        self.incomplete = dict(incomplete or {})


def table_format(path: Path) -> str:
    """Return the format of a table by its file name.

    Parameters
    ----------
    path
        A file; it need not exist.

    Returns
    -------
    str
        ".csv", ".jsonl" or ".parquet", without the suffix of a compression; an empty string if the file is no table.

    Examples
    --------
    >>> table_format(Path("train.jsonl.xz"))
    '.jsonl'
    """
    suffix = Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix
    return suffix if suffix in TABLE_FORMATS else ""


def read_table(path: Path, columns: Sequence[str] | None = None) -> Table:
    r"""Read the columns of a table.

    Parameters
    ----------
    path
        A csv, jsonl or parquet file, also compressed.
    columns
        Names of the columns of a csv file without a header line.

    Returns
    -------
    Table
        The columns that every row has. Values of csv files are text.

    Raises
    ------
    TrustmixError
        If the file is no table, cannot be read or holds no rows.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "animals.csv"
    >>> _ = file.write_text("legs,label\n4,cat\n2,bird\n")
    >>> read_table(file)
    {'legs': ['4', '2'], 'label': ['cat', 'bird']}
    """
    readers = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
    suffix = table_format(path)
    if not suffix:
        formats = ", ".join(TABLE_FORMATS)
        raise TrustmixError(f"{path} is no table: its name must end in {formats} (or that with .gz, .xz).")
    table = readers[suffix](path, columns)
    if not any(table.values()) and not table.incomplete:
        raise TrustmixError(f"{path} holds no rows.")
    return table


def column(table: Table, name: str, path: Path, setting: str) -> list[Any]:
    """Return one column of a table.

    Parameters
    ----------
    table
        The table.
    name
        Name of the column.
    path
        The file of the table, for the message.
    setting
        The setting that names the column, for the message.

    Returns
    -------
    list
        The value of each row.

    Raises
    ------
    TrustmixError
        If there is no such column, or a row has no value in it.

    Examples
    --------
    >>> column(Table({"legs": [4, 2]}), "legs", Path("animals.csv"), "data.columns")
    [4, 2]
    """
    if name in table.incomplete:
        raise missing_value(path, table.incomplete[name], name, setting)
    if name not in table:
        raise TrustmixError(f'{path} has no column "{name}" ({setting}); it has {", ".join(table)}.')
    return table[name]


def missing_value(path: Path, row: int, name: str, setting: str) -> TrustmixError:
    """Return the error for a row without a value.

    Parameters
    ----------
    path
        The file of the table.
    row
        The row, from 1.
    name
        Name of the column.
    setting
        The setting that names the column.

    Returns
    -------
    TrustmixError
        The error to raise.
    """
    return TrustmixError(
        f'{path}, row {row}: there is no value in the column "{name}" ({setting}); fill it in or leave the row out.'
    )


def _open_text(path: Path) -> io.StringIO:
    """Return the unpacked text of a file."""
    raw = read_unpacked(path)
    try:
        return io.StringIO(raw.decode("utf-8-sig"), newline="")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise TrustmixError(f"{path}, line {line}: this is not UTF-8 text; save the file as UTF-8.") from error


def _read_csv(path: Path, columns: Sequence[str] | None) -> Table:
    csv.field_size_limit(2**24)
    try:
        rows = [row for row in csv.reader(_open_text(path)) if row]  # without blank lines
    except csv.Error as error:
        raise TrustmixError(f"{path} is not a csv file ({error}).") from error
    names = list(columns) if columns else rows.pop(0) if rows else []
    counts = Counter(names)
    odd = next((name for name in names if not name.strip() or counts[name] > 1), None)
    if odd is not None:
        fault = f'has the column "{odd}" twice' if odd.strip() else "has a column without a name"
        raise TrustmixError(f"{path} {fault}; every column needs a name of its own.")
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise TrustmixError(f"{path}, row {number}: {len(row)} fields, but the columns are {', '.join(names)}.")
    return Table({name: [row[index] for row in rows] for index, name in enumerate(names)})


def _read_jsonl(path: Path, _columns: Sequence[str] | None) -> Table:
    rows = []
    for number, line in enumerate(_open_text(path), 1):
        if not line.strip():
            continue
        try:
            rows.append(dict(json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            raise TrustmixError(f"{path}, line {number} is not a JSON object ({error}).") from error
    names = dict.fromkeys(name for row in rows for name in row)
    first = {name: next((number for number, row in enumerate(rows, 1) if name not in row), None) for name in names}
    incomplete = {name: number for name, number in first.items() if number is not None}
    return Table({name: [row[name] for row in rows] for name in names if name not in incomplete}, incomplete)


def _read_parquet(path: Path, _columns: Sequence[str] | None) -> Table:
    require_file(path)
    parquet = require_extra("pyarrow.parquet", str(path), "hub")
    try:
        return Table(parquet.read_table(path).to_pydict())
    except Exception as error:  # pyarrow has errors of its own, of many kinds
        raise TrustmixError(f"{path} is not a whole parquet file ({error}).") from error

"""Results of many runs as a table in the layout of a paper; `table_formats` writes it in several formats.

The last swept setting makes the columns, the others make the rows. A value is the mean of the best accuracy over seeds
with its standard deviation (n - 1). The best of every column is marked.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from trustmix.federation import method_label
from trustmix.settings.toml_settings import toml_value


@dataclass(frozen=True)
class RunResult:
    """The result of one run of a sweep."""

    settings: Mapping[str, object]
    """The run's value of every swept setting."""
    seed: int
    summary: Mapping[str, float | None]
    """The run's summary.json."""

    @property
    def best(self) -> float | None:
        """The best value of the metric that runs are compared by."""
        return best_of(self.summary)


def best_of(summary: Mapping[str, float | None]) -> float | None:
    """The best value of the metric that runs are compared by; that was the accuracy in summaries of earlier versions.

    >>> best_of({"best": 0.5, "best_accuracy": 0.75}), best_of({"best_accuracy": 0.75})
    (0.5, 0.75)
    """
    return summary.get("best", summary.get("best_accuracy"))


@dataclass(frozen=True)
class MeanStd:
    """Mean and standard deviation over seeds.

    Without a value there is no mean, and without a second value there is no standard deviation.

    >>> MeanStd.of([0.5, 0.75])
    MeanStd(mean=0.625, std=0.1767766952966369, n=2)
    """

    mean: float | None
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "MeanStd":
        """Compute mean and standard deviation.

        Parameters
        ----------
        values : iterable of float or None
            One value per seed; None where it is unknown.

        Returns
        -------
        MeanStd
            The statistics of the known values.
        """
        known = [value for value in values if value is not None]
        mean = statistics.fmean(known) if known else None
        return cls(mean, statistics.stdev(known) if len(known) > 1 else None, len(known))

    def percent(self, plus_minus: str = "±") -> str:
        """Format a fraction in per cent.

        Parameters
        ----------
        plus_minus : str
            The sign before the standard deviation.

        Returns
        -------
        str
            Mean and standard deviation as a table shows them, "-" without a mean.

        Examples
        --------
        >>> MeanStd(0.6, 0.1414, 2).percent()
        '60.0 ± 14.1'
        """
        if self.mean is None:
            return "-"
        deviation = "" if self.std is None else f" {plus_minus} {100 * self.std:.1f}"
        return f"{100 * self.mean:.1f}{deviation}"


@dataclass(frozen=True)
class ResultTable:
    """A table before it has a format. Its names are texts for people to read."""

    row_keys: Sequence[str]
    """The settings that make the rows."""
    column_key: str | None
    """The setting that makes the columns; None with one swept setting, which gives a single column."""
    columns: Sequence[str]
    """The name of every column."""
    rows: Sequence[Sequence[str]]
    """The values of `row_keys` in every row."""
    values: Sequence[Sequence[MeanStd]]
    """The accuracies, by row and column."""

    @property
    def best(self) -> list[float | None]:
        """The largest mean of every column; None in a table of one row, which has nothing to compare."""
        if len(self.rows) < 2:
            return [None] * len(self.columns)
        columns = zip(*self.values, strict=True)
        return [max((value.mean for value in column if value.mean is not None), default=None) for column in columns]

    def is_best(self, row: int, column: int) -> bool:
        """Whether a value is the best of its column.

        Parameters
        ----------
        row, column : int
            The value's place in `values`.

        Returns
        -------
        bool
            True for every value that equals the largest mean of the column.
        """
        mean = self.values[row][column].mean
        return mean is not None and mean == self.best[column]

    @property
    def caption(self) -> str:
        """One sentence: the quantity in the table, and the number of seeds."""
        counts = sorted({value.n for row in self.values for value in row if value.n})
        quantity = "Accuracy of the best round in per cent"
        if not counts or counts[-1] == 1:
            return f"{quantity}."
        seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        return f"{quantity}, mean ± standard deviation over {seeds} seeds."


def pivot(over: Mapping[str, Sequence[object]], results: Sequence[RunResult]) -> ResultTable:
    """Arrange results in a table.

    Parameters
    ----------
    over : mapping of str to sequence
        The swept settings and their values. The last setting makes the columns.
    results : sequence of RunResult
        The finished runs; a combination of settings without a run has a value without a mean.

    Returns
    -------
    ResultTable
        A table with a row for every combination of all swept settings but the last.

    Examples
    --------
    >>> results = [RunResult({"rule": "avg"}, seed, {"best_accuracy": 0.5}) for seed in (0, 1)]
    >>> table = pivot({"rule": ["avg", "suwa"]}, results)
    >>> table.rows, [row[0].n for row in table.values]
    ([['AVG'], ['sUWA']], [2, 0])
    """
    keys = list(over)
    outer, inner = (keys[:-1], keys[-1:]) if len(keys) > 1 else (keys, [])
    names = _short_names(keys)
    rows, columns = (list(product(*(over[key] for key in part))) for part in (outer, inner))
    values = [[_best_accuracy(dict(zip(keys, (*row, *col), strict=True)), results) for col in columns] for row in rows]
    return ResultTable(
        row_keys=[names[key] for key in outer],
        column_key=names[inner[0]] if inner else None,
        columns=[setting_label(inner[0], value) for (value,) in columns] if inner else ["accuracy"],
        rows=[[setting_label(key, value) for key, value in zip(outer, row, strict=True)] for row in rows],
        values=values,
    )


def select_results(settings: Mapping[str, object], results: Sequence[RunResult]) -> list[RunResult]:
    """Select the results with exactly these settings.

    Parameters
    ----------
    settings : mapping of str to object
        A value for every swept setting.
    results : sequence of RunResult
        The results to select from.

    Returns
    -------
    list of RunResult
        One result per seed.
    """
    return [result for result in results if result.settings == settings]


def _best_accuracy(settings: Mapping[str, object], results: Sequence[RunResult]) -> MeanStd:
    return MeanStd.of(result.best for result in select_results(settings, results))


def _short_names(keys: Sequence[str]) -> dict[str, str]:
    """Keys without their section, where that leaves no two alike."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)}


def setting_label(key: str, value: object) -> str:
    """Format a swept value for people to read.

    Parameters
    ----------
    key : str
        The setting's dotted name.
    value : object
        The setting's value, as TOML knows it.

    Returns
    -------
    str
        The value; a rule by its name in the paper.

    Examples
    --------
    >>> setting_label("rule", "suwa"), setting_label("rule", {"tau": 0.4}), setting_label("model.hidden", [64, 32])
    ('sUWA', 'tau=0.4', '[64, 32]')
    """
    if key == "rule" and isinstance(value, str):
        return method_label(value)
    return format_value(value)


def format_value(value: object) -> str:
    """Format a setting's value as it would be typed in a command.

    Parameters
    ----------
    value : object
        A value that TOML knows.

    Returns
    -------
    str
        The value; a TOML table without its braces, a string without its quotes.

    Examples
    --------
    >>> format_value("suwa"), format_value(True), format_value({"tau": 0.4})
    ('suwa', 'true', 'tau=0.4')
    """
    if isinstance(value, Mapping):
        return ",".join(f"{key}={format_value(entry)}" for key, entry in value.items())
    return value if isinstance(value, str) else toml_value(value)

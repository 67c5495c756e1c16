"""The output of runs and sweeps: a live bar in a terminal, plain lines elsewhere, and the table at the end.

Commands import this module when they run: it needs rich.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from trustmix.federation import Callback, History, ProgressEvent
    from trustmix.sweeps.schedule import RunOutcome, SweepCallback, SweepProgress

WIDE = 100
"""Columns from which on the bar of a run has room for its clients."""


class Display:
    r"""The progress of a run, as a context manager.

    Parameters
    ----------
    console
        Where the progress is shown.
    title
        A word before each line, such as the name of the method.

    Examples
    --------
    >>> import io
    >>> from trustmix.federation import ProgressEvent
    >>> console = Console(file=io.StringIO(), force_terminal=False)
    >>> with Display(console) as display:
    ...     display.show(ProgressEvent(2, 8, "clients", 0, 20, 0.5))
    >>> console.file.getvalue()
    'round 2/8: asking 20 clients, accuracy so far 50.0 %\n'
    """

    def __init__(self, console: Console, title: str = "") -> None:
        self.console = console
        self.title = f"{title} " if title else ""
        self._live = (
            Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[accuracy]}", markup=False),
                TimeRemainingColumn(),
                TextColumn("left"),
                console=console,
                transient=True,
            )
            if console.is_terminal
            else None
        )
        self._task = self._live.add_task(self.title + "starting", total=1.0, accuracy="") if self._live else None

    def __enter__(self) -> "Display":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, event: "ProgressEvent") -> None:
        """Show how far the run is.

        Parameters
        ----------
        event
            The state of the run.
        """
        percent = "" if event.accuracy is None else f"{100 * event.accuracy:.1f} %"
        stage = "closing" if event.stage == "closing" else f"round {event.round}/{event.rounds}"
        if self._live and self._task is not None:
            asked = f", client {event.done}/{event.asked}" if self.console.width >= WIDE else ""
            accuracy = f"accuracy {percent}" if percent else ""
            text = f"{self.title}{stage}{asked}"
            self._live.update(self._task, completed=event.fraction_done, description=text, accuracy=accuracy)
        elif event.done == 0:
            accuracy = f", accuracy so far {percent}" if percent else ""
            text = f"{self.title}{stage}: asking {event.asked} clients{accuracy}"
            self.console.print(text, highlight=False, soft_wrap=True)


@contextmanager
def run_display(console: Console, title: str = "") -> Iterator["list[Callback]"]:
    """Show the progress of a run.

    Parameters
    ----------
    console
        Where the progress is shown.
    title
        A word before each line, such as the name of the method.

    Yields
    ------
    list of Callback
        The callbacks for the run; empty if the console is quiet.
    """
    from trustmix.federation import ProgressCallback

    if console.quiet:
        yield []
        return
    with Display(console, title) as display:
        yield [ProgressCallback(display.show)]


def comparison_table(histories: dict[str, "History"]) -> Table:
    """Return the table that `demo` and `run` end with.

    Parameters
    ----------
    histories
        The history of each run, by the name of its method.

    Returns
    -------
    Table
        One row for each run.
    """
    table = Table("method", "accuracy", "own classes", "teacher", "effective clients", "MB up", "seconds")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, history in histories.items():
        last, total = history.rounds[-1], history.summary()
        percents = [history.best_accuracy, last.local_accuracy_mean, last.teacher_accuracy]
        cells = ["-" if value is None else f"{100 * value:.1f} %" for value in percents]
        effective = "-" if last.effective_clients is None else f"{last.effective_clients:.1f}"
        table.add_row(Text(name), *cells, effective, f"{total['bytes_up'] / 1e6:.2f}", f"{total['seconds']:.1f}")
    return table


@contextmanager
def sweep_display(console: Console) -> Iterator["SweepCallback"]:
    """Show a sweep: a line for every run that ends and, in a terminal, a bar with the runs under way.

    Parameters
    ----------
    console
        Where the progress is shown.

    Yields
    ------
    SweepCallback
        The callback that the sweep takes.
    """
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("starting", total=None)

    def show_progress(progress: "SweepProgress") -> None:
        if progress.ended:
            line = f"{progress.done}/{progress.total} {describe_outcome(progress.ended)}"
            console.print(line, highlight=False, soft_wrap=True, markup=False)
        text = f"{progress.done}/{progress.total} runs, {len(progress.running)} under way"
        bar.update(task, description=text, completed=progress.done, total=progress.total)

    with bar:
        yield show_progress


def describe_outcome(outcome: "RunOutcome") -> str:
    """Return one line about how a run of a sweep ended.

    Parameters
    ----------
    outcome
        The run that ended.

    Returns
    -------
    str
        Its name with its accuracy and duration, or with the reason of its failure.
    """
    if outcome.reason is not None:
        return f"{outcome.run}: failed: {outcome.reason}"
    accuracy = "-" if outcome.accuracy is None else f"{100 * outcome.accuracy:.1f} %"
    return f"{outcome.run}: {accuracy}, {outcome.seconds:.0f} s"


def format_duration(seconds: float) -> str:
    """Return a duration with the unit that people would use.

    Parameters
    ----------
    seconds
        The duration in seconds.

    Returns
    -------
    str
        The duration in seconds, minutes or hours.

    Examples
    --------
    >>> format_duration(40), format_duration(200), format_duration(9000)
    ('40 s', '3 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_bytes(count: float) -> str:
    """Return a number of bytes with the unit that people would use.

    Parameters
    ----------
    count
        The number of bytes.

    Returns
    -------
    str
        The number in B, kB, MB or GB.

    Examples
    --------
    >>> format_bytes(900), format_bytes(12_300), format_bytes(4_560_000), format_bytes(7.8e9)
    ('900 B', '12.3 kB', '4.6 MB', '7.8 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"

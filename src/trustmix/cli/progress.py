"""What a run or a sweep shows while it goes on: a live bar in a terminal, plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from trustmix.experiment.sweep import RunOutcome, SweepCallback, SweepProgress
from trustmix.federation import Callback, ProgressEvent


class Display(Callback):
    r"""Shows a run: a callback of `run`. Use it as a context manager.

    >>> import io
    >>> console = Console(file=io.StringIO(), force_terminal=False)
    >>> with Display(console) as display:
    ...     display.on_progress(ProgressEvent(2, 8, "clients", 0, 20, 0.5))
    >>> console.file.getvalue()
    'round 2/8: asking 20 clients, accuracy so far 50.0 %\n'
    """

    def __init__(self, console: Console, title: str = "") -> None:
        self.console = console
        self.title = f"{title} " if title else ""
        self._live = (
            Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[accuracy]}"),
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

    def on_progress(self, event: ProgressEvent) -> None:
        """Show where the run is."""
        accuracy = "" if event.accuracy is None else f"accuracy so far {100 * event.accuracy:.1f} %"
        if self._live and self._task is not None:
            stage = "closing" if event.stage == "closing" else f"round {event.round}/{event.rounds}"
            text = f"{self.title}{stage}, client {event.done}/{event.asked}"
            self._live.update(self._task, completed=event.fraction_done, description=text, accuracy=accuracy)
        elif event.done == 0:
            stage = "closing" if event.stage == "closing" else f"round {event.round}/{event.rounds}"
            text = f"{self.title}{stage}: asking {event.asked} clients{', ' + accuracy if accuracy else ''}"
            self.console.print(text, highlight=False, soft_wrap=True)


@contextmanager
def sweep_display(console: Console) -> Iterator[SweepCallback]:
    """Shows a sweep: a line for every run that ends and, in a terminal, a bar with the runs under way."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("starting", total=None)

    def watch(standing: SweepProgress) -> None:
        if standing.ended:
            line = f"{standing.done}/{standing.total} {describe_outcome(standing.ended)}"
            console.print(line, highlight=False, soft_wrap=True, markup=False)
        text = f"{standing.done}/{standing.total} runs, {len(standing.running)} under way"
        bar.update(task, description=text, completed=standing.done, total=standing.total)

    with bar:
        yield watch


def describe_outcome(ended: RunOutcome) -> str:
    """How a run of a sweep ended, in a line."""
    if ended.reason is not None:
        return f"{ended.run}: failed: {ended.reason}"
    accuracy = "-" if ended.accuracy is None else f"{100 * ended.accuracy:.1f} %"
    return f"{ended.run}: {accuracy}, {ended.seconds:.0f} s"


def format_duration(seconds: float) -> str:
    """A length of time as people say it.

    >>> format_duration(40), format_duration(200), format_duration(9000)
    ('40 s', '3 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_bytes(count: float) -> str:
    """A number of bytes as people say it.

    >>> format_bytes(900), format_bytes(12_300), format_bytes(4_560_000), format_bytes(7.8e9)
    ('900 B', '12.3 kB', '4.6 MB', '7.8 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"

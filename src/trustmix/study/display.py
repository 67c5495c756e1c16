"""What a run shows while it goes on: a live bar in a terminal, one plain line a round elsewhere."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from trustmix.federation import Moment


class Display:
    r"""Shows a run: `watch` is what `run` takes. Use it as a context manager.

    >>> import io
    >>> console = Console(file=io.StringIO(), force_terminal=False)
    >>> with Display(console) as display:
    ...     display.watch(Moment(2, 8, "clients", 0, 20, 0.5))
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

    def watch(self, moment: Moment) -> None:
        """Show where the run is."""
        accuracy = "" if moment.accuracy is None else f"accuracy so far {100 * moment.accuracy:.1f} %"
        if self._live and self._task is not None:
            stage = "closing" if moment.stage == "closing" else f"round {moment.round}/{moment.rounds}"
            text = f"{self.title}{stage}, client {moment.done}/{moment.asked}"
            self._live.update(self._task, completed=moment.part, description=text, accuracy=accuracy)
        elif moment.done == 0:
            stage = "closing" if moment.stage == "closing" else f"round {moment.round}/{moment.rounds}"
            text = f"{self.title}{stage}: asking {moment.asked} clients{', ' + accuracy if accuracy else ''}"
            self.console.print(text, highlight=False, soft_wrap=True)

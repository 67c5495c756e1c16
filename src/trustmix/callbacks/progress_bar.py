"""The progress of a run in Python: a bar in a notebook, one line that is written over in a terminal."""

import html
import importlib
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from trustmix.federation.callbacks import Callback, ProgressEvent
from trustmix.federation.history import Round


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook.

    Returns
    -------
    bool
        False in a script, a terminal or a test.

    Examples
    --------
    >>> in_notebook()
    False
    """
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


class ProgressBar(Callback):
    """Shows how far a run is.

    Parameters
    ----------
    file
        Where the line is written outside of notebooks; the standard error by default.

    Examples
    --------
    >>> import io
    >>> bar = ProgressBar(io.StringIO())
    >>> bar.on_progress(ProgressEvent(2, 8, "clients", 20, 20, 0.5))
    >>> bar.file.getvalue().strip()
    'round 2/8, client 20/20, accuracy so far 50.0 %'
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self.file = file or sys.stderr
        self._handle: Any = None
        self._longest = 0

    def on_run_begin(self, rounds: Sequence[Round]) -> None:  # noqa: ARG002 - the interface
        """Show an empty bar, in a notebook."""
        if in_notebook():
            self._handle = _ipython_display().display(_html(0.0, "starting"), display_id=True)

    def on_progress(self, event: ProgressEvent) -> None:
        """Show how many rounds and clients are behind."""
        accuracy = "" if event.accuracy is None else f", accuracy so far {100 * event.accuracy:.1f} %"
        stage = "closing" if event.stage == "closing" else f"round {event.round}/{event.rounds}"
        self._show(event.fraction_done, f"{stage}, client {event.done}/{event.asked}{accuracy}")

    def on_run_end(self, error: BaseException | None) -> None:
        """Fill the bar, or state that the run was ended."""
        self._show(1.0 if error is None else 0.0, "done" if error is None else f"ended by {type(error).__name__}")
        if self._handle is None:
            self.file.write("\n")

    def _show(self, fraction: float, text: str) -> None:
        if self._handle is not None:
            self._handle.update(_html(fraction, text))
            return
        self._longest = max(self._longest, len(text))
        self.file.write("\r" + text.ljust(self._longest))
        self.file.flush()


def _html(fraction: float, text: str) -> Any:
    return _ipython_display().HTML(f'<progress max="1" value="{fraction:.3f}"></progress> {html.escape(text)}')


def _ipython_display() -> Any:
    return importlib.import_module("IPython.display")  # which a notebook has; its functions have no types

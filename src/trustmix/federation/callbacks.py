"""What may watch a run while it goes on: one class with hooks that do nothing unless a callback overrides them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType

import torch

from trustmix.aggregation.base import Aggregator
from trustmix.aggregation.upload import Upload
from trustmix.federation.history import Round


@dataclass(frozen=True)
class ProgressEvent:
    """Where a run is.

    >>> ProgressEvent(round=2, rounds=3, stage="clients", done=5, asked=10, accuracy=None).fraction_done
    0.375
    """

    round: int
    rounds: int
    stage: str
    """"clients" while they work, "closing" after the last round."""
    done: int
    asked: int
    accuracy: float | None
    """Of the last round that is known."""

    @property
    def fraction_done(self) -> float:
        """How much of the run is behind, from 0 to 1."""
        exchanges = self.rounds if self.stage == "closing" else self.round - 1
        return (exchanges + self.done / self.asked) / (self.rounds + 1)


class Callback:
    """Hooks into a run, in the order in which they are called. A callback overrides those that it needs."""

    def on_run_begin(self, rounds: Sequence[Round]) -> None:
        """A run begins, or goes on after these rounds."""

    def on_progress(self, event: ProgressEvent) -> None:
        """Clients were asked, or one of them has answered."""

    def on_round_begin(self, round_: int, aggregator: Aggregator) -> None:
        """An empty aggregator is about to fold the uploads of a round."""

    def on_upload(self, round_: int, upload: Upload) -> None:
        """An upload was folded."""

    def on_teacher(
        self, round_: int, clients: Sequence[str], aggregator: Aggregator, probabilities: torch.Tensor
    ) -> None:
        """The teacher (N, C) of these clients' uploads was computed; it is not sent yet."""

    def on_round_end(self, line: Round) -> None:
        """All is known of a round, and its line is written; the round is not committed yet."""

    def on_run_end(self, error: BaseException | None) -> None:
        """The run is over, or was ended by this error."""


class ProgressCallback(Callback):
    """Calls a function with every `ProgressEvent`.

    >>> events = []
    >>> ProgressCallback(events.append).on_progress(ProgressEvent(1, 3, "clients", 0, 10, None))
    >>> events[0].round
    1
    """

    def __init__(self, function: Callable[[ProgressEvent], None]) -> None:
        self.function = function

    def on_progress(self, event: ProgressEvent) -> None:
        """Call the function."""
        self.function(event)


@contextmanager
def running(callbacks: Sequence[Callback], rounds: Sequence[Round]) -> Iterator[None]:
    """Call `on_run_begin` of every callback, and `on_run_end` of those that have begun, whatever happens in between.

    Parameters
    ----------
    callbacks
        What watches the run.
    rounds
        Those of an earlier part of the run.
    """
    with ExitStack() as stack:
        for callback in callbacks:
            callback.on_run_begin(rounds)
            stack.push(partial(_end, callback))
        yield


def _end(
    callback: Callback,
    _kind: type[BaseException] | None,
    error: BaseException | None,
    _trace: TracebackType | None,
) -> None:
    callback.on_run_end(error)

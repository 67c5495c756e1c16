"""Where a run is, told to whoever watches it while it goes on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class ProgressEvent:
    """Where a run is, for whoever watches it."""

    round: int
    rounds: int
    stage: str
    """"clients" while they work, "closing" after the last round."""
    done: int
    asked: int
    accuracy: float | None
    """Of the last round that is known."""

    @property
    def part(self) -> float:
        """How much of the run is behind, from 0 to 1."""
        exchanges = self.rounds if self.stage == "closing" else self.round - 1
        return (exchanges + self.done / self.asked) / (self.rounds + 1)


ProgressCallback: TypeAlias = Callable[[ProgressEvent], None]


def ignore(moment: ProgressEvent) -> None:
    """Watch nothing."""

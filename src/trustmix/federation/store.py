"""A client's own memory between rounds, kept by round so that a step either happened or did not.

A request of round r goes on from the newest state older than r. If the server died and asks for round r again, the
client goes back and repeats it; two versions are enough, since r + 1 is only asked after r was committed.
"""

from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from trustmix import storage

State: TypeAlias = tuple[dict[str, torch.Tensor], dict[str, Any]]
"""Tensors and JSON-able facts."""


class Store(Protocol):
    """Where the states of one client lie."""

    def before(self, round_: int) -> State | None:
        """The newest state older than the round, if there is any."""

    def put(self, round_: int, state: State) -> None:
        """Keep the state after a round."""


class MemoryStore:
    """Keeps the newest two states in memory, for federations without a run directory."""

    def __init__(self) -> None:
        self._states: dict[int, State] = {}

    def before(self, round_: int) -> State | None:
        """The newest state older than the round, if there is any."""
        older = [r for r in self._states if r < round_]
        return self._states[max(older)] if older else None

    def put(self, round_: int, state: State) -> None:
        """Keep a copy of the state after a round."""
        tensors, facts = state
        self._states[round_] = {name: tensor.detach().clone() for name, tensor in tensors.items()}, dict(facts)
        for stale in [r for r in self._states if r > round_] + sorted(r for r in self._states if r <= round_)[:-2]:
            del self._states[stale]


class DiskStore:
    """Keeps the newest two states as safetensors files in the client's own folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()

    def _rounds(self) -> list[int]:
        return sorted(int(file.stem) for file in self.folder.glob("*.safetensors"))

    def _file(self, round_: int) -> Path:
        return self.folder / f"{round_:06d}.safetensors"

    def before(self, round_: int) -> State | None:
        """The newest state older than the round, if there is any."""
        older = [r for r in self._rounds() if r < round_]
        return storage.read_tensors(self._file(older[-1])) if older else None

    def put(self, round_: int, state: State) -> None:
        """Write the state after a round; versions newer than it belong to a run that was abandoned."""
        storage.write_tensors(self._file(round_), *state)
        rounds = self._rounds()
        for stale in [r for r in rounds if r > round_] + [r for r in rounds if r <= round_][:-2]:
            self._file(stale).unlink(missing_ok=True)

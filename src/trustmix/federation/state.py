"""State between rounds: the server's in a `Checkpoint`, every client's in a `Store`.

A commit is the rename of one small file, server.json. Clients keep their own states by round, so a commit never copies
them, and a run that is killed at any time is resumed from the last commit. A request of round r goes on from the
client's newest state older than r: if the server repeats round r, the client repeats it too. Two states per client are
enough, since round r + 1 is requested only after round r was committed.
"""

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from trustmix import records, storage
from trustmix.aggregation.base import StateDict
from trustmix.errors import StorageError
from trustmix.federation.history import Round

SERVER_FORMAT = 1
"""The version of checkpoint/server.json."""
SERVER_TYPES: dict[str, Any] = {
    "exchange": int,
    "teacher": str | None,
    "memory": str | None,
    "pending": dict[str, Any] | None,
    "states": dict[str, int],
}
"""The fields of checkpoint/server.json."""

State: TypeAlias = tuple[dict[str, torch.Tensor], dict[str, Any]]
"""Tensors by name, and values that JSON can hold by name."""


@dataclass(frozen=True)
class ServerState:
    """The server after an exchange with its clients; the default is the state before the first one."""

    exchange: int = 0
    """The number of the last committed exchange."""
    teacher: bytes | None = None
    """The message that the next requests carry."""
    pending: dict[str, Any] | None = None
    """The fields of the round that the next exchange completes."""
    memory: StateDict = field(default_factory=dict)
    """The state that the method keeps over rounds."""
    states: dict[str, int] = field(default_factory=dict)
    """By client: the round of the newest state that it must have."""


class Checkpoint:
    """The server's state in a directory; to resume a run, its clients need a `DiskStore` each.

    Parameters
    ----------
    folder
        The directory, which need not exist.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def load(self) -> ServerState:
        """Load the state of the last commit.

        Returns
        -------
        ServerState
            The state; the default one if there is no commit.

        Raises
        ------
        StorageError
            If the files cannot be read, are no checkpoint, or are of a newer format.
        """
        manifest = self.folder / "server.json"
        if not manifest.exists():
            return ServerState()
        fields = records.validate_record(storage.read_json(manifest), SERVER_FORMAT, str(manifest))
        records.validate_types(SERVER_TYPES, fields, str(manifest))
        try:
            pending = fields["pending"] and asdict(records.parse_record(Round, fields["pending"], 1, str(manifest)))
            teacher = storage.read_bytes(self.folder / fields["teacher"]) if fields["teacher"] else None
            memory = storage.read_tensors(self.folder / fields["memory"])[0] if fields["memory"] else {}
            return ServerState(fields["exchange"], teacher, pending, memory, fields.get("states", {}))
        except KeyError as error:
            raise StorageError(f"{manifest} is not a checkpoint of trustmix ({error}).") from error

    def commit(self, state: ServerState) -> None:
        """Make a state the one to resume from.

        Parameters
        ----------
        state
            The state after an exchange.

        Raises
        ------
        StorageError
            If a file cannot be written; the last commit then stays.
        """
        teacher = memory = None
        if state.teacher is not None:
            teacher = f"teacher-{state.exchange:06d}.message"
            storage.write_bytes(self.folder / teacher, state.teacher)
        if state.memory:
            memory = f"memory-{state.exchange:06d}.safetensors"
            storage.write_tensors(self.folder / memory, state.memory)
        fields = {"exchange": state.exchange, "teacher": teacher, "pending": state.pending, "memory": memory}
        fields["states"] = state.states
        storage.write_json(self.folder / "server.json", {"format": SERVER_FORMAT, **fields})
        for old in [*self.folder.glob("teacher-*.message"), *self.folder.glob("memory-*.safetensors")]:
            if old.name not in (teacher, memory):
                old.unlink(missing_ok=True)


class Store(Protocol):
    """The states of one client by round."""

    def newest_before(self, round_: int) -> int | None:
        """The round of the newest state older than a round; None if there is none."""

    def load_before(self, round_: int) -> State | None:
        """The newest state older than a round; None if there is none."""

    def save(self, round_: int, state: State) -> None:
        """Save the state after a round."""


class MemoryStore:
    """Keeps the newest two states in memory, for federations without a run directory."""

    def __init__(self) -> None:
        self._states: dict[int, State] = {}

    def newest_before(self, round_: int) -> int | None:
        """The round of the newest state older than a round; None if there is none."""
        return max((r for r in self._states if r < round_), default=None)

    def load_before(self, round_: int) -> State | None:
        """The newest state older than a round; None if there is none."""
        newest = self.newest_before(round_)
        return None if newest is None else self._states[newest]

    def save(self, round_: int, state: State) -> None:
        """Save a copy of the state after a round; states of later rounds are removed."""
        tensors, facts = state
        self._states[round_] = {name: tensor.detach().clone() for name, tensor in tensors.items()}, dict(facts)
        for stale in _stale(sorted(self._states), round_):
            del self._states[stale]


class DiskStore:
    """Keeps the newest two states as safetensors files in the client's own directory.

    Parameters
    ----------
    folder
        The directory, which need not exist.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()

    def newest_before(self, round_: int) -> int | None:
        """The round of the newest state older than a round; None if there is none."""
        return max((r for r in self._rounds() if r < round_), default=None)

    def load_before(self, round_: int) -> State | None:
        """The newest state older than a round; None if there is none."""
        newest = self.newest_before(round_)
        if newest is None:
            return None
        tensors, facts = storage.read_tensors(self._file(newest))
        found = facts.pop("round", newest)
        if found != newest:
            raise StorageError(f"{self._file(newest)} holds the state of round {found!r}; restore that of its name.")
        return tensors, facts

    def save(self, round_: int, state: State) -> None:
        """Save the state after a round; states of later rounds are removed."""
        tensors, facts = state
        storage.write_tensors(self._file(round_), tensors, {**facts, "round": round_})
        for stale in _stale(self._rounds(), round_):
            self._file(stale).unlink(missing_ok=True)

    def _rounds(self) -> list[int]:
        names = (file.stem for file in self.folder.glob("*.safetensors"))
        return sorted(int(name) for name in names if re.fullmatch("[0-9]{6,9}", name))

    def _file(self, round_: int) -> Path:
        return self.folder / f"{round_:06d}.safetensors"


def _stale(rounds: list[int], newest: int) -> list[int]:
    """The rounds to remove: those after the newest, which belong to an abandoned run, and all but two up to it."""
    return [r for r in rounds if r > newest] + [r for r in rounds if r <= newest][:-2]

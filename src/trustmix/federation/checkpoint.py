"""The server's memory between rounds: which round is committed, its teacher, and the half-known line about it.

A commit is the rename of one small file. Clients keep their own states by round (see `store`), so committing a round
never copies them, and a run killed at any moment goes on from the last commit.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trustmix import storage
from trustmix.aggregation.base import StateDict
from trustmix.errors import StorageError
from trustmix.federation.history import Round

SERVER_FORMAT = 1
"""The version of checkpoint/server.json."""


@dataclass(frozen=True)
class ServerState:
    """Where a run stands: the last committed exchange, the teacher it made, and what is known of that round."""

    exchange: int = 0
    teacher: bytes | None = None
    pending: dict[str, Any] | None = None
    memory: StateDict = field(default_factory=dict)
    """What the rule remembers."""


class Checkpoint:
    """A folder with the server's state; the clients of a run that is to be resumed need a `DiskStore` each."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def load(self) -> ServerState:
        """The last commit, or the beginning."""
        manifest = self.folder / "server.json"
        if not manifest.exists():
            return ServerState()
        fields = storage.validate_record(storage.read_json(manifest), SERVER_FORMAT, str(manifest))
        try:
            pending = fields["pending"] and storage.select_fields(Round, fields["pending"])
            teacher = storage.read_bytes(self.folder / fields["teacher"]) if fields["teacher"] else None
            memory = storage.read_tensors(self.folder / fields["memory"])[0] if fields["memory"] else {}
            return ServerState(int(fields["exchange"]), teacher, pending, memory)
        except (KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"{manifest} is not a checkpoint of trustmix ({error}).") from error

    def commit(self, progress: ServerState) -> None:
        """Make this the state to resume from."""
        name = f"teacher-{progress.exchange:06d}.message" if progress.teacher is not None else None
        if name is not None and progress.teacher is not None:
            storage.write_bytes(self.folder / name, progress.teacher)
        remembered = f"memory-{progress.exchange:06d}.safetensors" if progress.memory else None
        if remembered is not None:
            storage.write_tensors(self.folder / remembered, progress.memory)
        fields = {"exchange": progress.exchange, "teacher": name, "pending": progress.pending, "memory": remembered}
        storage.write_json(self.folder / "server.json", {"format": SERVER_FORMAT, **fields})
        for old in [*self.folder.glob("teacher-*.message"), *self.folder.glob("memory-*.safetensors")]:
            if old.name not in (name, remembered):
                old.unlink(missing_ok=True)

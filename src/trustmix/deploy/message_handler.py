"""A node's side of a run: messages of the server, answered by the same `Client.step` as on one machine.

The run's description, the public set and the client's states lie in the node's own folder, by run. A process that
handles one message and ends, and one that stays, therefore give the same replies. The reason of a failure that the
server gets is one of a fixed list (`refusal`).
"""

import logging
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from flwr.app import Message, RecordDict

from trustmix import storage
from trustmix.deploy.membership import validate_client_id
from trustmix.deploy.run_info import RunInfo
from trustmix.errors import TrustmixError
from trustmix.federation import Client, Public, Request
from trustmix.transport.flower_records import MAX_REASON, pack_record, pack_reply, parse_request, unpack_record
from trustmix.transport.refusal import DISK, FAILED, MESSAGE, PUBLIC_SET, STEP, UNKNOWN_RUN, NodeRefusal, failing_as
from trustmix.wire import decode_public_set

log = logging.getLogger(__name__)

ALONE_FILE = "alone.json"
"""The file in a run's folder with the accuracy on own test samples after private training alone."""
RUN_OVER = "the run is over; client %s waits for the next one (Ctrl-C ends)"
"""What is logged at the end of a run, and when the server has left after it."""

ModelExporter: TypeAlias = Callable[[Path], None]
"""Exports the model of a client from the folder of its run."""
ClientBuilder: TypeAlias = Callable[[RunInfo, Public, Path], Client]
"""Builds the client of a run from the run's description, the public set and the folder of the client's states."""


@dataclass
class MessageHandler:
    """Answers the messages to a node, one at a time.

    Parameters
    ----------
    client_id : str
        The node's client id.
    folder : Path
        Where the node keeps its state between messages.
    build_client : ClientBuilder
        Builds the node's client when a run needs it.
    max_bytes : float
        The size of the folder beyond which messages are refused.
    export_model : ModelExporter, optional
        Called when a run is over, so that the node has its model as files.
    own_test : bool
        Whether accuracy is measured on test samples of the node's own, which the server records.

    Raises
    ------
    TrustmixError
        If the client id is not valid.
    """

    client_id: str
    folder: Path
    build_client: ClientBuilder
    max_bytes: float = math.inf
    export_model: ModelExporter | None = None
    own_test: bool = False
    finished: str = field(default="", init=False)
    """The id of the last run whose end this process has seen."""
    _clients: dict[str, Client] = field(default_factory=dict, init=False, repr=False)
    """The client in memory, by run; at most one."""

    def __post_init__(self) -> None:
        validate_client_id(self.client_id)

    def handle(self, message: Message) -> Message:
        """The reply to a message. An error becomes a reply with the reason.

        Parameters
        ----------
        message : Message
            A message of the server.

        Returns
        -------
        Message
        """
        kind = message.metadata.message_type
        try:
            storage.make_private_directory(self.folder)
            with storage.lock_directory(self.folder, wait=True):
                with failing_as(MESSAGE):
                    facts, payload = unpack_record(message.content)
                self._validate_quota(len(payload or b""))
                content = self._dispatch(kind, facts, payload)
        except Exception as error:  # the node's own model may raise anything
            reason = error.reason if isinstance(error, NodeRefusal) else FAILED
            log.info("client %s answers that %s: %s", self.client_id, reason, error)
            log.debug("%s failed", kind, exc_info=True)
            content = pack_record({"client": self.client_id, "failure": reason})
        return Message(content, reply_to=message)

    def _validate_quota(self, size: int) -> None:
        """Refuse a message that could make the folder larger than it may be."""
        used = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        if used + size > self.max_bytes:
            raise NodeRefusal(
                DISK,
                f"{self.folder} has {used / 1e9:.2f} GB and the message {size / 1e9:.2f} GB, more than allow.disk in "
                "the node's file; remove the folders of runs that are over, or allow more.",
            )

    def _dispatch(self, kind: str, facts: Mapping[str, object], payload: bytes | None) -> RecordDict:
        folder = self._run_folder(str(facts.get("run")))
        if kind == "query.refused":
            log.info("the server refuses client %s: %s", self.client_id, str(facts.get("reason"))[:MAX_REASON])
            return pack_record({"client": self.client_id})
        if kind == "query.hello":
            with failing_as(MESSAGE):
                run_info = RunInfo.from_json(facts)
            return self._handle_run_info(folder, run_info)
        if kind == "query.public":
            return self._handle_public_set(folder, payload or b"")
        if kind == "train":
            with failing_as(MESSAGE):
                request = parse_request(facts, payload)
            return self._handle_request(folder, request)
        raise NodeRefusal(MESSAGE, f'messages of the kind "{kind[:40]}" are not known')

    def _handle_request(self, folder: Path, request: Request) -> RecordDict:
        """The reply to a request; after the closing request, which trains nothing, the model is exported."""
        log.info("round %d" if request.train else "the last teacher, of round %d", request.round - (not request.train))
        client, begin = self._load_client(folder), time.perf_counter()
        with failing_as(STEP):
            stepped = client.step(request)
            reply = pack_reply(stepped)
        log.debug("request %d took %.3f s", request.round, time.perf_counter() - begin)
        if self.own_test and request.teacher is None and stepped.local_accuracy is not None:
            storage.write_json(folder / ALONE_FILE, stepped.local_accuracy)
        if not request.train:
            self.finished = folder.name
            self._export(folder)
            log.info(RUN_OVER, self.client_id)
        return reply

    def _export(self, folder: Path) -> None:
        """Export the model; the reply to the server does not depend on it."""
        try:
            if self.export_model is not None:
                self.export_model(folder)
        except (TrustmixError, OSError) as error:
            log.warning("the model of client %s was not exported, try `trustmix export`: %s", self.client_id, error)

    def _run_folder(self, run: str) -> Path:
        """The folder of a run; only a well-formed id, which comes from the server, names one."""
        if not re.fullmatch(r"[0-9a-f]{16}", run):
            raise NodeRefusal(MESSAGE, f'"{run[:40]}" is not the id of a run')
        return self.folder / run

    def _handle_run_info(self, folder: Path, run_info: RunInfo) -> RecordDict:
        """Keep the run's description; with a public set, build the client, so that a mismatch is reported now."""
        storage.write_json(folder / "settings.json", run_info.model_dump(exclude_none=True))
        has_public_set = (folder / "public.message").exists()
        if has_public_set:
            self._clients.pop(folder.name, None)
            self._load_client(folder)
        return pack_record({"client": self.client_id, "public": has_public_set, "own_test": self.own_test})

    def _handle_public_set(self, folder: Path, payload: bytes) -> RecordDict:
        """Keep the public set, if it has the fingerprint in the run's description."""
        run_info = self._read_run_info(folder)
        with failing_as(PUBLIC_SET):
            decode_public_set(payload, run_info.fingerprint)
        storage.write_bytes(folder / "public.message", payload)
        self._load_client(folder)
        return pack_record({"client": self.client_id, "public": True, "own_test": self.own_test})

    def _read_run_info(self, folder: Path) -> RunInfo:
        file = folder / "settings.json"
        if not file.exists():
            raise NodeRefusal(UNKNOWN_RUN, "the server continues a run that this node's folder does not have")
        return RunInfo.from_json(storage.read_json(file))

    def _load_client(self, folder: Path) -> Client:
        """The client of a run, from memory or from its folder."""
        if folder.name not in self._clients:
            run_info = self._read_run_info(folder)
            if not (folder / "public.message").exists():
                raise NodeRefusal(UNKNOWN_RUN, "the server continues a run that this node's folder does not have")
            inputs = decode_public_set(storage.read_bytes(folder / "public.message"), run_info.fingerprint)
            public = Public(inputs, len(run_info.classes))
            self._clients = {folder.name: self.build_client(run_info, public, folder / "states")}
        return self._clients[folder.name]

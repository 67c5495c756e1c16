"""A node's side: the messages of a run, answered by the same `Client.step` as everywhere.

What a node must remember lies in its own folder, by run: the settings, the public set and the client's states. A
process that answers one message and ends, and one that stays, therefore answer the same.
"""

import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from trustmix import storage
from trustmix.deploy.membership import FORGOTTEN, validate_client_id
from trustmix.deploy.records import pack_record, pack_reply, parse_request, unpack_record
from trustmix.errors import TrustmixError
from trustmix.federation import Client, Public
from trustmix.wire import decode_public_set

log = logging.getLogger(__name__)

Build: TypeAlias = Callable[[dict[str, Any], Public, Path], Client]
"""Makes the client of a run from the settings, the public set and the folder where its states lie."""


@dataclass
class MessageHandler:
    """Where a node's messages are answered, one at a time."""

    id: str
    folder: Path
    build: Build
    _clients: dict[str, Client] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        validate_client_id(self.id)

    def answer(self, message: Message) -> Message:
        """The reply to a message; whatever goes wrong is told in it."""
        kind = message.metadata.message_type
        try:
            with storage.lock_directory(self.folder, wait=True):
                facts, payload = unpack_record(message.content)
                content = self._answer(kind, facts, payload)
        except Exception as error:  # a client may run anybody's model
            log.info("%s: %s", kind, error)
            log.debug("%s failed", kind, exc_info=True)
            reason = str(error) if isinstance(error, TrustmixError) else f"{type(error).__name__}: {error}"
            content = pack_record({"client": self.id, "failure": reason})
        return Message(content, reply_to=message)

    def _answer(self, kind: str, facts: dict[str, Any], payload: bytes | None) -> RecordDict:
        place = self._place(str(facts.get("run")))
        if kind == "query.hello":
            return self._hello(place, facts)
        if kind == "query.public":
            return self._public(place, payload or b"")
        if kind == "train":
            request = parse_request(facts, payload)
            log.info("round %d", request.round)
            return pack_reply(self._client(place).step(request))
        raise TrustmixError(f'there is no answer to a message of the kind "{kind[:40]}"')

    def _place(self, run: str) -> Path:
        """The run's own folder; its mark comes from outside and names a folder, so it may be nothing but a mark."""
        if not re.fullmatch(r"[0-9a-f]{16}", run):
            raise TrustmixError(f'"{run[:40]}" is not the mark of a run')
        return self.folder / run

    def _hello(self, place: Path, facts: dict[str, Any]) -> RecordDict:
        """Take in the settings; where the public set is here already, build the client, so that a mismatch is told."""
        storage.write_json(place / "settings.json", facts)
        there = (place / "public.message").exists()
        if there:
            self._clients.pop(place.name, None)
            self._client(place)
        return pack_record({"client": self.id, "public": there})

    def _public(self, place: Path, payload: bytes) -> RecordDict:
        """Take in the public set, if it is the one that was announced."""
        settings = self._settings(place)
        decode_public_set(payload, str(settings["fingerprint"]))
        storage.write_bytes(place / "public.message", payload)
        self._client(place)
        return pack_record({"client": self.id, "public": True})

    def _settings(self, place: Path) -> dict[str, Any]:
        file = place / "settings.json"
        if not file.exists():
            raise TrustmixError(FORGOTTEN)
        return dict(json.loads(storage.read_bytes(file)))

    def _client(self, place: Path) -> Client:
        """The client of a run: as it is in memory, or from its folder."""
        if place.name not in self._clients:
            settings = self._settings(place)
            if not (place / "public.message").exists():
                raise TrustmixError(FORGOTTEN)
            inputs = decode_public_set(storage.read_bytes(place / "public.message"), str(settings["fingerprint"]))
            public = Public(inputs, len(settings["classes"]))
            self._clients = {place.name: self.build(settings, public, place / "states")}
        return self._clients[place.name]


def client_app(desk_of: Callable[[dict[str, Any]], MessageHandler]) -> ClientApp:
    """The ClientApp for a SuperNode that starts one process a message; its node configuration says whose desk it is."""
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        return desk_of(dict(context.node_config)).answer(message)

    app.train()(answer)
    app.query("hello")(answer)
    app.query("public")(answer)
    return app

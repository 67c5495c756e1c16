"""Requests and replies as Flower's records: a few plain values, and the bytes of `wire` as they are.

A payload travels as one array of bytes, which Flower cuts into chunks; nothing in it is ever unpickled. Types are
checked here. The server checks ranges (`federation.reply_validation`) and the payload where it is decoded.
"""

import json
from dataclasses import fields
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from trustmix.errors import TrustmixError
from trustmix.federation import Failure, Reply, Request

FACTS, PAYLOAD = "facts", "payload"
FIGURES = ("accuracy", "local_accuracy", "epsilon", "epsilon_round", "nll", "ece")
"""Numbers of a reply, each of which may be absent."""


def pack_record(facts: dict[str, Any], payload: bytes | None = None) -> RecordDict:
    """Facts (JSON-able; None is left out) and a payload as the content of a message.

    >>> facts, payload = unpack_record(pack_record({"round": 3, "accuracy": None}, b"bytes"))
    >>> facts, payload
    ({'round': 3}, b'bytes')
    """
    told = {key: value for key, value in facts.items() if value is not None}
    content = RecordDict({FACTS: ConfigRecord({"json": json.dumps(told)})})
    if payload is not None:
        content[PAYLOAD] = ArrayRecord({PAYLOAD: Array("uint8", (len(payload),), "bytes", payload)})
    return content


def unpack_record(content: RecordDict) -> tuple[dict[str, Any], bytes | None]:
    """The facts and the payload of a message's content; anything else is refused."""
    try:
        facts = dict(json.loads(str(content.config_records[FACTS]["json"])))
        arrays = content.array_records.get(PAYLOAD)
        return facts, None if arrays is None else bytes(arrays[PAYLOAD].data)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise TrustmixError(f"this is no message of trustmix ({type(error).__name__}: {error})") from error


def pack_request(run: str, request: Request) -> RecordDict:
    """The content of a request of a run."""
    facts = {"run": run, "round": request.round, "train": request.train, "upload": request.upload}
    return pack_record(facts, request.teacher)


def parse_request(facts: dict[str, Any], payload: bytes | None) -> Request:
    """The request of a message's facts and payload."""
    return Request(int(facts["round"]), payload, train=bool(facts["train"]), upload=bool(facts["upload"]))


def pack_reply(reply: Reply) -> RecordDict:
    """The content of a reply."""
    facts = {entry.name: getattr(reply, entry.name) for entry in fields(Reply) if entry.name != "payload"}
    return pack_record(facts, reply.payload)


def parse_reply(client: str, request: Request, message: Message) -> Reply | Failure:
    """The reply or the failure in a client's message.

    A figure that is not a number is left out, as `sanitize_reply` leaves out one that is out of range. A message that
    is not a reply of this client to this request is the client's failure.
    """
    if message.has_error():
        return Failure(client, error_reason(message))
    try:
        facts, payload = unpack_record(message.content)
        if "failure" in facts:
            return Failure(client, str(facts["failure"])[:500])
        if (facts.get("client"), facts.get("round")) != (client, request.round):
            said = f"client {facts.get('client')}, round {facts.get('round')}"
            raise TrustmixError(f"it answers for {said[:100]}; asked was round {request.round}")
        figures = {name: _figure(facts.get(name)) for name in FIGURES}
        return Reply(client, request.round, payload, seconds=_seconds(facts.get("seconds")), **figures)
    except TrustmixError as error:
        return Failure(client, f"answer refused: {error}")


def error_reason(message: Message) -> str:
    """Why there is no answer, in Flower's words, on one line."""
    return " ".join(str(message.error.reason or f"error {message.error.code}").split())[:500]


def _figure(value: object) -> float | None:
    """A number of JSON as a float, or None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # JSON has integers of any size
        return None


def _seconds(value: object) -> dict[str, float]:
    """The stages whose time is a number."""
    times = {stage: _figure(time) for stage, time in value.items()} if isinstance(value, dict) else {}
    return {stage: time for stage, time in times.items() if time is not None}

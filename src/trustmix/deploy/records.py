"""Requests and replies as Flower's records: a few plain values, and the bytes of `wire` as they are.

A payload travels as one array of bytes, which Flower cuts into chunks; nothing in it is ever unpickled. What a client
says of itself is not believed: types and ranges are checked here, the payload where it is decoded.
"""

import json
from dataclasses import fields
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from trustmix.errors import TrustmixError
from trustmix.federation import Failure, Reply, Request
from trustmix.federation.reply_validation import LARGEST

FACTS, PAYLOAD = "facts", "payload"


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
    """What a client's message says, as the answer to the request; a wrong one is the client's failure."""
    if message.has_error():
        return Failure(client, error_reason(message))
    try:
        facts, payload = unpack_record(message.content)
        if "failure" in facts:
            return Failure(client, str(facts["failure"])[:500])
        if (facts.get("client"), facts.get("round")) != (client, request.round):
            said = f"client {facts.get('client')}, round {facts.get('round')}"
            raise TrustmixError(f"it answers for {said[:100]}; asked was round {request.round}")
        parts = {key: _number(facts.get(key), key, 1.0) for key in ("accuracy", "local_accuracy", "ece")}
        parts |= {key: _number(facts.get(key), key, LARGEST) for key in ("epsilon", "epsilon_round", "nll")}
        return Reply(client, request.round, payload, seconds=_seconds(facts.get("seconds", {})), **parts)
    except TrustmixError as error:
        return Failure(client, f"answer refused: {error}")


def error_reason(message: Message) -> str:
    """Why there is no answer, in Flower's words, on one line."""
    return " ".join(str(message.error.reason or f"error {message.error.code}").split())[:500]


def _number(value: Any, key: str, most: float) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
        raise TrustmixError(f"{key} is {str(value)[:60]}; it must be between 0 and {most:g}")
    return float(value)


def _seconds(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or len(value) > 20 or any(len(stage) > 20 for stage in value):
        raise TrustmixError("seconds must be the time of a few stages")
    for stage, took in value.items():
        if not isinstance(took, int | float) or not 0 <= took <= LARGEST:
            raise TrustmixError(f"seconds.{stage} is {str(took)[:60]}; it must be a length of time")
    return {stage: float(took) for stage, took in value.items()}

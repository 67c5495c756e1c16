"""Requests and replies as Flower's records: a few JSON values, and the bytes of `wire` unchanged.

A payload travels as one array of bytes, which Flower cuts into chunks; nothing in it is ever unpickled. Types are
checked here. The server checks ranges (`federation.reply_validation`) and the payload where it is decoded.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from trustmix.errors import TrustmixError
from trustmix.federation import Failure, Reply, Request
from trustmix.transport.flower_internals import ErrorCode

FACTS, PAYLOAD = "facts", "payload"
METRICS_SENT = ("balanced_accuracy", "macro_f1", "auroc")
FIGURES = ("accuracy", "local_accuracy", "epsilon", "epsilon_round", "nll", "ece", "agreement", *METRICS_SENT)
"""Numbers of a reply, each of which may be absent."""
NOT_FACTS = ("payload", "recall")
"""Parts of a reply that are no facts of its message: recalls would show which classes a node's test set has."""
NODE_GONE = "its connection was lost before it answered"
"""The reason for a node that the SuperLink counts as gone."""
MAX_REASON = 500
"""Characters of a client's error text that are kept."""


def pack_record(facts: Mapping[str, object], payload: bytes | None = None) -> RecordDict:
    """The content of a message.

    Parameters
    ----------
    facts : mapping of str to JSON values
        Values that are None are left out.
    payload : bytes, optional
        A message of `wire`.

    Returns
    -------
    RecordDict

    Examples
    --------
    >>> facts, payload = unpack_record(pack_record({"round": 3, "accuracy": None}, b"bytes"))
    >>> facts, payload
    ({'round': 3}, b'bytes')
    """
    present = {key: value for key, value in facts.items() if value is not None}
    content = RecordDict({FACTS: ConfigRecord({"json": json.dumps(present)})})
    if payload is not None:
        content[PAYLOAD] = ArrayRecord({PAYLOAD: Array("uint8", (len(payload),), "bytes", payload)})
    return content


def unpack_record(content: RecordDict) -> tuple[dict[str, object], bytes | None]:
    """The facts and the payload in the content of a message.

    Parameters
    ----------
    content : RecordDict
        The result of `pack_record`.

    Returns
    -------
    facts : dict of str to JSON values
    payload : bytes or None

    Raises
    ------
    TrustmixError
        If the content has another form.
    """
    try:
        facts: dict[str, object] = dict(json.loads(str(content.config_records[FACTS]["json"])))
        arrays = content.array_records.get(PAYLOAD)
        return facts, None if arrays is None else bytes(arrays[PAYLOAD].data)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise TrustmixError(f"this is no message of trustmix ({type(error).__name__}: {error})") from error


def pack_request(run: str, request: Request) -> RecordDict:
    """The content of a request.

    Parameters
    ----------
    run : str
        The run's id.
    request : Request
        The request.

    Returns
    -------
    RecordDict
    """
    facts = {"run": run, "round": request.round, "train": request.train, "upload": request.upload}
    return pack_record(facts, request.teacher)


def parse_request(facts: Mapping[str, object], payload: bytes | None) -> Request:
    """The request in the facts and the payload of a message.

    Parameters
    ----------
    facts : mapping of str to JSON values
        With `round`, `train` and `upload`.
    payload : bytes or None
        The teacher.

    Returns
    -------
    Request

    Raises
    ------
    TrustmixError
        If a fact is missing or of another type.

    Examples
    --------
    >>> parse_request({"round": 1, "train": True, "upload": True}, None)
    Request(round=1, teacher=None, train=True, upload=True)
    """
    number, train, upload = (facts.get(name) for name in ("round", "train", "upload"))
    if not (isinstance(number, int) and isinstance(train, bool) and isinstance(upload, bool)):
        raise TrustmixError("a request needs a round (an integer), train and upload (true or false)")
    return Request(number, payload, train=train, upload=upload)


def pack_reply(reply: Reply) -> RecordDict:
    """The content of a reply.

    Parameters
    ----------
    reply : Reply
        The client's reply.

    Returns
    -------
    RecordDict
    """
    facts = {entry.name: getattr(reply, entry.name) for entry in fields(Reply) if entry.name not in NOT_FACTS}
    return pack_record(facts, reply.payload)


def parse_reply(client: str, request: Request, message: Message) -> Reply | Failure:
    """The reply or the failure in a client's message.

    A figure that is not a number is left out, as `sanitize_reply` leaves out one that is out of range. A message that
    is not a reply of this client to this request is the client's failure.

    Parameters
    ----------
    client : str
        The client that was sent the request.
    request : Request
        The request.
    message : Message
        The client's message.

    Returns
    -------
    Reply or Failure
    """
    if message.has_error():
        reason = error_reason(message)
        return Failure(client, reason, kind="absent" if reason == NODE_GONE else "failed")
    try:
        facts, payload = unpack_record(message.content)
        if "failure" in facts:
            return Failure(client, str(facts["failure"])[:MAX_REASON])
        if (facts.get("client"), facts.get("round")) != (client, request.round):
            found = f"client {facts.get('client')}, round {facts.get('round')}"[:100]
            raise TrustmixError(f"it is from {found}; the request was to client {client}, round {request.round}")
    except TrustmixError as error:
        return Failure(client, f"reply refused: {error}", kind="refused")
    figures: dict[str, Any] = {name: _figure(facts.get(name)) for name in FIGURES}
    epochs, seconds = facts.get("public_epochs"), _seconds(facts.get("seconds"))
    whole = epochs if type(epochs) is int else None
    return Reply(client, request.round, payload, seconds=seconds, public_epochs=whole, **figures)


def error_reason(message: Message) -> str:
    """The reason why a message has no content: for a node that is gone in plain words, else Flower's own, on one line.

    Parameters
    ----------
    message : Message
        A message that has an error.

    Returns
    -------
    str
    """
    if message.error.code == ErrorCode.NODE_UNAVAILABLE:
        return NODE_GONE
    return " ".join(str(message.error.reason or f"error {message.error.code}").split())[:MAX_REASON]


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

"""The run's connection to its nodes: what one node announces, sends or forges costs the server a bounded amount."""

import time
from collections.abc import Callable
from random import Random
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from trustmix.transport.flower_records import pack_record, unpack_record
from trustmix.transport.run_grid import FURTHER_OBJECTS, RunGrid, SuperLinkUnavailable

from .flower_messages import make_message as make_request

MEGABYTE = 2**20
MOST_PULLS = 1000
"""A grid that asks for more objects does not end; no test here has as many."""


class StubLink:
    """A SuperLink with one announced reply; its objects arrive when they are delivered."""

    def __init__(self, reply: Message, tree: ObjectTree | None = None) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.contents = {key: found.deflate() for key, found in get_all_nested_objects(reply).items()}
        self.header: ProtoMessage = message_to_proto(remove_content_from_message(reply))
        self.tree = tree or get_object_tree(reply)
        self.delivered: set[str] = set(self.contents)
        self.withdrawn = False
        self.announced = False
        self.confirmed: list[str] = []
        self.pulls = 0

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802 - Flower's
        if self.announced or "m" not in request.message_ids:
            return PullAppMessagesResponse()
        self.announced = True
        return PullAppMessagesResponse(messages_list=[self.header], message_object_trees=[self.tree])

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802 - Flower's
        self.pulls += 1
        assert self.pulls < MOST_PULLS, "the grid asks without end"
        if self.withdrawn:
            return PullObjectResponse(object_found=False)
        if request.object_id not in self.delivered:
            return PullObjectResponse(object_found=True, object_available=False)
        content = self.contents[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: ConfirmMessageReceivedRequest) -> None:  # noqa: N802 - Flower's
        self.confirmed.append(request.message_object_id)

    def close(self) -> None:
        pass


def make_reply(payload: bytes = b"upload") -> Message:
    return Message(pack_record({"client": "north", "round": 1}, payload), reply_to=make_request("train", {}))


def connect(link: object, limit: int = MEGABYTE) -> RunGrid:
    grid = RunGrid("127.0.0.1:1", None, "token", limit)
    grid._client = link  # type: ignore[assignment]
    return grid


def pull(grid: RunGrid, *message_ids: str) -> list[Message]:
    return list(grid.pull_messages(message_ids or ["m"]))


def test_a_complete_reply_arrives_once_and_is_confirmed() -> None:
    link = StubLink(make_reply(b"x" * 1000))
    grid = connect(link)
    (message,) = pull(grid)
    assert unpack_record(message.content) == ({"client": "north", "round": 1}, b"x" * 1000)
    assert (message.metadata.reply_to_message_id, message.metadata.src_node_id) == ("m", 7)
    assert link.confirmed == [link.header.metadata.message_id]
    assert pull(grid) == []


def test_a_reply_that_is_announced_but_not_sent_does_not_hold_the_server() -> None:
    link = StubLink(make_reply())
    missing, link.delivered = link.delivered, set()
    grid = connect(link)
    assert pull(grid) == []
    assert pull(grid) == []
    assert link.pulls == 2, "one query for each poll, however many objects were announced; Flower's own grid goes on"
    link.delivered = missing
    (message,) = pull(grid)
    assert message.has_content()


def test_a_reply_that_is_not_complete_when_its_request_expires_becomes_an_error() -> None:
    link = StubLink(make_reply())
    link.delivered = set()
    link.header.metadata.created_at = time.time() - 100
    link.header.metadata.ttl = 10
    (message,) = pull(connect(link))
    assert message.error.reason == "the reply is refused: it was announced but not sent in time"
    assert link.confirmed


def test_a_reply_that_no_request_waits_for_is_given_up() -> None:
    link = StubLink(make_reply())
    link.delivered = set()
    grid = connect(link)
    assert pull(grid) == []
    assert pull(grid, "another") == []
    assert link.confirmed == [link.header.metadata.message_id]


def test_a_reply_that_is_too_large_is_given_up_before_it_is_taken_in_whole() -> None:
    link = StubLink(make_reply(Random(0).randbytes(25_000_000)))  # chunks of 5 MB
    (message,) = pull(connect(link, limit=12_000_000))
    assert message.error.reason == "the reply is refused: it is larger than 12.0 MB, which no reply of this run is"
    assert link.pulls <= 4
    assert link.confirmed


def test_a_reply_in_very_many_parts_is_given_up_before_the_first_is_taken() -> None:
    parts = [ObjectTree(object_id=f"{number:064x}") for number in range(FURTHER_OBJECTS + 2)]
    link = StubLink(make_reply(), ObjectTree(object_id="0" * 64, children=parts))
    (message,) = pull(connect(link))
    assert "more than a reply of this run can have" in str(message.error.reason)
    assert link.pulls == 0


def test_a_small_reply_that_unfolds_to_a_large_one_is_refused() -> None:
    link = StubLink(make_reply(bytes(50_000_000)))  # one chunk of zeros, named ten times
    (message,) = pull(connect(link, limit=12_000_000))
    assert message.error.reason == "the reply is refused: it unfolds to more than 12.0 MB"


def withdraw(link: StubLink) -> None:
    link.withdrawn = True


def replace_with_chunk(link: StubLink) -> None:
    link.contents[link.header.metadata.message_id] = ArrayChunk(memoryview(b"x")).deflate()


def cut(link: StubLink) -> None:
    link.contents = {key: content[:20] for key, content in link.contents.items()}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [(withdraw, "withdrawn"), (replace_with_chunk, "it is no message"), (cut, "it is damaged")],
)
def test_a_damaged_reply_becomes_an_error(damage: Callable[[StubLink], None], reason: str) -> None:
    link = StubLink(make_reply())
    damage(link)
    (message,) = pull(connect(link))
    assert reason in str(message.error.reason)


def test_the_source_of_a_reply_is_what_the_superlink_has_checked_not_what_the_reply_states() -> None:
    reply = make_reply()
    link = StubLink(reply)
    forged = make_message(metadata=reply.metadata, content=RecordDict({"facts": ConfigRecord({"json": "{}"})}))
    forged.metadata.__dict__.update({"_src_node_id": 8, "_reply_to_message_id": "another"})
    other = StubLink(forged)
    link.contents, link.tree, link.delivered = other.contents, other.tree, other.delivered
    link.header.metadata.message_id = other.header.metadata.message_id
    (message,) = pull(connect(link))
    assert (message.metadata.reply_to_message_id, message.metadata.src_node_id) == ("m", 7)


def test_a_superlink_that_does_not_answer_is_unavailable() -> None:
    def fail(_: object) -> None:
        raise httpx.ReadTimeout("")

    with pytest.raises(SuperLinkUnavailable, match="the SuperLink does not answer"):
        pull(connect(SimpleNamespace(PullMessages=fail, close=lambda: None)))

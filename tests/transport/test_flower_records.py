"""Requests and replies as Flower's records: values arrive as they were sent; a bad figure is left out."""

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from trustmix.errors import TrustmixError
from trustmix.federation import Failure, Reply, Request
from trustmix.federation.reply_validation import sanitize_reply
from trustmix.transport.flower_records import pack_record, pack_reply, parse_reply, parse_request, unpack_record

from .flower_messages import make_message


def reply_with(facts: dict[str, object], payload: bytes | None = None) -> Message:
    return Message(pack_record(facts, payload), reply_to=make_message("train", {}))


def test_a_payload_arrives_as_it_was_sent() -> None:
    reply = Reply("north", 1, bytes(range(256)) * 100, 0.5, None, {"train": 1.0}, epsilon=2.5)
    message = Message(pack_reply(reply), reply_to=make_message("train", {}))
    assert parse_reply("north", Request(1), message) == reply


@pytest.mark.parametrize(("client", "round_"), [("south", 1), ("north", 2)])
def test_a_reply_for_another_client_or_round_is_the_clients_failure(client: str, round_: int) -> None:
    found = parse_reply("north", Request(1), reply_with({"client": client, "round": round_}))
    reason = f"it is from client {client}, round {round_}; the request was to client north, round 1"
    assert found == Failure("north", f"reply refused: {reason}", kind="refused")


@pytest.mark.parametrize("value", [1.5, -1, float("nan"), float("inf"), 10**400, "0.5", True, [0.5], {}])
def test_a_figure_that_cannot_be_is_left_out_and_the_reply_is_kept(value: object) -> None:
    figures = {"accuracy": value, "local_accuracy": 0.5, "seconds": {"train": value, "save": 2}}
    found = parse_reply("north", Request(1), reply_with({"client": "north", "round": 1, **figures}, b"upload"))
    assert isinstance(found, Reply)
    expected = Reply("north", 1, b"upload", local_accuracy=0.5, seconds={"save": 2.0})
    if value == 1.5:  # an accuracy cannot be above 1, a time can
        expected.seconds["train"] = 1.5
    assert sanitize_reply(found) == expected


@pytest.mark.parametrize("seconds", [3, None, "long", [1, 2], {"train": None}])
def test_times_that_are_not_numbers_are_left_out_and_the_reply_is_kept(seconds: object) -> None:
    found = parse_reply("north", Request(1), reply_with({"client": "north", "round": 1, "seconds": seconds}))
    assert found == Reply("north", 1)


@pytest.mark.parametrize("change", [{"round": "1"}, {"round": None}, {"train": 1}, {"upload": None}])
def test_a_request_with_a_fact_of_another_type_is_refused(change: dict[str, object]) -> None:
    facts = {"round": 1, "train": True, "upload": True, **change}
    with pytest.raises(TrustmixError, match="a request needs a round"):
        parse_request(facts, None)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({}),
        RecordDict({"facts": ConfigRecord({"json": "["})}),
        RecordDict({"facts": ConfigRecord({"json": "[" * 100_000})}),
        RecordDict(
            {"facts": ConfigRecord({"json": "{}"}), "payload": ArrayRecord({"other": Array("u", (1,), "b", b"x")})}
        ),
    ],
)
def test_content_that_is_no_message_is_refused(content: RecordDict) -> None:
    with pytest.raises(TrustmixError, match="this is no message of trustmix"):
        unpack_record(content)


def test_metrics_travel_and_recalls_by_class_do_not() -> None:
    reply = Reply("north", 1, balanced_accuracy=0.5, macro_f1=0.4, auroc=0.9, recall=(0.5, None))
    facts, _ = unpack_record(pack_reply(reply))
    assert [facts.get(name) for name in ("balanced_accuracy", "macro_f1", "auroc", "recall")] == [0.5, 0.4, 0.9, None]

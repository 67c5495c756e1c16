"""How nodes become clients: only under their own id, with the announced public set, and at every attempt anew."""

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from flwr.app import Message
from flwr.app.error import Error

import trustmix as tm
from trustmix.deploy.membership import Membership, validate_client_id
from trustmix.deploy.message_handler import MessageHandler
from trustmix.deploy.run_info import RunInfo
from trustmix.errors import StorageError, TrustmixError
from trustmix.transport.flower_records import pack_record
from trustmix.wire import encode_public_set

from ..transport.flower_messages import make_message
from .flower_link import (
    HEARTBEAT_INTERVAL,
    PUBLIC,
    PUBLIC_SET,
    RUN_INFO,
    TIMEOUT,
    FlowerLink,
    build_client,
    make_handler,
)


def make_membership(link: FlowerLink, folder: Path, public_set: bytes = PUBLIC_SET) -> Membership:
    return Membership(link.grid, RUN_INFO, public_set, folder / "nodes.json")


def continue_handshakes(membership: Membership, until: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT
    while not until() and time.monotonic() < end:
        time.sleep(0.02)
        membership.poll_nodes()
        for message in membership.grid.pull_messages(membership.handshakes) if membership.handshakes else []:
            membership.handle_reply(message)


def test_a_client_that_joined_is_known_to_a_resumed_run(link: FlowerLink, tmp_path: Path) -> None:
    link.add_node(make_handler("10", tmp_path).handle)
    link.add_node(make_handler("9", tmp_path).handle)
    membership = make_membership(link, tmp_path)
    continue_handshakes(membership, lambda: len(membership.connected) == 2)
    resumed = make_membership(link, tmp_path)
    assert (resumed.clients, resumed.connected) == (["9", "10"], set())


def test_a_key_registered_for_one_client_cannot_speak_for_another(
    link: FlowerLink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    link.add_node(make_handler("north", tmp_path).handle, name="south")
    link.add_node(make_handler("east", tmp_path).handle, name="east")
    membership = make_membership(link, tmp_path)
    continue_handshakes(membership, lambda: "cannot join" in caplog.text and bool(membership.connected))
    assert 'it claims to be client "north", but its key is registered for client "south"' in caplog.text
    assert membership.clients == ["east"]


def test_a_node_that_was_gone_for_a_moment_cannot_take_another_clients_id(
    link: FlowerLink, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers the greeting while the server's last look at the nodes was one without it."""
    caplog.set_level("INFO")
    answers = threading.Event()
    handler = make_handler("north", tmp_path)

    def handle(message: Message) -> Message:
        answers.wait(TIMEOUT)
        return handler.handle(message)

    node = link.add_node(handle, name="south")
    membership = make_membership(link, tmp_path)
    membership.poll_nodes()
    link.state.deactivate_node(node)
    time.sleep(0.02)
    membership.poll_nodes()
    monkeypatch.setattr("trustmix.deploy.membership.NODE_POLL_INTERVAL", TIMEOUT)
    link.state.activate_node(node, HEARTBEAT_INTERVAL)
    answers.set()
    continue_handshakes(membership, lambda: "cannot join" in caplog.text or bool(membership.clients))
    assert membership.clients == []
    assert "it was not connected any more when its answer came" in caplog.text
    monkeypatch.setattr("trustmix.deploy.membership.NODE_POLL_INTERVAL", 0.01)
    continue_handshakes(membership, lambda: 'registered for client "south"' in caplog.text)
    assert membership.clients == []


def test_a_clients_id_stays_with_its_key_when_the_server_restarts(
    link: FlowerLink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node = link.add_node(make_handler("north", tmp_path).handle, name="north")
    membership = make_membership(link, tmp_path)
    continue_handshakes(membership, lambda: bool(membership.connected))
    link.state.deactivate_node(node)
    link.add_node(make_handler("north", tmp_path / "other").handle, name="north")
    restarted = make_membership(link, tmp_path)
    continue_handshakes(restarted, lambda: "cannot join" in caplog.text)
    assert 'client "north" has joined this run with another key' in caplog.text
    assert (restarted.clients, restarted.connected) == (["north"], set())


def test_a_node_whose_key_is_registered_for_no_client_is_refused_where_nodes_have_keys(
    link: FlowerLink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    link.add_node(make_handler("north", tmp_path).handle)
    membership = Membership(link.grid, RUN_INFO, PUBLIC_SET, tmp_path / "nodes.json", has_keys=True)
    continue_handshakes(membership, lambda: "cannot join" in caplog.text)
    assert "no client is registered for its key" in caplog.text
    assert membership.clients == []


def test_an_answer_of_another_node_than_the_asked_one_is_refused(
    link: FlowerLink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    link.add_node(make_handler("north", tmp_path).handle, name="north")
    membership = make_membership(link, tmp_path)
    membership.poll_nodes()
    ((message_id, handshake),) = membership.handshakes.items()
    message = make_message("query.hello", {})
    message.metadata.__dict__["_message_id"] = message_id
    reply = Message(pack_record({"client": "north", "public": True}), reply_to=message)
    membership.handle_reply(reply)
    assert f"the reply came from node 7, the request went to node {handshake.node}" in caplog.text
    assert membership.clients == []


@pytest.mark.parametrize("text", ["3", '{"north": 3}', "[1]"])
def test_a_damaged_list_of_clients_is_refused(link: FlowerLink, tmp_path: Path, text: str) -> None:
    (tmp_path / "nodes.json").write_text(text)
    with pytest.raises(StorageError, match="is not the list of a run's clients"):
        make_membership(link, tmp_path)


def test_a_public_set_other_than_the_announced_one_is_refused(
    link: FlowerLink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    link.add_node(make_handler("north", tmp_path).handle)
    membership = make_membership(link, tmp_path, encode_public_set(PUBLIC.inputs + 1))
    continue_handshakes(membership, lambda: "cannot join" in caplog.text)
    assert "was announced; it is refused" in caplog.text
    assert membership.clients == []


def test_a_node_that_was_refused_can_join_when_it_connects_again(
    link: FlowerLink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    corrected = threading.Event()

    def build(_: RunInfo, public: tm.Public, states: Path) -> tm.Client:
        if not corrected.is_set():
            raise TrustmixError("a class that the server does not know")
        return build_client("north", public, states)

    node = link.add_node(MessageHandler("north", tmp_path / "north", build).handle)
    membership = make_membership(link, tmp_path)
    continue_handshakes(membership, lambda: "a class that the server does not know" in caplog.text)
    assert membership.clients == []
    corrected.set()
    link.reconnect(node)
    continue_handshakes(membership, lambda: bool(membership.clients))
    assert membership.clients == ["north"]


def test_a_refusal_names_the_node_on_both_sides_each_time(
    link: FlowerLink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node = link.add_node(make_handler("north", tmp_path).handle, name="south")
    membership = make_membership(link, tmp_path)
    reason = 'it claims to be client "north", but its key is registered for client "south"'
    for times in (1, 2):
        continue_handshakes(membership, lambda times=times: caplog.text.count("the server refuses") == times)  # type: ignore[misc]
        assert caplog.text.count(f"node south cannot join: {reason}") == times
        assert caplog.text.count(f"the server refuses client north: {reason}") == times
        link.reconnect(node)
    assert membership.clients == []


def test_a_handshake_that_was_lost_on_its_way_is_begun_again(
    link: FlowerLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("trustmix.deploy.membership.HANDSHAKE_RETRY", 0.0)
    handler, errors = make_handler("north", tmp_path), [Error(code=0, reason="lost")]

    def handle(message: Message) -> Message:
        return Message(errors.pop(), reply_to=message) if errors else handler.handle(message)

    link.add_node(handle, name="north")
    membership = make_membership(link, tmp_path)
    continue_handshakes(membership, lambda: bool(membership.clients))
    assert "node north cannot join: lost" in caplog.text
    assert membership.clients == ["north"]


@pytest.mark.parametrize("refused", [1, 2])
def test_a_handshake_whose_message_flower_does_not_accept_is_repeated(
    link: FlowerLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    pushed: list[Message] = []
    push_messages = link.grid.push_messages

    def refuse_one(messages: Iterable[Message]) -> Iterable[str]:
        pushed.extend(messages)
        return [""] if len(pushed) == refused else push_messages(pushed[-1:])

    monkeypatch.setattr(link.grid, "push_messages", refuse_one)
    link.add_node(make_handler("north", tmp_path).handle)
    membership = make_membership(link, tmp_path)
    continue_handshakes(membership, lambda: bool(membership.clients))
    assert membership.clients == ["north"]
    assert len(pushed) == refused + 2


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "x" * 65, "naïve", "a b"])
def test_an_id_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(TrustmixError, match="is no client id"):
        validate_client_id(name)

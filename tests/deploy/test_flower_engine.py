"""The engine over Flower's own link state: clients left out, taken back and reset; real messages without a network."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from flwr.app import Message

import trustmix as tm
from trustmix.deploy.flower_engine import FlowerEngine
from trustmix.deploy.membership import Membership
from trustmix.deploy.message_handler import MessageHandler
from trustmix.errors import TrustmixError
from trustmix.federation import Failure, Reply, Request
from trustmix.transport.flower_records import NODE_GONE
from trustmix.transport.refusal import UNKNOWN_RUN

from .flower_link import (
    PUBLIC,
    PUBLIC_SET,
    RUN,
    RUN_INFO,
    TIMEOUT,
    FlowerLink,
    build_client,
    build_model,
    make_handler,
)


def make_engine(
    link: FlowerLink, folder: Path, expected_clients: int, deadline: float | None = None, *, wait: bool = True
) -> FlowerEngine:
    membership = Membership(link.grid, RUN_INFO, PUBLIC_SET, folder / "nodes.json")
    engine = FlowerEngine(membership, expected_clients, deadline=deadline)
    if wait:
        engine.wait_for_clients(0, resumed=False)
    return engine


def exchange(engine: FlowerEngine, number: int) -> dict[str, Reply | Failure]:
    return {reply.client: reply for reply in engine.exchange(dict.fromkeys(engine.clients, Request(number)))}


def test_a_federation_over_flower_gives_the_numbers_of_one_on_this_machine(link: FlowerLink, tmp_path: Path) -> None:
    for name in ("north", "south", "east"):
        link.add_node(make_handler(name, tmp_path).handle)
    ours = tm.Federation(clients=make_engine(link, tmp_path, 3), public=PUBLIC).run(3)
    local = tm.Federation(clients=[build_client(name) for name in ("east", "north", "south")], public=PUBLIC).run(3)
    assert [line.concentration for line in ours.rounds] == pytest.approx([line.concentration for line in local.rounds])
    for mine, theirs in zip(ours.rounds, local.rounds, strict=True):
        assert set(mine.agreement) == {"north", "south", "east"}
        assert (mine.agreement, mine.public_epochs) == (theirs.agreement, theirs.public_epochs)
    assert {*ours.rounds[0].participants} == {"north", "south", "east"}
    assert ours.rounds[0].bytes_up == local.rounds[0].bytes_up


class BoastfulClient(tm.Client):
    """Its accuracy cannot be; its upload is sound."""

    def step(self, request: Request) -> Reply:
        return replace(super().step(request), accuracy=7.0, nll=float("nan"))


def test_a_bad_figure_costs_the_figure_and_not_the_upload(link: FlowerLink, tmp_path: Path) -> None:
    def build(_: object, public: tm.Public, __: Path) -> tm.Client:
        x, y = torch.rand(40, 4), torch.arange(40) % 2
        return BoastfulClient.from_arrays("north", build_model, x, y, public=public)

    link.add_node(MessageHandler("north", tmp_path / "north", build).handle)
    (line,) = tm.Federation(clients=make_engine(link, tmp_path, 1), public=PUBLIC).run(1).rounds
    assert (line.participants, line.failed, line.accuracy) == (["north"], {}, {})


def test_a_late_client_is_left_out_not_asked_while_busy_its_answer_handed_over_and_then_takes_part_again(
    link: FlowerLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, stored, now = threading.Event(), threading.Event(), [0.0]
    store = link.state.store_message_res

    def store_and_notify(message: Message) -> object:
        found = store(message)
        if message.metadata.group_id == "2" and released.is_set():
            stored.set()
        return found

    monkeypatch.setattr(link.state, "store_message_res", store_and_notify)

    def delay(message: Message) -> float:
        if message.metadata.group_id == "2":
            released.wait(TIMEOUT)
        return 0.0

    link.add_node(make_handler("quick", tmp_path).handle)
    link.add_node(make_handler("slow", tmp_path).handle, delay=delay)
    engine = replace(make_engine(link, tmp_path, 2, deadline=0.6), clock=lambda: now[0])
    assert all(isinstance(reply, Reply) for reply in exchange(engine, 1).values())
    second = {}
    for reply in engine.exchange(dict.fromkeys(engine.clients, Request(2))):
        second[reply.client] = reply
        now[0] += 1.0  # the deadline passes as soon as the quick client has replied
    assert isinstance(second["quick"], Reply)
    assert second["slow"] == Failure("slow", "no answer within 0.6 s", kind="late")
    unanswered = Failure("slow", "it has not answered the request of round 2 yet", sent=False, kind="late")
    assert exchange(engine, 3)["slow"] == unanswered
    released.set()
    assert stored.wait(TIMEOUT)
    fourth = exchange(engine, 4)["slow"]
    assert isinstance(fourth, Failure)
    assert fourth == replace(unanswered, late=fourth.late)
    assert fourth.late is not None
    assert (fourth.late.client, fourth.late.round) == ("slow", 2)
    end, number = time.monotonic() + TIMEOUT, 5
    while not isinstance(exchange(engine, number)["slow"], Reply):
        assert time.monotonic() < end, "the slow client does not take part again"
        number += 1


def test_a_client_that_joins_in_the_middle_takes_part_from_the_next_round(link: FlowerLink, tmp_path: Path) -> None:
    link.add_node(make_handler("first", tmp_path).handle, delay=lambda _: 0.3)
    engine = make_engine(link, tmp_path, 1)
    replies = engine.exchange({"first": Request(1)})
    link.add_node(make_handler("second", tmp_path).handle)
    assert [reply.client for reply in replies] == ["first"]
    end = time.monotonic() + TIMEOUT
    while engine.clients != ["first", "second"] and time.monotonic() < end:
        list(engine.exchange({"first": Request(1)}))
    assert set(exchange(engine, 2)) == {"first", "second"}


def test_a_node_that_was_restarted_has_lost_its_request_and_the_round_does_not_wait(
    link: FlowerLink, tmp_path: Path
) -> None:
    link.add_node(make_handler("steady", tmp_path).handle)
    node = link.add_node(
        make_handler("shaky", tmp_path).handle,
        delay=lambda message: 60.0 if message.metadata.group_id == "1" else 0.0,
    )
    engine = make_engine(link, tmp_path, 2)
    replies = engine.exchange(dict.fromkeys(engine.clients, Request(1)))
    assert next(replies).client == "steady"
    link.reconnect(node)
    (lost,) = replies
    assert isinstance(lost, Failure)
    assert lost.reason in ("its node reconnected and had lost the request", NODE_GONE)


def test_a_resumed_run_knows_its_clients_and_continues_with_a_quorum(link: FlowerLink, tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text('["north", "south"]')
    link.add_node(make_handler("south", tmp_path).handle)
    engine = make_engine(link, tmp_path, 2, wait=False)
    engine.wait_for_clients(0.1, resumed=True)
    replies = exchange(engine, 4)
    assert isinstance(replies["south"], Reply)
    assert replies["north"] == Failure("north", "not connected", sent=False, kind="absent")


def test_a_request_that_flower_does_not_accept_counts_as_not_sent(
    link: FlowerLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.add_node(make_handler("north", tmp_path).handle)
    engine = make_engine(link, tmp_path, 1)
    monkeypatch.setattr(link.grid, "push_messages", lambda messages: [""])
    assert exchange(engine, 1) == {"north": Failure("north", "the request could not be sent", sent=False)}


def test_a_client_whose_folder_was_lost_gets_another_handshake(link: FlowerLink, tmp_path: Path) -> None:
    handler = make_handler("north", tmp_path)
    link.add_node(handler.handle)
    engine = make_engine(link, tmp_path, 1)
    for file in (tmp_path / "north" / RUN).glob("*"):
        file.unlink()
    handler._clients.clear()
    assert exchange(engine, 1) == {"north": Failure("north", UNKNOWN_RUN)}
    assert isinstance(exchange(engine, 1)["north"], Reply)


def test_the_engines_name_in_a_recipe_is_refused_with_the_command_to_use() -> None:
    with pytest.raises(TrustmixError, match="use `trustmix serve`"):
        tm.run(tm.Recipe.load("demo", ["engine.name=flower"]))

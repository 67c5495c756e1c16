"""The engine over Flower's own link state: who is let in, left out, taken back; real messages without a network."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.server.superlink.linkstate import LinkState, LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

import trustmix as tm
from trustmix.deploy import flower_engine, membership, records
from trustmix.deploy.flower_engine import FlowerEngine
from trustmix.deploy.membership import Membership, RunInfo
from trustmix.deploy.message_handler import MessageHandler
from trustmix.errors import TrustmixError
from trustmix.federation import DiskStore, Failure, Reply, Request
from trustmix.federation.reply_validation import sanitize_reply
from trustmix.wire import encode_public_set

AGES = 1e6
"""Seconds between heartbeats, of which these nodes send none."""
RUN = "0123456789abcdef"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_engine, "POLL", 0.01)
    monkeypatch.setattr(membership, "LOOK", 0.01)


class Link:
    """Flower's link state with nodes that are threads instead of machines."""

    def __init__(self) -> None:
        objects = ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), objects)
        self.state: LinkState = factory.state()
        run = self.state.create_run("", "", "", {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, SUPERLINK_NODE_ID, 1
        self.grid = InMemoryGrid(factory)
        self.grid.set_run(self.state.get_run_info(run_ids=[run])[0])
        self.over = threading.Event()
        self.turn = threading.Lock()  # nodes of one process share torch's random numbers

    def node(
        self, desk: MessageHandler, name: str | None = None, slow: Callable[[Message], float] = lambda _: 0.0
    ) -> int:
        """A node that answers; `slow` says how long it takes."""
        key = f"{desk.id}{time.monotonic()}".encode()
        node = self.state.create_node("", "", key, AGES, name=name)
        assert self.state.activate_node(node, AGES)

        def work() -> None:
            while not self.over.wait(0.01):
                for message in self.state.get_message_ins(node, limit=1):
                    self.over.wait(slow(message))
                    with self.turn:
                        reply = desk.answer(message)
                    reply.metadata.__dict__["_message_id"] = reply.object_id
                    self.state.store_message_res(reply)

        threading.Thread(target=work, daemon=True).start()
        return node


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link()
    yield made
    made.over.set()


PUBLIC = tm.Public(torch.rand(30, 4, generator=torch.Generator().manual_seed(0)), classes=2)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2)


def client_of(name: str, public: tm.Public = PUBLIC, folder: Path | None = None) -> tm.Client:
    numbers = torch.Generator().manual_seed(len(name))
    x, y = torch.rand(40, 4, generator=numbers), torch.arange(40) % 2
    client = tm.Client.from_arrays(name, model, x, y, public=public)
    if folder is not None:
        client.store = DiskStore(folder)
    return client


def desk_of(name: str, folder: Path) -> MessageHandler:
    return MessageHandler(name, folder / name, lambda _, public, states: client_of(name, public, states))


def engine_of(link: Link, folder: Path, expected: int, **settings: Any) -> FlowerEngine:
    welcome = RunInfo(RUN, {"classes": ["a", "b"]}, PUBLIC.fingerprint, encode_public_set(PUBLIC.inputs))
    return FlowerEngine(Membership(link.grid, welcome, folder / "nodes.json"), expected, **settings)


def test_a_federation_over_flower_gives_the_numbers_of_one_on_this_machine(link: Link, tmp_path: Path) -> None:
    for name in ("north", "south", "east"):
        link.node(desk_of(name, tmp_path))
    engine = engine_of(link, tmp_path, 3)
    engine.gather(0, begun=False)
    ours = tm.Federation(clients=engine, public=PUBLIC).run(3)
    local = tm.Federation(clients=[client_of(name) for name in ("east", "north", "south")], public=PUBLIC).run(3)
    assert [line.concentration for line in ours.rounds] == pytest.approx([line.concentration for line in local.rounds])
    assert {*ours.rounds[0].participants} == {"north", "south", "east"}
    assert ours.rounds[0].bytes_up == local.rounds[0].bytes_up


class BoastfulClient(tm.Client):
    """Its accuracy cannot be; its upload is sound."""

    def step(self, request: Request) -> Reply:
        return replace(super().step(request), accuracy=7.0, nll=float("nan"))


def test_a_bad_figure_costs_the_figure_and_not_the_upload(link: Link, tmp_path: Path) -> None:
    def boastful(public: tm.Public) -> tm.Client:
        return BoastfulClient.from_arrays("north", model, torch.rand(40, 4), torch.arange(40) % 2, public=public)

    link.node(MessageHandler("north", tmp_path / "north", lambda _, public, states: boastful(public)))
    engine = engine_of(link, tmp_path, 1)
    engine.gather(0, begun=False)
    (line,) = tm.Federation(clients=engine, public=PUBLIC).run(1).rounds
    assert (line.participants, line.failed, line.accuracy) == (["north"], {}, {})


def test_a_late_client_is_left_out_not_asked_while_busy_and_then_takes_part_again(link: Link, tmp_path: Path) -> None:
    def slow(message: Message) -> float:
        return 1.5 if message.metadata.group_id == "2" else 0.0

    link.node(desk_of("quick", tmp_path))
    link.node(desk_of("slow", tmp_path), slow=slow)
    engine = engine_of(link, tmp_path, 2, deadline=0.6)
    engine.gather(0, begun=False)
    reasons: list[tuple[str, bool] | None] = []
    for number in range(1, 6):
        answers = {answer.client: answer for answer in engine.exchange(dict.fromkeys(engine.clients, Request(number)))}
        assert isinstance(answers["quick"], Reply)
        late = answers["slow"]
        reasons.append((late.reason, late.sent) if isinstance(late, Failure) else None)
        if number == 3:
            time.sleep(1.2)
    assert reasons[:3] == [None, ("no answer within 0.6 s", True), ("still busy with an earlier round", False)]
    assert reasons[4] is None


def test_a_client_that_comes_in_the_middle_takes_part_from_the_next_round(link: Link, tmp_path: Path) -> None:
    link.node(desk_of("first", tmp_path), slow=lambda _: 0.3)
    engine = engine_of(link, tmp_path, 1)
    engine.gather(0, begun=False)
    exchange = engine.exchange({"first": Request(1)})
    link.node(desk_of("second", tmp_path))
    assert [answer.client for answer in exchange] == ["first"]
    deadline = time.monotonic() + 20
    while engine.clients != ["first", "second"] and time.monotonic() < deadline:
        list(engine.exchange({"first": Request(1)}))
    assert {answer.client for answer in engine.exchange(dict.fromkeys(engine.clients, Request(2)))} == {
        "first",
        "second",
    }


def test_a_node_that_was_restarted_has_lost_its_request_and_the_round_does_not_wait(link: Link, tmp_path: Path) -> None:
    link.node(desk_of("steady", tmp_path))
    node = link.node(desk_of("shaky", tmp_path), slow=lambda message: 60.0 if message.metadata.group_id == "1" else 0.0)
    engine = engine_of(link, tmp_path, 2)
    engine.gather(0, begun=False)
    exchange = engine.exchange(dict.fromkeys(engine.clients, Request(1)))
    assert next(exchange).client == "steady"
    link.state.deactivate_node(node)
    link.state.activate_node(node, AGES)
    (lost,) = exchange
    assert isinstance(lost, Failure)
    assert lost.reason in ("its link was lost and taken up again; the request went with it", *FLOWERS_WORDS)


FLOWERS_WORDS = (
    "Error: Node Unavailable — The destination node failed to report a heartbeat within 2 × its expected interval.",
)
"""What Flower says of a node that is gone, if it is looked at between the two."""


def test_a_run_that_goes_on_knows_its_clients_and_begins_with_a_quorum(link: Link, tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text('["north", "south"]')
    link.node(desk_of("south", tmp_path))
    engine = engine_of(link, tmp_path, 2)
    engine.gather(0.1, begun=True)
    answers = {answer.client: answer for answer in engine.exchange(dict.fromkeys(engine.clients, Request(4)))}
    assert isinstance(answers["south"], Reply)
    assert answers["north"] == Failure("north", "not connected", sent=False)


def test_a_request_that_flower_does_not_take_counts_as_not_sent(
    link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.node(desk_of("north", tmp_path))
    engine = engine_of(link, tmp_path, 1)
    engine.gather(0, begun=False)
    monkeypatch.setattr(link.grid, "push_messages", lambda messages: [""])
    assert list(engine.exchange({"north": Request(1)})) == [
        Failure("north", "the request could not be sent", sent=False)
    ]


def test_a_key_registered_for_one_client_cannot_speak_for_another(
    link: Link, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    link.node(desk_of("north", tmp_path), name="south")
    link.node(desk_of("east", tmp_path), name="east")
    engine = engine_of(link, tmp_path, 1)
    engine.gather(0, begun=False)
    deadline = time.monotonic() + 20
    while "cannot join" not in caplog.text and time.monotonic() < deadline:
        list(engine.exchange({"east": Request(1)}))
    assert 'it says it is client "north", but its key is registered for "south"' in caplog.text
    assert engine.clients == ["east"]


def test_a_public_set_other_than_the_announced_one_is_refused(
    link: Link, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    link.node(desk_of("north", tmp_path))
    engine = engine_of(link, tmp_path, 1)
    other = RunInfo(RUN, {"classes": ["a", "b"]}, PUBLIC.fingerprint, encode_public_set(PUBLIC.inputs + 1))
    engine.reception.welcome = other
    deadline = time.monotonic() + 20
    while "cannot join" not in caplog.text and time.monotonic() < deadline:
        engine._listen()
    assert "was announced; it is refused" in caplog.text
    assert engine.clients == []


def test_a_node_that_was_refused_joins_when_it_comes_again_corrected(
    link: Link, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    corrected = threading.Event()

    def build(_: Any, public: tm.Public, states: Path) -> tm.Client:
        if not corrected.is_set():
            raise TrustmixError("a class that the server does not know")
        return client_of("north", public, states)

    node = link.node(MessageHandler("north", tmp_path / "north", build))
    engine = engine_of(link, tmp_path, 1)
    deadline = time.monotonic() + 20
    while "a class that the server does not know" not in caplog.text and time.monotonic() < deadline:
        engine._listen()
    corrected.set()
    link.state.deactivate_node(node)
    link.state.activate_node(node, AGES)
    while not engine.clients and time.monotonic() < deadline:
        engine._listen()
    assert engine.clients == ["north"]


def test_a_handshake_that_flower_does_not_take_is_tried_again(
    link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.node(desk_of("north", tmp_path))
    engine = engine_of(link, tmp_path, 1)
    with monkeypatch.context() as broken:
        broken.setattr(link.grid, "push_messages", lambda messages: [""])
        engine._listen()
    deadline = time.monotonic() + 20
    while not engine.clients and time.monotonic() < deadline:
        engine._listen()
    assert engine.clients == ["north"]


def test_a_client_whose_folder_was_lost_is_introduced_again(link: Link, tmp_path: Path) -> None:
    desk = desk_of("north", tmp_path)
    link.node(desk)
    engine = engine_of(link, tmp_path, 1)
    engine.gather(0, begun=False)
    for file in (tmp_path / "north" / RUN).glob("*"):
        file.unlink()
    desk._clients.clear()
    (answer,) = engine.exchange({"north": Request(1)})
    assert answer == Failure("north", membership.FORGOTTEN)
    (answer,) = engine.exchange({"north": Request(1)})
    assert isinstance(answer, Reply)


def test_a_client_goes_on_from_its_own_disk(link: Link, tmp_path: Path) -> None:
    """One process a message, as under `flwr run`, gives the same answers as a process that stays."""
    staying, forgetful = desk_of("staying", tmp_path), desk_of("passing", tmp_path)
    for number, desk in enumerate((staying, forgetful)):
        for kind, facts, payload in MESSAGES:
            if number:
                desk = MessageHandler("passing", tmp_path / "passing", desk.build)
            answer = desk.answer(asked(kind, facts, payload))
            told, _ = records.unpack_record(answer.content)
            assert "failure" not in told, told
    files = [sorted((tmp_path / name / RUN / "states").glob("*")) for name in ("staying", "passing")]
    assert (
        [file.name for file in files[0]]
        == [file.name for file in files[1]]
        == ["000001.safetensors", "000002.safetensors"]
    )


MESSAGES: list[tuple[str, dict[str, Any], bytes | None]] = [
    ("query.hello", {"run": RUN, "fingerprint": PUBLIC.fingerprint, "classes": ["a", "b"]}, None),
    ("query.public", {"run": RUN}, encode_public_set(PUBLIC.inputs)),
    ("train", {"run": RUN, "round": 1, "train": True, "upload": True}, None),
    ("train", {"run": RUN, "round": 2, "train": True, "upload": True}, None),
]


def asked(kind: str, facts: dict[str, Any], payload: bytes | None = None) -> Message:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SUPERLINK_NODE_ID, 1
    message = Message(records.pack_record(facts, payload), dst_node_id=7, message_type=kind)
    message.metadata.__dict__["_message_id"] = "m"
    return message


@pytest.mark.parametrize("run", ["../../etc", "", "0123456789ABCDEF", "0" * 15, "0" * 400])
def test_a_runs_mark_names_no_other_folder(tmp_path: Path, run: str) -> None:
    told, _ = records.unpack_record(desk_of("north", tmp_path).answer(asked("query.hello", {"run": run})).content)
    assert "is not the mark of a run" in told["failure"]
    assert list((tmp_path / "north").iterdir()) == []


def test_an_error_of_a_clients_model_is_told_in_its_answer(tmp_path: Path) -> None:
    def broken(*_: Any) -> tm.Client:
        raise ZeroDivisionError("a bad model")

    desk = MessageHandler("north", tmp_path, broken)
    desk.answer(asked(*MESSAGES[0]))
    told, _ = records.unpack_record(desk.answer(asked(*MESSAGES[1])).content)
    assert told == {"client": "north", "failure": "ZeroDivisionError: a bad model"}


def replied(facts: dict[str, Any], payload: bytes | None = None) -> Message:
    return Message(records.pack_record(facts, payload), reply_to=asked("train", {}))


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ({"client": "south", "round": 1}, "it answers for client south, round 1; asked was round 1"),
        ({"client": "north", "round": 2}, "it answers for client north, round 2; asked was round 1"),
    ],
)
def test_a_reply_for_another_client_or_round_is_the_clients_failure(facts: dict[str, Any], complaint: str) -> None:
    answer = records.parse_reply("north", Request(1), replied(facts))
    assert answer == Failure("north", f"answer refused: {complaint}")


@pytest.mark.parametrize("value", [1.5, -1, float("nan"), float("inf"), 10**400, "0.5", True, [0.5], {}])
def test_a_figure_that_cannot_be_is_left_out_and_the_reply_is_kept(value: object) -> None:
    figures = {"accuracy": value, "local_accuracy": 0.5, "seconds": {"train": value, "save": 2}}
    answer = records.parse_reply("north", Request(1), replied({"client": "north", "round": 1, **figures}, b"upload"))
    assert isinstance(answer, Reply)
    kept = Reply("north", 1, b"upload", local_accuracy=0.5, seconds={"save": 2.0})
    if value == 1.5:  # an accuracy cannot be above 1, a time can
        kept.seconds["train"] = 1.5
    assert sanitize_reply(answer) == kept


@pytest.mark.parametrize("seconds", [3, None, "long", [1, 2], {"train": None}])
def test_times_that_are_none_are_left_out_and_the_reply_is_kept(seconds: object) -> None:
    answer = records.parse_reply("north", Request(1), replied({"client": "north", "round": 1, "seconds": seconds}))
    assert answer == Reply("north", 1)


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
        records.unpack_record(content)


def test_a_payload_arrives_as_it_was_sent() -> None:
    reply = Reply("north", 1, bytes(range(256)) * 100, 0.5, None, {"train": 1.0}, epsilon=2.5)
    message = Message(records.pack_reply(reply), reply_to=asked("train", {}))
    assert records.parse_reply("north", Request(1), message) == reply


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "x" * 65, "naïve", "a b"])
def test_an_id_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(TrustmixError, match="is no client id"):
        membership.validate_client_id(name)


def test_the_engines_name_in_a_recipe_says_what_to_do() -> None:
    with pytest.raises(TrustmixError, match="use `trustmix serve`"):
        tm.run(tm.Recipe.load("demo", ["engine.name=flower"]))

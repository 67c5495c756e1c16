"""Nodes with registered keys that attack a running server: real processes, real keys, Flower's own interface."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

import psutil
from benchmarks.deployment import Deployment, child_of
from flwr.app import Message

from trustmix.transport.flower_records import pack_record

from .hostile_node import HostileNode

pytestmark = pytest.mark.slow

HONEST = ["0", "1"]
DEADLINE = 60
"""Seconds that an honest node on a busy machine does not need, and that a node which never answers costs."""
SETTINGS = ["clients=3", "rounds=2", "split.classes_per_client=4", f"participation.deadline={DEADLINE}"]
TIMEOUT = 600
MEGABYTES = 200
"""Of a reply that is too large; a reply of the demo has less than one."""


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path, "demo", SETTINGS, [*HONEST, "mallory", "south"])
    yield made
    made.close()


def join_handshake(node: HostileNode, message: Message, client: str = "mallory") -> bool:
    """Join like an honest node; whether the message was one of the handshake."""
    if not message.metadata.message_type.startswith("query."):
        return False
    node.send(message, pack_record({"client": client, "public": True}))
    return True


def attack(deployment: Deployment, *nodes: HostileNode) -> list[dict[str, object]]:
    """The rounds of a run of the honest nodes and these."""
    deployment.serve("--nodes", "3")
    for node in nodes:
        node.start()
    for name in HONEST:
        deployment.join(name)
    assert deployment.finish(TIMEOUT) == 0, deployment.log("serve")
    for node in nodes:
        node.close()
    lines = deployment.rounds()
    assert [line["round"] for line in lines] == [1, 2]
    assert all({*HONEST} <= {*line["participants"]} for line in lines)
    return lines


def mallory(deployment: Deployment, answer: Callable[[HostileNode, Message], None]) -> HostileNode:
    return HostileNode(deployment.address, deployment.folder / "keys" / "mallory", answer)


def test_a_node_that_announces_answers_and_never_sends_them_costs_no_more_than_the_deadline(
    deployment: Deployment,
) -> None:
    def answer(node: HostileNode, message: Message) -> None:
        if not join_handshake(node, message):
            node.announce(message, pack_record({"client": "mallory", "round": 1}, b"x" * 1000))

    first, _ = attack(deployment, mallory(deployment, answer))
    assert first["failed"] == {"mallory": f"no answer within {DEADLINE} s"}


def test_a_reason_with_markup_and_control_characters_does_not_end_the_run(deployment: Deployment) -> None:
    def answer(node: HostileNode, message: Message) -> None:
        if not join_handshake(node, message):
            node.send(message, pack_record({"client": "mallory", "failure": "[/x] \x1b[2J"}))

    lines = attack(deployment, mallory(deployment, answer))
    assert [line["failed"] for line in lines] == [{"mallory": "[/x] ?[2J"}] * 2
    assert "left out mallory: [/x] ?[2J" in deployment.log("serve")


def test_an_answer_of_hundreds_of_megabytes_is_refused_before_it_is_taken(deployment: Deployment) -> None:
    large = Random(0).randbytes(MEGABYTES * 10**6)
    peak = [0]

    def answer(node: HostileNode, message: Message) -> None:
        if not join_handshake(node, message):
            try:
                node.send(message, pack_record({"client": "mallory", "round": 1}, large))
            finally:
                server = deployment.processes["serve"].pid
                processes = [psutil.Process(server), psutil.Process(child_of(server, "flower-superlink"))]
                peak[0] = max(peak[0], sum(process.memory_info().rss for process in processes))

    node = mallory(deployment, answer)
    attack(deployment, node)
    assert 413 in node.statuses
    assert 0 < peak[0] < 10**9 + MEGABYTES * 10**6 / 2


def test_two_nodes_cannot_bring_answers_in_each_others_name_or_under_another_clients_id(
    deployment: Deployment,
) -> None:
    greeting: list[Message] = []

    def pass_on(_: HostileNode, message: Message) -> None:
        greeting.append(message)

    def bring(node: HostileNode, message: Message) -> None:
        if greeting:
            forged = greeting.pop()
            node.send(message, pack_record({"client": "south", "public": True}))
            node.announce(forged, pack_record({"client": "1", "public": True}), forged.metadata.dst_node_id)

    south = HostileNode(deployment.address, deployment.folder / "keys" / "south", pass_on)
    other = mallory(deployment, bring)
    deployment.serve("--nodes", "2")
    south.start()
    deployment.wait(lambda: bool(greeting), TIMEOUT, "a greeting")
    other.start()
    deployment.wait(lambda: 403 in other.statuses, TIMEOUT, "the refusal of the proxy")
    deployment.wait(lambda: "cannot join" in deployment.log("serve"), TIMEOUT, "the refusal of the server")
    for name in HONEST:
        deployment.join(name)
    assert deployment.finish(TIMEOUT) == 0, deployment.log("serve")
    for node in (south, other):
        node.close()
    assert 'it claims to be client "south", but its key is registered for client "mallory"' in deployment.log("serve")
    assert all(sorted(line["participants"]) == HONEST for line in deployment.rounds())

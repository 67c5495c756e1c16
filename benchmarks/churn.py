"""Nodes that join, leave and crash at random while a run goes on; what happens when follows from the seed.

Every node of the recipe takes part at some time; several are refused for a wrong file and come back with the right one.
"""

import signal
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.deployment import Deployment

QUIET_ROUNDS = 10
"""Rounds at the end in which nothing more happens and every node is to come back."""
WRONG_SHARE = 99
"""The share in a wrong file; no recipe here has as many clients."""


class Churn(Deployment):
    """A served run whose nodes come and go.

    Parameters
    ----------
    folder : Path
        Gets all files.
    nodes : int
        The nodes; each has a key.
    rounds : int
        Rounds after each of which something happens.
    seed : int
        Decides what.
    deadline : float
        Seconds that a round waits for an answer.
    """

    def __init__(self, folder: Path, nodes: int, rounds: int, seed: int, deadline: float) -> None:
        self.nodes, self.disturbed = [str(number) for number in range(nodes)], rounds
        self.rng = np.random.default_rng(seed)
        settings = [f"clients={nodes}", f"rounds={rounds + QUIET_ROUNDS}", "split.classes_per_client=4"]
        settings += ["split.samples_per_client=60", "participation.quorum=0.25", f"participation.deadline={deadline:g}"]
        super().__init__(folder, "demo", settings, self.nodes)
        self.right: set[str] = set()
        self.wrong: set[str] = set()
        self.events: list[tuple[int, str, str]] = []
        self.returned: dict[str, int] = {}

    def play(self, seconds: float) -> None:
        """Run to the end; `seconds` is the most that any single step may take."""
        first = self.nodes[: len(self.nodes) // 2 + 1]
        self.serve("--nodes", str(len(first)))
        for node in first:
            self.bring(node)
        for number in range(1, self.disturbed + 1):
            self.wait(lambda number=number: len(self.rounds()) >= number, seconds, f"round {number}")  # type: ignore[misc]
            self.events.append((number, *self.disturb(seconds)))
        for node in self.nodes:
            if node not in self.right:
                self.send_away(node)
                self.bring(node)
        code = self.finish((QUIET_ROUNDS + 1) * seconds)
        assert code == 0, self.log("serve")

    def disturb(self, seconds: float) -> tuple[str, str]:
        """One thing that happens to one node; its name and the node's."""
        away = [node for node in self.nodes if node not in self.right | self.wrong]
        kinds = ["leaves"] if len(self.right) > len(self.nodes) // 2 else []
        kinds += ["crashes", "its SuperNode is killed"] if kinds else []
        kinds += ["comes", "comes with a wrong file"] if away else []
        kinds += ["comes with the right file"] if self.wrong else []
        kind = str(self.rng.choice(kinds))
        among = away if kind in ("comes", "comes with a wrong file") else sorted(self.right)
        node = str(self.rng.choice(sorted(self.wrong) if kind == "comes with the right file" else among))
        if kind == "its SuperNode is killed":
            self.wait(lambda: self.killed_supernode(node), seconds, f"the SuperNode of node {node}")
            self.returned[node] = len(self.rounds())
        elif kind in ("leaves", "crashes"):
            self.send_away(node, signal.SIGTERM if kind == "leaves" else signal.SIGKILL)
        elif kind == "comes with a wrong file":
            self.join(node, f'id = "{node}"\nshare = {WRONG_SHARE}\n')
            self.wrong.add(node)
            refused = self.refusals(node)
            self.wait(lambda: self.refusals(node) > refused, seconds, f"the refusal of node {node}")
        else:
            self.send_away(node)
            self.bring(node)
        return kind, node

    def killed_supernode(self, node: str) -> bool:
        """Kill a node's SuperNode, unless `join` is about to start it."""
        try:
            self.kill_child(node, "flower-supernode")
        except LookupError:
            return False
        return True

    def refusals(self, node: str) -> int:
        """How often the server has printed that it refuses a node."""
        return self.log("serve").count(f"node {node} cannot join: it cannot read its data as the server asks")

    def bring(self, node: str) -> None:
        """Start a node with the right file."""
        self.join(node)
        self.right.add(node)
        self.returned[node] = len(self.rounds())

    def send_away(self, node: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End a node, if it runs."""
        process = self.processes.get(node)
        if process is not None and process.poll() is None:
            process.send_signal(how)
            process.wait()
        self.right.discard(node)
        self.wrong.discard(node)

    def verify(self) -> str:
        """Raise unless no round is lost, no node is locked out and each refusal is explained; what was seen."""
        lines = self.rounds()
        assert [line["round"] for line in lines] == list(range(1, self.disturbed + QUIET_ROUNDS + 1)), lines
        assert all(line["participants"] for line in lines)
        assert "starting it again" not in self.log("serve")
        for node, since in self.returned.items():
            later = [line["round"] for line in lines if line["round"] > since and node in line["participants"]]
            assert later, f"node {node} came back after round {since} and never took part\n{self.log(node)}"
        for _, kind, node in self.events:
            if kind == "comes with a wrong file":
                assert any(node in line["refused"] for line in lines), (node, [line["refused"] for line in lines])
                assert f"share is {WRONG_SHARE}, but the recipe splits its data" in self.log(node)
        for line in lines:
            assert set(line["failed"]) | set(line["refused"]) <= set(self.nodes), line
            assert all({**line["failed"], **line["refused"]}.values()), line
        counts = Counter(kind for _, kind, _ in self.events)
        what = ", ".join(f"{count} times a node {kind}" for kind, count in counts.most_common())
        parts = [len(line["participants"]) for line in lines]
        return (
            f"{what.replace('a node its', 'its')}; {len(lines)} rounds, each once, with {min(parts)} to {max(parts)} "
            "clients; each node took part again after its last return"
        )

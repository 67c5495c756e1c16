"""The fault drill of a deployment: real processes on loopback, killed at bad moments: `make drill`.

Prints the table of RESULTS.md. Every line is checked: a fault that does something else than it should ends the drill.
"""

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np

from benchmarks.churn import Churn
from benchmarks.deployment import COMMAND, Deployment, FlowerCommands
from trustmix import storage
from trustmix.deploy.superlink import app_folder

NODES = ["0", "1", "2", "3"]
ROUNDS = int(os.environ.get("DRILL_ROUNDS", "40"))
"""Of the run that is disturbed: enough for every fault and the way back from it."""
PATIENCE = float(os.environ.get("DRILL_PATIENCE", "300"))
"""Seconds after which something that should happen counts as not happening."""
DEADLINE = float(os.environ.get("DRILL_DEADLINE", "20"))
"""Seconds a round waits for an answer."""


class Drill(Deployment):
    """Nodes with keys on the demo's data, started."""

    def __init__(self, folder: Path, *settings: str, rounds: int, nodes: Sequence[str] = NODES) -> None:
        self.count = rounds
        sets = ["clients=4", f"rounds={rounds}", "split.classes_per_client=4", *settings]
        super().__init__(folder, "demo", sets, NODES)
        self.serve("--nodes", str(len(nodes)))
        for node in nodes:
            self.join(node)

    def asked(self, node: str) -> int:
        """The last round that a node was asked for."""
        return max((int(number) for number in re.findall(r"^\S+ \S+ round (\d+)$", self.log(node), re.M)), default=0)

    def await_request(self, node: str) -> int:
        """Wait until a node is in the middle of a further round, and return its number."""
        before = self.asked(node)
        self.wait(lambda: self.asked(node) > before, PATIENCE, f"a further round at node {node}")
        return self.asked(node)

    def part(self, node: str) -> list[int]:
        """The rounds that a node took part in."""
        return [line["round"] for line in self.rounds() if node in line["participants"]]

    def back(self, node: str, disturbed: int) -> str:
        """Wait until a node has missed the round, or one after it, and takes part again; return why it was left out."""
        missed: dict[int, str] = {}

        def returned() -> bool:
            lines = self.rounds()
            missed.update({line["round"]: line["failed"][node] for line in lines if node in line["failed"]})
            later = {number for number in missed if number >= disturbed}
            return bool(later) and max(self.part(node), default=0) > max(later)

        self.wait(returned, PATIENCE, f"the return of node {node}")
        later = {number: reason for number, reason in missed.items() if number >= disturbed}
        again = min(number for number in self.part(node) if number > max(later))
        return f'left out of round {", ".join(map(str, later))} ("{next(iter(later.values()))}"), back in round {again}'

    def ended(self) -> list[dict[str, Any]]:
        """The rounds of a run that ended well, each recorded once."""
        code = self.finish(PATIENCE)
        assert code == 0, self.log("serve")
        lines = self.rounds()
        assert [line["round"] for line in lines] == list(range(1, self.count + 1)), lines
        return lines


def undisturbed(folder: Path) -> Iterator[tuple[str, str]]:
    """The same numbers as on one machine, and what the way over Flower costs a round."""
    drill = Drill(folder, rounds=5)
    seen = [0.0] * 5
    try:
        for number in range(5):
            drill.wait(lambda number=number: len(drill.rounds()) > number, PATIENCE, "a round")  # type: ignore[misc]
            seen[number] = time.monotonic()
        lines = drill.ended()
    finally:
        drill.close()
    sets = [part for setting in [*drill.settings, "engine.mode=sequential"] for part in ("--set", setting)]
    subprocess.run([*COMMAND, "run", "demo", *sets, "--out", str(folder / "local"), "-q"], check=True)
    local = [json.loads(line) for line in (folder / "local" / "rounds.jsonl").read_text().splitlines()]
    pairs = [(a["accuracy"][n], b["accuracy"][n]) for a, b in zip(lines, local, strict=True) for n in NODES]
    far = max(abs(ours - theirs) for ours, theirs in pairs)
    assert far < 1e-9, far
    pace = [later - sooner for sooner, later in pairwise(seen)]
    work = median(sum(much for stage, much in line["seconds"].items() if stage != "wall") for line in lines)
    yield (
        "nothing; TLS, keys, four nodes",
        f"accuracies as on one machine (largest difference {far:.0e}); a round takes {median(pace):.1f} s, in which "
        f"all clients together compute for {work:.1f} s",
    )


def disturbed(folder: Path) -> Iterator[tuple[str, str]]:
    """One run, with one fault after the other."""
    drill = Drill(folder, f"participation.deadline={DEADLINE:g}", rounds=ROUNDS, nodes=NODES[:3])
    try:
        refused = stranger(drill)
        drill.await_request("0")
        drill.join("3")

        number = drill.await_request("1")
        drill.kill_child("1", "flower-supernode")
        yield "kill -9 of a SuperNode in the middle of a round", drill.back("1", number)

        number = drill.await_request("2")
        drill.processes["2"].send_signal(signal.SIGSTOP)
        drill.wait(lambda: any("2" in line["failed"] for line in drill.rounds()), PATIENCE, "a round without the node")
        drill.processes["2"].send_signal(signal.SIGCONT)
        yield "a node hangs longer than the deadline", drill.back("2", number)

        drill.wait(lambda: bool(drill.part("3")), PATIENCE, "the part of a client that came late")
        assert 1 not in drill.part("3")
        yield "a client joins in the middle of a run", f"takes part from round {min(drill.part('3'))} on"

        number = drill.await_request("3")
        drill.processes["3"].kill()
        drill.processes["3"].wait()
        drill.wait(lambda: any("3" in line["failed"] for line in drill.rounds()), PATIENCE, "a round without the node")
        drill.join("3")
        way_back = drill.back("3", number)
        stages = int(storage.read_tensors(max((folder / "3-state").glob("*/states/*.safetensors")))[1]["stages"])
        assert stages >= len(drill.part("3")), stages
        yield "kill -9 of a whole node, started again", f"{way_back}; its model kept the private stages behind it"

        yield "a stranger with an unregistered key", refused()

        number = drill.await_request("0")
        drill.kill_child("serve", "flower-superlink")
        drill.wait(
            lambda: set(NODES) <= participants(drill, number), PATIENCE, "all clients after the SuperLink's death"
        )
        assert "starting it again" in drill.log("serve")
        yield "kill -9 of the SuperLink in the middle of a round", f"started again by itself, round {number} repeated"

        number = drill.await_request("0")
        drill.processes["serve"].kill()
        drill.processes["serve"].wait()
        before = len(drill.rounds())
        drill.serve("--nodes", "3")
        lines = drill.ended()
        outcome = f"went on after round {before}; {len(lines)} rounds in the end, each once, exit code 0"
        yield "kill -9 of the server (ServerApp), the same command again", outcome
    finally:
        drill.close()


def participants(drill: Drill, number: int) -> set[str]:
    """Who took part in that round or a later one, by the latest."""
    lines = [line for line in drill.rounds() if line["round"] >= number]
    return set(lines[-1]["participants"]) if lines else set()


def stranger(drill: Drill) -> Callable[[], str]:
    """Let a node come whose key is not registered; the function returned waits for the refusal."""
    other = drill.folder / "other"
    drill.command("keys", str(other), "--host", "127.0.0.1", "--nodes", "9")
    shutil.copy(drill.folder / "keys" / "server" / "ca.crt", other / "9" / "ca.crt")
    process = drill.join("9", 'share = 0\nid = "9"\n', other / "9")

    def refused() -> str:
        drill.wait(lambda: process.poll() is not None, PATIENCE, "the refusal")
        assert process.returncode == 2, drill.log("9")
        trusted = ssl.create_default_context(cafile=str(drill.folder / "keys" / "ca.crt"))
        found = httpx.post(f"https://{drill.address}/v1/control/register-node", verify=trusted)
        assert found.status_code == 404, found
        return "refused, exit code 2; the control interface is not to be seen (404)"

    return refused


def large(folder: Path) -> Iterator[tuple[str, str]]:
    """50,000 public samples, 100 classes, float16."""
    rng = np.random.default_rng(0)
    names = [f"class {number}" for number in range(100)]
    np.savez(folder / "public.npz", x_public=rng.normal(size=(50_000, 8)).astype("f4"))
    np.savez(folder / "own.npz", x_train=rng.normal(size=(2000, 8)).astype("f4"), y_train=np.arange(2000) % 100)
    (folder / "recipe.toml").write_text(
        f'clients = 1\nrounds = 2\n[data]\nname = "shared"\npath = "public.npz"\nclasses = {json.dumps(names)}\n'
        '[public]\nsamples = 50000\n[wire]\nup = "float16"\ndown = "float16"\n'
    )
    deployment = Deployment(folder, "recipe.toml", [], ["north"])
    try:
        deployment.serve()
        deployment.join("north", 'id = "north"\ndata = "own.npz"\n')
        assert deployment.finish(PATIENCE) == 0, deployment.log("serve")
        lines = deployment.rounds()
        assert len(lines) == 2
        traffic = f"{lines[0]['bytes_up'] / 1e6:.1f} MB up, {lines[0]['bytes_down'] / 1e6:.1f} MB down, passed"
        yield "predictions for 50,000 samples and 100 classes in float16", traffic
    finally:
        deployment.close()


def plain(folder: Path) -> Iterator[tuple[str, str]]:
    """Flower's own commands and the app folder, with TLS and keys."""
    flower = FlowerCommands(folder, NODES[:2])
    try:
        for number in NODES[:2]:
            flower.join(number, f'partition-id={number} num-partitions=2 folder="{folder}"', PATIENCE)
        settings = "clients=2 rounds=2 split.classes_per_client=5"
        printed = flower.run(app_folder(), f'recipe="demo" settings="{settings}" out="{folder}/run"', PATIENCE)
        assert (folder / "run" / "summary.json").exists(), printed
        yield "Flower's own commands: flower-superlink, flower-supernode, flwr run", "2 rounds, as they should"
    finally:
        flower.close()


def churn(folder: Path) -> Iterator[tuple[str, str]]:
    """Ten nodes that join, leave and crash at random for 20 rounds."""
    drill = Churn(folder, 10, 20, seed=int(os.environ.get("DRILL_SEED", "0")), deadline=3 * DEADLINE)
    try:
        drill.play(PATIENCE)
        yield "ten nodes join, leave and crash at random for 20 rounds", drill.verify()
    finally:
        drill.close()


DRILLS: dict[str, Callable[[Path], Iterator[tuple[str, str]]]] = {
    "undisturbed": undisturbed,
    "disturbed": disturbed,
    "large": large,
    "plain": plain,
    "churn": churn,
}


def main() -> None:
    """All drills, or those named."""
    print("| what happens | what the federation does | after seconds |\n|---|---|---|", flush=True)
    for name in sys.argv[1:] or DRILLS:
        folder = Path(tempfile.mkdtemp(prefix="trustmix-drill-"))
        begin = time.monotonic()
        for what, outcome in DRILLS[name](folder):
            print(f"| {what} | {outcome} | {time.monotonic() - begin:.0f} |", flush=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

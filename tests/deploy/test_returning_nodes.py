"""Nodes that were refused or died come back with a right file while the server goes on: real processes and keys."""

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from benchmarks.deployment import Deployment

from trustmix.transport.refusal import CLASSES, DATA

pytestmark = pytest.mark.slow

TIMEOUT = 600
RECIPE = """
clients = 2
rounds = 2
[data]
name = "shared"
path = "public.csv"
classes = ["healthy", "ill"]
[public]
samples = 40
[model]
name = "mlp"
hidden = [4]
[train]
first_epochs = 1
[participation]
deadline = 600
"""
SLOW_MODEL = """
import time
from pathlib import Path
import torch

def build(shape, classes):
    Path("being_built").touch()
    time.sleep(600)
"""
RIGHT = 'id = "south"\ndata = "right.csv"\nlabel = "diagnosis"\n'


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(60, 2))
    rows = [f"{a:.3f},{b:.3f}" for a, b in numbers]
    (tmp_path / "public.csv").write_text("\n".join(["age,pressure", *rows]) + "\n")
    for name, second in (("right", "ill"), ("wrong", "dead")):
        labelled = [f"{row},{'healthy' if i % 2 else second}" for i, row in enumerate(rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,pressure,diagnosis", *labelled]) + "\n")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "slow_models.py").write_text(SLOW_MODEL)
    made = Deployment(tmp_path, "recipe.toml", [], ["north", "south", "east"])
    yield made
    made.close()


def join(deployment: Deployment, text: str, keys: str = "south") -> None:
    deployment.join("south", text, deployment.folder / "keys" / keys)


def leave(deployment: Deployment, how: signal.Signals = signal.SIGTERM) -> None:
    deployment.processes["south"].send_signal(how)
    deployment.processes["south"].wait()


def await_refusal(deployment: Deployment, at_the_server: str, at_the_node: str) -> None:
    deployment.wait(lambda: at_the_server in deployment.log("serve"), TIMEOUT, at_the_server)
    deployment.wait(lambda: at_the_node in deployment.log("south"), TIMEOUT, at_the_node)


def test_a_node_that_was_refused_or_died_comes_back_without_a_restart_of_the_server(deployment: Deployment) -> None:
    deployment.serve()
    deployment.join("north", RIGHT.replace("south", "north"))

    join(deployment, RIGHT.replace("right", "wrong"))
    await_refusal(deployment, f"node south cannot join: {CLASSES}", 'has the class "dead"')
    leave(deployment)

    join(deployment, RIGHT + 'columns = ["age"]\n')
    await_refusal(deployment, f"node south cannot join: {DATA}", 'the column "pressure", which columns')
    leave(deployment, signal.SIGKILL)

    join(deployment, RIGHT, keys="east")
    claim = 'it claims to be client "south", but its key is registered for client "east"'
    await_refusal(deployment, f"node east cannot join: {claim}", f"the server refuses client south: {claim}")
    leave(deployment)

    join(deployment, RIGHT + 'model = "slow_models:build"\n')
    deployment.wait((deployment.folder / "being_built").exists, TIMEOUT, "the greeting")
    leave(deployment, signal.SIGKILL)

    join(deployment, RIGHT)
    assert deployment.finish(TIMEOUT) == 0, deployment.log("serve") + deployment.log("south")
    assert [sorted(line["participants"]) for line in deployment.rounds()] == [["north", "south"]] * 2
    assert '"dead"' not in deployment.log("serve"), "what the node's data hold stays at the node"


def test_a_node_with_an_unregistered_key_is_refused_on_both_sides_and_comes_back_with_its_own(
    deployment: Deployment,
) -> None:
    deployment.command("keys", str(deployment.folder / "other"), "--host", "127.0.0.1", "--nodes", "south")
    own = deployment.folder / "keys" / "south"
    (deployment.folder / "other" / "south" / "ca.crt").write_bytes((own / "ca.crt").read_bytes())
    deployment.serve("--nodes", "1")
    refused = deployment.join("south", RIGHT, deployment.folder / "other" / "south")
    deployment.wait(lambda: refused.poll() is not None, TIMEOUT, "the refusal")
    assert refused.returncode == 2
    assert "the key of client south in" in deployment.log("south")
    assert "is refused: its key is not registered" in deployment.log("serve")
    join(deployment, RIGHT)
    assert deployment.finish(TIMEOUT) == 0, deployment.log("serve") + deployment.log("south")

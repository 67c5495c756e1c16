"""A deployment as organisations run it: separate processes, TLS and keys, on loopback.

`make drill` kills them and checks what happens; it takes minutes.
"""

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from benchmarks.deployment import Deployment

import trustmix as tm

pytestmark = pytest.mark.slow

NODES = ["0", "1", "2", "3"]
SETTINGS = ["clients=4", "rounds=2", "split.classes_per_client=4", "train.public_epochs=1"]
TIMEOUT = 240


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path, "demo", SETTINGS, NODES)
    yield made
    made.close()


def test_four_nodes_with_keys_get_the_numbers_of_one_machine_and_a_stranger_is_refused(deployment: Deployment) -> None:
    other = deployment.folder / "other"
    deployment.command("keys", str(other), "--host", "127.0.0.1", "--nodes", "stranger")
    shutil.copy(deployment.folder / "keys" / "server" / "ca.crt", other / "stranger" / "ca.crt")
    deployment.serve()
    stranger = deployment.join("stranger", 'share = 0\nid = "stranger"\n', other / "stranger")
    for node in NODES:
        deployment.join(node)
    assert deployment.finish(TIMEOUT) == 0, deployment.log("serve")
    deployment.wait(lambda: stranger.poll() is not None, TIMEOUT, "the refusal")
    assert stranger.returncode == 2
    assert "does not let this node in" in deployment.log("stranger")
    ours = deployment.rounds()
    local = tm.run(tm.Recipe.load("demo", [*SETTINGS, "engine.mode=sequential"]))
    assert [line["round"] for line in ours] == [1, 2]
    for mine, theirs in zip(ours, local.rounds, strict=True):
        assert mine["accuracy"] == pytest.approx(theirs.accuracy)
        assert mine["agreement"] == pytest.approx(theirs.agreement)
        assert mine["local_accuracy"] == pytest.approx(theirs.local_accuracy)
        assert mine["teacher_accuracy"] == pytest.approx(theirs.teacher_accuracy)
        assert mine["bytes_up"] == theirs.bytes_up
    assert (deployment.out / "summary.json").exists()
    private = [
        deployment.out,
        deployment.out / "checkpoint",
        deployment.folder / "run.flower",
        deployment.folder / "0-state",
    ]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in private} == {0o700}


def test_a_node_with_its_own_data_sends_predictions_for_50000_samples_and_100_classes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = [f"class {number}" for number in range(100)]
    np.savez(tmp_path / "public.npz", x_public=rng.normal(size=(50_000, 8)).astype("f4"))
    np.savez(tmp_path / "own.npz", x_train=rng.normal(size=(400, 8)).astype("f4"), y_train=np.arange(400) % 100)
    (tmp_path / "recipe.toml").write_text(
        f'clients = 1\nrounds = 1\n[data]\nname = "shared"\npath = "public.npz"\nclasses = {json.dumps(names)}\n'
        '[public]\nsamples = 50000\n[model]\nname = "mlp"\nhidden = [8]\n[train]\nbatch = 500\nfirst_epochs = 1\n'
        '[wire]\nup = "float16"\ndown = "float16"\n'
    )
    deployment = Deployment(tmp_path, "recipe.toml", [], [], secure=False)
    try:
        deployment.serve()
        deployment.join("north", 'id = "north"\ndata = "own.npz"\n')
        assert deployment.finish(TIMEOUT) == 0, deployment.log("serve")
    finally:
        deployment.close()
    (line,) = deployment.rounds()
    assert line["participants"] == ["north"]
    assert min(line["bytes_up"], line["bytes_down"]) > 5e6

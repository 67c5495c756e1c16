"""Four organisations with data and models of their own: at the end each of them predicts with its own model."""

import csv
import json
import re
import subprocess
from pathlib import Path

import httpx
import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from benchmarks.deployment import COMMAND, Deployment

from trustmix.deploy.node import NodeConfig
from trustmix.deploy.node_data import load_node_data
from trustmix.transport.flower_processes import free_port

pytestmark = pytest.mark.slow

TIMEOUT = 600
HOSPITALS = ["east", "north", "south", "west"]
CLASSES = ["healthy", "ill", "unclear"]
RECIPE = """
clients = 4
rounds = 2
[data]
name = "shared"
path = "public.csv"
classes = ["healthy", "ill", "unclear"]
[public]
samples = 60
[train]
first_epochs = 3
[participation]
deadline = 600
"""
MODEL = "import torch\n\ndef build(shape, classes):\n    return torch.nn.Linear(shape[0], classes)\n"


def write_table(file: Path, samples: int, classes: list[str], seed: int) -> None:
    """Patients whose class is where they lie in the plane."""
    rng = np.random.default_rng(seed)
    labels = [classes[index % len(classes)] for index in range(samples)]
    centres = [3.0 * CLASSES.index(label) for label in labels]
    rows = [[f"{rng.normal(x):.4f}", f"{rng.normal(-x):.4f}", label] for x, label in zip(centres, labels, strict=True)]
    with open(file, "w", newline="") as stream:
        csv.writer(stream).writerows([["age", "pressure", "diagnosis"], *rows])


def write_own_test(node: NodeConfig, file: Path) -> None:
    """The rows that a node measures its accuracy on."""
    data = load_node_data(node)
    assert data.test is not None
    names = [data.class_names[label] for label in data.test.labels.tolist()]
    rows = [[*map(repr, row), name] for row, name in zip(data.test.inputs.tolist(), names, strict=True)]
    with open(file, "w", newline="") as stream:
        csv.writer(stream).writerows([["age", "pressure", "diagnosis"], *rows])


def is_healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").text == "ok\n"
    except httpx.TransportError:
        return False


def test_each_node_predicts_with_its_own_model_after_the_run(tmp_path: Path) -> None:
    write_table(tmp_path / "labelled.csv", 60, CLASSES, 9)
    public = [line.rsplit(",", 1)[0] for line in (tmp_path / "labelled.csv").read_text().splitlines()]
    (tmp_path / "public.csv").write_text("\n".join(public) + "\n")
    (tmp_path / "hospital_models.py").write_text(MODEL)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    # ten times the data of others, one class only, a class that no other node has, a model of its own
    samples = {"east": 400, "north": 40, "south": 40, "west": 40}
    classes = {"east": CLASSES[:2], "north": CLASSES[:1], "south": CLASSES[1:], "west": CLASSES[:2]}
    models = dict.fromkeys(HOSPITALS, '"mlp"')
    models |= {"north": '{ name = "mlp", hidden = [8] }', "south": '"hospital_models:build"'}
    deployment, port = Deployment(tmp_path, "recipe.toml", [], HOSPITALS), free_port()
    try:
        checked = deployment.command("check", "recipe.toml").stdout
        assert "Server: 60 public samples of (2,)" in checked
        deployment.serve("--monitor", str(port))
        deployment.wait(lambda: is_healthy(port), TIMEOUT, "the monitor")
        seen = deployment.command("status", f"127.0.0.1:{port}").stdout
        assert "round 1 of 2 (0 recorded), 0 of 4 clients connected\n  east: absent, never heard" in seen
        assert 'trustmix_client_connected{client="west"} 0' in httpx.get(f"http://127.0.0.1:{port}/metrics").text
        for seed, name in enumerate(HOSPITALS):
            write_table(tmp_path / f"{name}.csv", samples[name], classes[name], seed)
            text = f'id = "{name}"\ndata = "{name}.csv"\nlabel = "diagnosis"\nmodel = {models[name]}\n'
            deployment.join(name, text)
        assert deployment.finish(TIMEOUT) == 0, deployment.log("serve")
        over = "the run is over; client {} waits for the next one"
        deployment.wait(
            lambda: all(over.format(name) in deployment.log(name) for name in HOSPITALS), TIMEOUT, "the end"
        )
    finally:
        deployment.close()
    last = deployment.rounds()[-1]
    assert sorted(last["participants"]) == HOSPITALS
    assert sorted(last["own_test"]) == HOSPITALS
    for name in HOSPITALS:
        write_own_test(NodeConfig.load(tmp_path / f"node-{name}.toml"), tmp_path / "new.csv")
        command = [*COMMAND, "predict", f"{name}-model", "new.csv", "--out", "p.npz"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
        assert f"Accuracy: {100 * last['accuracy'][name]:.1f} % " in printed
        card = json.loads((tmp_path / f"{name}-model" / "card.json").read_text())
        assert card["test"]["accuracy"] == pytest.approx(last["accuracy"][name])
        log = (tmp_path / f"{name}-state" / "join.log").read_text()
        assert re.search(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO round 2$", log, re.M)
        assert "round 3" not in log
        assert "305" not in deployment.log(name)
    assert "finished: 2 rounds" in deployment.command("status", str(deployment.out)).stdout
    refused = subprocess.run([*COMMAND, "predict", "run", "new.csv"], capture_output=True, text=True, cwd=tmp_path)
    assert refused.returncode == 2
    assert "each node has its own model in the folder ID-model" in refused.stderr
    assert (tmp_path / "run.flower" / "serve.log").exists()

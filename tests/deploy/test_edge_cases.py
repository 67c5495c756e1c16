"""What happens to real deployments: clocks, proxies, tokenizers, moves and upgrades; real processes on loopback."""

import json
import select
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from benchmarks.deployment import Deployment

from trustmix.transport.flower_processes import free_port
from trustmix.transport.refusal import TOKENIZER

pytestmark = pytest.mark.slow

TIMEOUT = 300
RECIPE = """
clients = {clients}
rounds = {rounds}
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
first_epochs = 12
[participation]
deadline = 120
"""
NODE = 'id = "{}"\ndata = "patients.csv"\nlabel = "diagnosis"\n'
SHIFTED_CLOCK = """
import datetime

class Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(hours=1)

datetime.datetime = Shifted
"""


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f}" for a, b in rng.normal(size=(60, 2))]
    (tmp_path / "public.csv").write_text("\n".join(["age,pressure", *rows]) + "\n")
    labelled = [f"{row},{'healthy' if number % 2 else 'ill'}" for number, row in enumerate(rows)]
    (tmp_path / "patients.csv").write_text("\n".join(["age,pressure,diagnosis", *labelled]) + "\n")
    (tmp_path / "recipe.toml").write_text(RECIPE.format(clients=2, rounds=3))
    made = Deployment(tmp_path, "recipe.toml", [], ["north", "south"])
    yield made
    made.close()


class IdleCutter:
    """A relay of TCP that closes a connection in which nothing has moved for `seconds` since the last response."""

    def __init__(self, target: int, seconds: float) -> None:
        self.target, self.seconds, self.cut = target, seconds, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                threading.Thread(target=self._relay, args=(self.listener.accept()[0],), daemon=True).start()

    def _relay(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self.target)) as far:
            answered = False
            while True:
                ready, _, _ = select.select([near, far], [], [], self.seconds if answered else TIMEOUT)
                if not ready:
                    self.cut += 1
                    return
                for source in ready:
                    found = source.recv(65536)
                    if not found:
                        return
                    (far if source is near else near).sendall(found)
                    answered = source is far

    def close(self) -> None:
        self.listener.close()


def test_a_proxy_that_cuts_idle_connections_costs_no_round(deployment: Deployment) -> None:
    relay = IdleCutter(deployment.port, seconds=1.0)  # nodes ask every 3 s
    try:
        deployment.serve()
        for name in ("north", "south"):
            deployment.join(name, NODE.format(name), address=f"127.0.0.1:{relay.port}")
        assert deployment.finish(TIMEOUT) == 0, deployment.log("serve") + deployment.log("north")
    finally:
        relay.close()
    lines = deployment.rounds()
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert {name for line in lines for name in line["participants"]} == {"north", "south"}
    assert relay.cut > 0


def test_a_node_whose_clock_is_an_hour_off_is_refused_by_name_and_joins_with_the_right_time(
    deployment: Deployment, tmp_path: Path
) -> None:
    place = tmp_path / "clock"
    place.mkdir()
    (place / "sitecustomize.py").write_text(SHIFTED_CLOCK)
    deployment.serve("--nodes", "1")
    shifted = {"PYTHONPATH": f"{place}:{Path(__file__).parents[2] / 'src'}"}
    refused = deployment.join("north", NODE.format("north"), environment=shifted)
    deployment.wait(lambda: refused.poll() is not None, TIMEOUT, "the refusal")
    assert refused.returncode == 2
    printed = " ".join(deployment.log("north").split())
    assert "the clock of this machine and that of the server differ by minutes" in printed
    assert "node north at 127.0.0.1 is refused: its clock is 60 min ahead of the clock" in deployment.log("serve")
    deployment.join("north", NODE.format("north"))
    assert deployment.finish(TIMEOUT) == 0, deployment.log("serve") + deployment.log("north")


def test_a_run_goes_on_at_another_address_and_with_files_of_another_version(
    deployment: Deployment, tmp_path: Path
) -> None:
    deployment.settings = ["rounds=4"]
    deployment.serve()
    for name in ("north", "south"):
        deployment.join(name, NODE.format(name))
    deployment.wait(lambda: len(deployment.rounds()) >= 1, TIMEOUT, "the first round")
    for name in ("serve", "north", "south"):
        deployment.processes[name].send_signal(signal.SIGTERM)
        deployment.processes[name].wait()
    before = deployment.rounds()
    assert len(before) < 4, "the run must be stopped in its middle"

    # the run moves to another folder and port; north's files have a field of a newer version, south's lack a new one
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.move(deployment.folder / "run", moved / "run")
    shutil.move(deployment.folder / "keys", moved / "keys")
    for name in ("public.csv", "recipe.toml"):
        shutil.copy(deployment.folder / name, moved / name)
    for name, change in (("north", {"newer": [1, 2]}), ("south", {})):
        (file,) = (tmp_path / f"{name}-state").glob("*/settings.json")
        found = json.loads(file.read_text())
        file.write_text(json.dumps({key: value for key, value in {**found, **change}.items() if key != "tokenizer"}))
    status = json.loads((moved / "run" / "status.json").read_text())
    (moved / "run" / "status.json").write_text(json.dumps({**status, "newer": True}))

    deployment.folder, deployment.port = moved, free_port()
    deployment.serve()
    for name in ("north", "south"):
        text = NODE.format(name).replace("patients.csv", str(tmp_path / "patients.csv"))
        place = moved / f"{name}-state"
        shutil.move(tmp_path / f"{name}-state", place)
        deployment.join(name, text)
    assert deployment.finish(TIMEOUT) == 0, deployment.log("serve") + deployment.log("north")
    lines = deployment.rounds()
    for line, stopped in zip(lines, before, strict=False):  # times may differ: the last one may have been repeated
        assert all(line.get(key) == stopped.get(key) for key in ("round", "accuracy", "teacher_accuracy", "bytes_up"))
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert "client north is back" in deployment.log("serve")


def write_tokenizer(folder: Path, words: list[str]) -> None:
    folder.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')


def test_a_node_with_another_version_of_the_tokenizer_is_refused_in_a_sentence(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="it is not installed: pip install 'trustmix[text]'")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    transformers.BertModel(transformers.BertConfig(vocab_size=9, **sizes)).save_pretrained(tmp_path / "bert")
    model = f'{{ name = "encoder", weights = "{tmp_path / "bert"}" }}'
    words = ["good", "bad", "dull", "fine"]
    write_tokenizer(tmp_path / "old", words)
    write_tokenizer(tmp_path / "new", words[::-1])
    rows = [f"{words[i % 4]} {words[i // 4 % 4]},{'ill' if i % 2 else 'healthy'}" for i in range(80)]
    (tmp_path / "notes.csv").write_text("\n".join(["note,diagnosis", *rows]) + "\n")
    text = f'text = "note"\nlabel = "diagnosis"\nlength = 6\ntokenizer = "{tmp_path / "old"}"\n'
    (tmp_path / "recipe.toml").write_text(
        f'clients = 1\nrounds = 1\nmodel = {model}\n[split]\nkind = "homogeneous"\nsamples_per_client = 20\n'
        "[public]\nsamples = 20\n[participation]\ndeadline = 120\n"
        f'[data]\nname = "text"\npath = "{tmp_path / "notes.csv"}"\n{text}'
    )
    node = f'id = "north"\ndata = "notes.csv"\nmodel = {model}\n{text}'
    deployment = Deployment(tmp_path, "recipe.toml", [], ["north"])
    try:
        deployment.serve()
        deployment.join("north", node.replace(str(tmp_path / "old"), str(tmp_path / "new")))
        refusal = f"node north cannot join: {TOKENIZER}"
        deployment.wait(lambda: refusal in deployment.log("serve"), TIMEOUT, "the refusal")
        assert "turns texts into other numbers than that of the server" in " ".join(deployment.log("north").split())
        deployment.processes["north"].send_signal(signal.SIGTERM)
        deployment.processes["north"].wait()
        deployment.join("north", node)
        assert deployment.finish(TIMEOUT) == 0, deployment.log("serve") + deployment.log("north")
    finally:
        deployment.close()

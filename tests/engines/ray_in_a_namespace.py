"""The engine on a real Ray; run by test_ray.py where no network but loopback is in reach."""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trustmix import (
    Client,
    Federation,
    Labelled,
    LocalEngine,
    Participation,
    Public,
    Recipe,
    StorageError,
    Training,
    TrustmixError,
    run,
)
from trustmix.aggregation import Guard
from trustmix.callbacks import RoundTrust, TrustRecorder
from trustmix.engines import RayEngine
from trustmix.federation import DiskStore, Engine, Failure, Reply, Request
from trustmix.federation.folding import PartialRound
from trustmix.wire import encode_teacher

CLASSES, FEATURES = 4, 600
CENTRES = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[str]:
    """A Ray that the first engine starts and ends; all others find it there. Gives its address."""
    ray: Any = importlib.import_module("ray")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    first = RayEngine(clients(1), cpus=0.5)
    yield ray.get_runtime_context().gcs_address
    first.close()
    assert not ray.is_initialized()


def samples(count: int, classes: list[int], seed: int) -> Labelled:
    labels = torch.tensor(classes).repeat(count)[:count]
    noise = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return Labelled(CENTRES[labels] + noise, labels)


PUBLIC = Public(samples(60, [0, 1, 2, 3], 50).inputs, CLASSES)
TEST = samples(60, [0, 1, 2, 3], 51)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def clients(count: int = 5, kind: type[Client] = Client, folder: Path | None = None) -> list[Client]:
    made = []
    for index in range(count):
        own = [index % CLASSES, (index + 1) % CLASSES]
        private, calibration = samples(60 + 5 * index, own, index), samples(10, own, 100 + index)
        training = Training(lr=1e-2, batch=8, first_epochs=2)
        made.append(kind(str(index), network, private, calibration, PUBLIC, test=TEST, training=training))
        if folder is not None:
            made[-1].store = DiskStore(folder / str(index))
    return made


def history(engine: Engine, rounds: int = 3, **settings: Any) -> list[dict[str, Any]]:
    try:
        lines = Federation(clients=engine, public=PUBLIC, **settings).run(rounds).rounds
    finally:
        engine.close()
    return [{key: value for key, value in asdict(line).items() if key != "seconds"} for line in lines]


def test_the_numbers_and_the_failures_are_those_of_the_local_engine() -> None:
    def one_of_them_wrong() -> list[Client]:
        members = clients()
        members[2].private = Labelled(members[2].private.inputs, members[2].private.labels + 100)
        return members

    found = history(RayEngine(one_of_them_wrong(), workers=2, cpus=0.5), guard=Guard())
    assert found == history(LocalEngine(one_of_them_wrong()), guard=Guard())
    assert list(found[0]["failed"]) == ["2"]


class SendsNonsense(Client):
    """A client whose upload is no message."""

    def make_upload(self, state: Any, request: Request) -> bytes:
        return b"nonsense" if self.id == "2" else super().make_upload(state, request)


def near(found: Any) -> Any:
    """The same, with numbers up to 1e-6."""
    if isinstance(found, dict):
        return {key: near(value) for key, value in found.items()}
    return pytest.approx(found, abs=1e-6) if isinstance(found, float) else found


@pytest.mark.parametrize("rule", ["avg", "suwa", "trust"])
def test_actors_that_fold_give_the_numbers_and_the_refusals_of_the_local_engine(rule: str, tmp_path: Path) -> None:
    labels = torch.arange(60) % CLASSES
    held = {str(index): torch.tensor([index % CLASSES, (index + 1) % CLASSES]) for index in range(5)}
    found = []
    for engine in (RayEngine(clients(5, SendsNonsense), workers=2, cpus=0.5), LocalEngine(clients(5, SendsNonsense))):
        folder = tmp_path / type(engine).__name__
        recorder = TrustRecorder(folder, torch.arange(60), labels, ({}, {}), held)
        lines = history(
            engine, rule=rule, public_labels=labels, client_classes=held, callbacks=[recorder], labels="none"
        )
        found.append((lines, [RoundTrust.load(folder / f"{number:06d}.safetensors") for number in (1, 2, 3)]))
        assert getattr(engine, "received_bytes", 1) > 0
        assert "upload refused" in lines[0]["failed"]["2"]
    (ray_lines, ray_trust), (lines, trust) = found
    assert ray_lines == near(lines)
    for one, other in zip(ray_trust, trust, strict=True):
        assert (one.clients, one.weighed) == (other.clients, other.weighed)
        assert torch.equal(one.votes, other.votes)
        assert torch.allclose(one.shares.float(), other.shares.float(), atol=1e-3)


def test_what_reaches_the_driver_does_not_grow_with_the_clients_of_an_actor() -> None:
    public = Public(samples(2000, [0, 1, 2, 3], 50).inputs, CLASSES)
    members = clients(64)
    for member in members:
        member.public, member.test = public, None
    engine = RayEngine(members, workers=8, cpus=0.2)
    federation = Federation(clients=engine, public=public, rule="trust")
    received, uploads, rounds = {}, 0, {}
    for each in (2, 8):
        asked = [
            client
            for actor in range(8)
            for client in [c for c in engine.clients if engine._actor_of[c] == actor][:each]
        ]
        federation.algorithm.begin_round(1, None)
        make_folder = federation.algorithm.make_folder(None)
        assert make_folder is not None
        answers = list(engine.exchange_folded(dict.fromkeys(asked, Request(1)), make_folder))
        parts = [answer for answer in answers if isinstance(answer, PartialRound)]
        replies = [answer for answer in answers if isinstance(answer, Reply)]
        assert (len(parts), len(replies)) == (8, 8 * each)
        assert all(reply.payload is None for reply in replies)
        uploads = min(reply.folded or 0 for reply in replies)
        received[each], rounds[each] = engine.received_bytes, sum(part.aggregator.n_clients for part in parts)
    engine.close()
    grown = (received[8] - received[2]) / (8 * 6)
    assert rounds == {2: 16, 8: 64}
    assert grown < 2000 < uploads / 5, received


class Looks(Client):
    """A client that tells, instead of answering, in which mapped file each of its arrays lies."""

    def step_jobs(self, request: Request) -> Any:
        assert self.test is not None
        tensors = [self.public.inputs, self.test.inputs, self.private.inputs]
        maps = Path("/proc/self/maps").read_text().splitlines()
        places = []
        for place in (tensor.data_ptr() for tensor in tensors):
            for line in maps:
                begin, end = (int(word, 16) for word in line.split()[0].split("-"))
                if begin <= place < end:
                    places.append((place - begin, line.split()[1], line.split()[4]))
        raise TrustmixError(json.dumps([places, len(request.teacher or b""), os.getpid()]))
        yield


def test_actors_read_what_clients_share_in_one_place_and_each_client_has_one_home() -> None:
    engine = RayEngine(clients(4, Looks), workers=2, cpus=0.5)
    teacher = encode_teacher(torch.rand(60, CLASSES), PUBLIC.header("server", 1), "float32")
    reported = []
    for number in (1, 2):
        answers = list(engine.exchange(dict.fromkeys(engine.clients, Request(number, teacher))))
        assert [answer.client for answer in answers] == engine.clients
        reported.append([json.loads(a.reason.partition(": ")[2]) for a in answers if isinstance(a, Failure)])
    engine.close()
    homes = [[process for *_, process in answers] for answers in reported]
    assert homes[0] == homes[1]
    assert len(set(homes[0])) == 2
    for places, size, _ in reported[0]:
        assert size == len(teacher)
        assert places[:2] == reported[0][0][0][:2], (
            "public and test data: the same bytes of the same file in all processes"
        )
        assert all(rights.endswith("s") for _, rights, _ in places), "and private data too are read where they lie"


class KillsItsProcess(nn.Module):
    """A model whose process dies in training, once."""

    def __init__(self, flag: Path) -> None:
        super().__init__()
        self.inner, self.flag = network(), flag

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x)  # type: ignore[no-any-return]


def test_an_actor_that_dies_costs_its_clients_one_round_and_they_go_on_from_their_stores(tmp_path: Path) -> None:
    members = clients(folder=tmp_path)
    flag = tmp_path / "died"
    members[2].model = lambda: KillsItsProcess(flag)
    engine = RayEngine(members, workers=2, cpus=0.5)
    lines = history(engine, participation=Participation(quorum=0.1))
    assert "its actor died" in lines[0]["failed"]["2"]
    assert {"1", "4"} <= set(lines[0]["participants"])
    assert lines[1]["failed"] == lines[2]["failed"] == {}
    assert max(int(file.stem) for file in (tmp_path / "0").glob("*.safetensors")) == 4


def test_an_abandoned_exchange_leaves_nothing_behind_and_a_lost_directory_ends_the_run(tmp_path: Path) -> None:
    engine = RayEngine(clients(3, folder=tmp_path), workers=1, cpus=0.5)
    first = engine.exchange(dict.fromkeys(engine.clients, Request(1)))
    next(first)
    first.close()  # type: ignore[attr-defined]
    answers = list(engine.exchange(dict.fromkeys(engine.clients, Request(1))))
    assert not any(isinstance(answer, Failure) for answer in answers)
    shutil.rmtree(tmp_path / "1")
    with pytest.raises(StorageError, match=r"does not see .*; --out must name a directory that all nodes share"):
        list(engine.exchange(dict.fromkeys(engine.clients, Request(2))))
    engine.close()


def test_what_no_cluster_can_hold_is_refused() -> None:
    with pytest.raises(TrustmixError, match=r"holds 0 of the 1 actors of engine.cpus = 1 and engine.gpus = 64"):
        RayEngine(clients(), gpus=64)


def test_a_recipe_selects_it_and_ray_address_names_the_cluster(cluster: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('clients = 5\nrounds = 2\n[data]\nname = "digits"\n[split]\nsamples_per_client = 60\n')
    chosen = ["--set", "engine.name=ray", "--set", "engine.cpus=0.5", "--set", "engine.workers=1"]
    command = [sys.executable, "-m", "trustmix.cli", "run", str(recipe), "--out", "run", *chosen]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "RAY_ADDRESS": cluster}, check=True)
    found = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    local = run(Recipe.load(recipe, ["engine.mode=sequential", "engine.device=cpu"])).rounds
    for one, other in zip(found, local, strict=True):
        assert one["accuracy"] == pytest.approx(other.accuracy, abs=1 / 360 + 1e-9)
    assert len(list((tmp_path / "run" / "models").glob("*.safetensors"))) == 5
    written = (tmp_path / "run" / "recipe.toml").read_text()
    assert 'name = "ray"' in written
    assert 'mode = "auto"' not in written

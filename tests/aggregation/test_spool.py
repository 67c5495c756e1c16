"""Uploads on disk are those in memory; a sample of clients decides as all do; full disks and kills lose nothing."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trustmix import Checkpoint, Client, Federation, Labelled, Public, Training
from trustmix.aggregation import (
    Accumulator,
    Aggregator,
    Guard,
    GuardedAggregator,
    RobustTrust,
    Upload,
    guard,
    holders,
    robust_trust,
    spool,
)
from trustmix.aggregation.spool import Spool, UploadSpool
from trustmix.errors import StorageError
from trustmix.federation import DiskStore


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=9),
    st.sampled_from([1, 60, 200, 10**6]),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_a_spool_gives_back_what_it_was_given(widths: list[int], chunk: int, dtype: torch.dtype) -> None:
    columns = [torch.randn(7, width).to(dtype) for width in widths]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "CHUNK", chunk)
        found = Spool(dtype)
        for one in columns:
            found.append(one)
        whole = torch.cat(columns, 1)
        assert found.width == whole.shape[1]
        assert torch.equal(torch.cat([torch.empty(7, 0, dtype=dtype), *found.chunks()], 1), whole)
        assert torch.equal(found.rows(2, 5), whole[2:5])
        found.clear()
        found.append(columns[0])
        assert torch.equal(found.rows(0, 7), columns[0])


def test_a_spool_that_was_cut_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "CHUNK", 1)
    found = Spool(torch.float32)
    found.append(torch.ones(7, 3))
    assert found._file is not None
    found._file.truncate(20)
    with pytest.raises(StorageError, match="are cut off"):
        found.rows(0, 7)


def test_uploads_come_back_whole_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "CHUNK", 30)
    given_ = [
        Upload.from_arrays("a", np.array([[0.9, 0.1], [0.5, 0.5]], "f4"), [1.0, -np.inf]),
        Upload.from_arrays("b", torch.tensor([[0.25, 0.75], [0.5, 0.5]]).double(), class_counts=[3, 0]),
        Upload.from_arrays("c", torch.tensor([[0.25, 0.75], [1.0, 0.0]]).bfloat16(), [2.0, 0.1]),
        Upload.from_arrays("d", np.array([[0.3, 0.7], [0.6, 0.4]], "f4")),
        Upload.from_arrays("e", np.array([[0.2, 0.8], [0.1, 0.9]], "f4"), [0.0, 4.0]),
    ]
    kept = UploadSpool()
    for one in given_:
        kept.append(one)
    for _ in range(2):
        for before, after in zip(given_, kept, strict=True):
            assert (before.client, before.weight, before.spec) == (after.client, after.weight, after.spec)
            for name in ("predictions", "scores", "class_counts"):
                one, other = getattr(before, name), getattr(after, name)
                assert (one is None) == (other is None)
                assert one is None or (one.dtype == other.dtype and torch.equal(one, other))
    assert not kept.scored


SAMPLES, CLASSES = 90, 6
TRUTH = torch.arange(SAMPLES) % CLASSES


def uploads(clients: int, liars: int = 0) -> list[Upload]:
    """Clients that know half of the classes, and some that name a wrong class wherever they are familiar."""
    luck, found = torch.Generator().manual_seed(3), []
    for index in range(clients):
        held = (torch.arange(3) * 2 + index) % CLASSES
        known = torch.isin(TRUTH, held)
        label = torch.where(known, TRUTH, held[torch.randint(3, (SAMPLES,), generator=luck)])
        label = (label + 2) % CLASSES if index < liars else label
        logits = 4 * torch.nn.functional.one_hot(label, CLASSES) + torch.randn(SAMPLES, CLASSES, generator=luck)
        scores = torch.where(known, 3.0, -3.0) + torch.randn(SAMPLES, generator=luck)
        found.append(Upload.from_arrays(str(index), torch.softmax(logits, 1), scores))
    return found


def folded(rule: Aggregator, given_: list[Upload]) -> Aggregator:
    rule.track(torch.tensor([0, 5]))
    for one in given_:
        rule.update(one)
    return rule


RULES: dict[str, Callable[[], Aggregator]] = {
    "trust": RobustTrust,
    "avg": lambda: GuardedAggregator(Accumulator(0.0)),
    "uwa": lambda: GuardedAggregator(Accumulator(1.0), Guard(0.6)),
}


@pytest.mark.parametrize("name", RULES)
def test_a_round_on_disk_ends_in_the_numbers_of_one_in_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given_ = uploads(14, liars=3)
    memory = folded(RULES[name](), given_)
    expected = memory.compute()
    monkeypatch.setattr(spool, "CHUNK", 1500)
    rule = folded(RULES[name](), given_)
    for _ in range(2):
        found = rule.compute()
        assert torch.equal(found.probabilities, expected.probabilities)
        assert torch.equal(found.concentration, expected.concentration)
        assert rule.report() == memory.report() != {}
        weights, others = rule.client_weights(), memory.client_weights()
        assert weights is not None
        assert others is not None
        assert all(torch.equal(weights[client], others[client]) for client in others)
        fresh = RULES[name]()
        fresh.load_state_dict(rule.state_dict())
        assert torch.equal(fresh.compute().probabilities, expected.probabilities)
        rule.reset()
        rule.load_state_dict({})
        folded(rule, given_)


@pytest.mark.parametrize("name", RULES)
def test_medians_over_a_sample_of_clients_find_the_same_liars(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given_ = uploads(150, liars=30)
    everyone = folded(RULES[name](), given_)
    expected = everyone.compute().probabilities
    liars = {client for client, done in everyone.report().items() if done.get("weight", 1) < 0.16}
    assert liars == {str(index) for index in range(30)}
    monkeypatch.setattr(robust_trust, "MAX_VOTERS", 25)
    monkeypatch.setattr(robust_trust, "MAX_SAMPLES", 60)
    monkeypatch.setattr(holders, "TILE", 150 * CLASSES * 5)
    monkeypatch.setattr(guard, "MAX_SAMPLE", 25)
    sampled = folded(RULES[name](), given_)
    found = sampled.compute().probabilities
    assert torch.equal(found.argmax(1), expected.argmax(1))
    assert float((found - expected).abs().max()) < 0.05
    assert {client for client, done in sampled.report().items() if done.get("weight", 1) < 0.16} == liars


INPUTS = torch.eye(3)[torch.arange(3000) % 3] + 0.3 * torch.randn(3000, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(3000) % 3


def run(folder: Path) -> list[Any]:
    """Two rounds of six clients, each from where its folder stands."""
    public, data = Public(INPUTS[:2000], classes=3), Labelled(INPUTS[2000:2060], LABELS[2000:2060])
    torch.manual_seed(0)
    start = torch.nn.Linear(3, 3).state_dict()

    def model() -> torch.nn.Module:
        made = torch.nn.Linear(3, 3)
        made.load_state_dict(start)
        return made

    clients = [
        Client(
            str(index),
            model,
            data,
            data,
            public,
            test=data,
            training=Training(batch=20, first_epochs=1),
            store=DiskStore(folder / str(index)),
            seed=index,
        )
        for index in range(6)
    ]
    with Federation(clients=clients, public=public, guard=Guard()) as federation:
        return [
            (line.round, line.accuracy, line.concentration)
            for line in federation.run(2, checkpoint=Checkpoint(folder / "server")).rounds
        ]


def in_a_fork(action: Callable[[], Any]) -> int:
    """The exit code of a forked process: 3 if it ended by a StorageError about space, negative if it was killed."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        action()
        code = 0
    except StorageError as error:
        code = 3 if "do not fit in" in str(error) and "TMPDIR" in str(error) else 4
    finally:
        os._exit(code)


def test_a_full_disk_ends_the_round_with_a_sentence_and_the_run_goes_on_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(tmp_path / "whole")
    monkeypatch.setattr(spool, "CHUNK", 10_000)

    def with_little_space() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        run(tmp_path / "full")

    assert in_a_fork(with_little_space) == 3
    assert run(tmp_path / "full") == expected


def test_killed_in_the_middle_of_a_pass_a_run_ends_in_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(tmp_path / "whole")
    monkeypatch.setattr(spool, "CHUNK", 10_000)
    monkeypatch.setattr(holders, "TILE", 6 * 3 * 500)
    monkeypatch.setattr(robust_trust, "AHEAD", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    read, calls = Spool.rows, 0

    def read_or_die(self: Spool, start: int, stop: int) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 14:  # twelve tiles a round
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, start, stop)

    monkeypatch.setattr(Spool, "rows", read_or_die)
    assert in_a_fork(lambda: run(tmp_path / "killed")) == -signal.SIGKILL
    assert list((tmp_path / "temporary").iterdir()) == []
    monkeypatch.setattr(Spool, "rows", read)
    assert run(tmp_path / "killed") == expected


COMMAND = """
from trustmix.aggregation import spool
from trustmix.cli import app
spool.CHUNK = 1000
app(prog_name="trustmix")
"""


def command(folder: Path, *arguments: str, space: str = "") -> subprocess.CompletedProcess[str]:
    """A trustmix command whose uploads go to disk; with `space`, temporary files are in a file system of that size."""
    call = [sys.executable, "-c", COMMAND, *arguments]
    if space:
        mount = f'mount -t tmpfs -o size={space} tmpfs {folder}; TMPDIR={folder} exec "$@"'
        call = ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, "sh", *call]
    return subprocess.run(call, capture_output=True, text=True, timeout=1200, check=False)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run(["unshare", "-mr", "true"], check=False).returncode != 0,
    reason="no small file system can be mounted here: it needs unshare and user namespaces",
)
def test_a_command_on_a_full_disk_ends_in_a_sentence_and_is_resumed_to_the_same_numbers(tmp_path: Path) -> None:
    few = [f"--set={one}" for one in ("clients=6", "rounds=1", "public.samples=100", "train.first_epochs=1")]
    (tmp_path / "small").mkdir()
    whole = command(tmp_path, "run", "digits", *few, "--out", str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    full = command(tmp_path / "small", "run", "digits", *few, "--out", str(tmp_path / "full"), space="4k")
    assert full.returncode == 2, full.stderr
    assert "do not fit in" in full.stderr
    assert "Traceback" not in full.stderr
    again = command(tmp_path, "resume", str(tmp_path / "full"))
    assert again.returncode == 0, again.stderr
    one, other = (json.loads((tmp_path / name / "rounds.jsonl").read_text()) for name in ("whole", "full"))
    for key in ("accuracy", "teacher_accuracy", "concentration"):
        assert one[key] == other[key]

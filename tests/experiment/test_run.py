"""Runs and their directories: repeatable, resumable after any death, and careful with what is already there."""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import trustmix as tm
from trustmix import Recipe, StorageError, TrustmixError, storage
from trustmix.experiment.run_directory import RunDirectory
from trustmix.federation import ProgressCallback, ProgressEvent
from trustmix.report.load import load_study

SMALL = [
    *("clients=6", "rounds=5", "split.samples_per_client=40", "public.samples=60", "train.public_epochs=1"),
    "engine.mode=sequential",  # to time other modes would take longer than these runs
]
COMMAND = [sys.executable, "-m", "trustmix.cli", "run", "demo", *(part for s in SMALL for part in ("--set", s))]


def small(*overrides: str) -> Recipe:
    return Recipe.load("demo", [*SMALL, *overrides])


def numbers(folder: Path) -> list[dict[str, Any]]:
    """All of a run's record but its times."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def trust(folder: Path) -> dict[str, bytes]:
    """What a run wrote down of whom its teachers trusted."""
    return {file.name: file.read_bytes() for file in sorted((folder / "trust").iterdir())}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    tm.run(small(), out=folder)
    return folder


def test_a_run_directory_is_the_record(undisturbed: Path) -> None:
    written = Recipe.load(undisturbed / "recipe.toml")
    assert written.model_copy(update={"engine": small().engine}) == small()
    lines, summary = numbers(undisturbed), json.loads((undisturbed / "summary.json").read_text())
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5]
    for line in lines:
        assert line["accuracy_mean"] == pytest.approx(np.mean(list(line["accuracy"].values())))
        assert line["local_accuracy_mean"] == pytest.approx(np.mean(list(line["local_accuracy"].values())))
        assert set(line["accuracy"]) == set(line["participants"]) == {str(i) for i in range(6)}
        assert 1 / 6 <= line["concentration"] <= 1
    assert summary["best_accuracy"] == max(line["accuracy_mean"] for line in lines)
    assert summary["best_round"] == 1 + int(np.argmax([line["accuracy_mean"] for line in lines]))
    assert summary["final_accuracy"] == lines[-1]["accuracy_mean"]
    assert sorted(file.stem for file in (undisturbed / "models").glob("*.safetensors")) == [str(i) for i in range(6)]


def test_the_record_has_what_was_chosen_where_the_recipe_says_auto(tmp_path: Path) -> None:
    recipe = small("engine.mode=auto", "rounds=1")
    assert {recipe.engine.mode, recipe.engine.precision, recipe.engine.device, recipe.engine.store} == {"auto"}
    tm.run(recipe, out=tmp_path / "run")
    assert "auto" not in Recipe.load(tmp_path / "run" / "recipe.toml").engine.model_dump().values()


def test_the_final_models_are_those_that_were_evaluated(undisturbed: Path) -> None:
    data = tm.data.load("digits")
    model = tm.models.mlp(data.shape, data.classes, hidden=[64])
    model.load_state_dict(load_file(undisturbed / "models" / "3.safetensors"))
    accuracy = float((model(data.test.inputs).argmax(1) == data.test.labels).double().mean())
    assert accuracy == pytest.approx(numbers(undisturbed)[-1]["accuracy"]["3"])


def test_the_same_recipe_twice_gives_the_same_record_but_for_times(undisturbed: Path, tmp_path: Path) -> None:
    tm.run(small(), out=tmp_path / "again")
    assert numbers(tmp_path / "again") == numbers(undisturbed)
    tm.run(small("seed=1"), out=tmp_path / "other")
    assert numbers(tmp_path / "other") != numbers(undisturbed)


def test_a_run_without_a_directory_gives_the_same_history(undisturbed: Path) -> None:
    history = tm.run(small())
    assert [line.accuracy for line in history.rounds] == [line["accuracy"] for line in numbers(undisturbed)]


def run_until_write(recipe: tm.Recipe, folder: Path, last: int) -> int:
    """Run in a forked process that kills itself before it writes its n-th file; its exit code, negative if it did."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    write, writes = storage.write_bytes, itertools.count(1)

    def write_or_die(path: Path, data: bytes) -> None:
        if next(writes) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        write(path, data)

    storage.write_bytes = write_or_die
    try:
        tm.run(recipe, out=folder, resume=(folder / "recipe.toml").exists())
    finally:
        os._exit(0)  # whatever happens: the tests go on in the parent alone


def test_killed_before_any_of_its_writes_a_run_ends_in_the_same_numbers(tmp_path: Path) -> None:
    """The kill comes at every kind of file: recipe, states of clients, trust, teacher, commit."""
    recipe, whole = small(), tmp_path / "whole"
    tm.run(recipe, out=whole)
    for last in (1, 2, 3, 8, 9, 10, 11, 12, 17):
        folder = tmp_path / f"killed-{last}"
        for _ in range(2):  # and once more as it goes on
            assert run_until_write(recipe, folder, last) == -signal.SIGKILL
        tm.run(recipe, out=folder, resume=(folder / "recipe.toml").exists())
        assert numbers(folder) == numbers(whole), last
        assert trust(folder) == trust(whole), last


@pytest.mark.parametrize("refresh", ["once", "2"])
def test_killed_while_scores_are_kept_a_run_ends_in_the_same_numbers(refresh: str, tmp_path: Path) -> None:
    recipe = small("density.kind=ratio", f"density.refresh={refresh}", "rule=uwa")
    tm.run(recipe, out=tmp_path / "whole")
    for last in (9, 17):
        folder = tmp_path / f"killed-{last}"
        assert run_until_write(recipe, folder, last) == -signal.SIGKILL
        tm.run(recipe, out=folder, resume=True)
        assert numbers(folder) == numbers(tmp_path / "whole"), last


@pytest.mark.slow
def test_killed_at_random_moments_a_run_ends_in_the_same_numbers(tmp_path: Path) -> None:
    """kill -9 of a real process and its workers, again and again, then let it finish."""
    changes = ["rounds=15", "engine.mode=processes", "engine.workers=2"]
    whole, folder, luck = tmp_path / "whole", tmp_path / "killed", random.Random(7)
    command = [*COMMAND, *(part for change in changes for part in ("--set", change)), "--out", str(folder), "--resume"]
    tm.run(small(*changes), out=whole)
    deaths, committed = 0, set()
    for _ in range(4):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(luck.randint(2, 4)):
            process.stdout.readline()  # a line is printed as a round begins
        time.sleep(luck.uniform(0.0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        deaths += process.returncode == -signal.SIGKILL
        committed.add(RunDirectory(folder).checkpoint.load().exchange)
    assert deaths >= 2
    assert len(committed) >= 2
    subprocess.run([*command, "--quiet"], check=True)
    assert numbers(folder) == numbers(whole)
    assert trust(folder) == trust(whole)
    summaries = [json.loads((f / "summary.json").read_text()) for f in (folder, whole)]
    assert summaries[0]["best_accuracy"] == summaries[1]["best_accuracy"]


@pytest.mark.parametrize("point", range(0, 36, 5))
def test_interrupted_at_any_client_a_run_ends_in_the_same_numbers(
    undisturbed: Path, tmp_path: Path, point: int
) -> None:
    moments = 0

    def interrupt(moment: ProgressEvent) -> None:
        nonlocal moments
        moments += 1
        if moments > point:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tm.run(small(), out=tmp_path / "cut", callbacks=[ProgressCallback(interrupt)])
    assert not (tmp_path / "cut" / "summary.json").exists()
    tm.run(small(), out=tmp_path / "cut", resume=True)
    assert numbers(tmp_path / "cut") == numbers(undisturbed)
    assert trust(tmp_path / "cut") == trust(undisturbed)


@pytest.mark.parametrize(
    "changes", [["train.public_epochs=auto", "engine.store=disk"], ["train.public_epochs=auto", "train.stages=mixed"]]
)
def test_learning_that_agreement_decides_goes_on_as_if_never_interrupted(tmp_path: Path, changes: list[str]) -> None:
    whole = tm.run(small(*changes), out=tmp_path / "whole")
    assert all(set(line.public_epochs) == set(line.agreement) == set(line.accuracy) for line in whole.rounds)
    moments = iter(range(20))

    def interrupt(_: ProgressEvent) -> None:
        if next(moments, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tm.run(small(*changes), out=tmp_path / "cut", callbacks=[ProgressCallback(interrupt)])
    tm.run(small(*changes), out=tmp_path / "cut", resume=True)
    assert numbers(tmp_path / "cut") == numbers(tmp_path / "whole")


def test_a_torn_last_line_is_told_again(undisturbed: Path, tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop_in_round_4(moment: ProgressEvent) -> None:
        if moment.round == 4:
            raise StopError

    with pytest.raises(StopError):
        tm.run(small(), out=tmp_path / "torn", callbacks=[ProgressCallback(stop_in_round_4)])
    file = tmp_path / "torn" / "rounds.jsonl"
    file.write_bytes(file.read_bytes() + b'{"round": 3, "meth')
    tm.run(small(), out=tmp_path / "torn", resume=True)
    assert numbers(tmp_path / "torn") == numbers(undisturbed)


def test_ctrl_c_exits_130_and_says_how_to_go_on(undisturbed: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--out", str(tmp_path / "cc")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore it
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    hint = "The same command with --resume, or `trustmix resume DIR`, goes on from the last finished round."
    assert errors == f"Stopped. {hint}\n"
    tm.run(small(), out=tmp_path / "cc", resume=True)
    assert numbers(tmp_path / "cc") == numbers(undisturbed)


FULL_DISK = """
set -e
mount -t tmpfs -o size=500k none "$1"
shift
"$@" || code=$?
cp -r "$DISK" "$KEEP"
exit ${code:-0}
"""


def test_a_full_disk_is_one_sentence_and_loses_nothing(undisturbed: Path, tmp_path: Path) -> None:
    """The run directory lies on a real file system that is too small for it."""
    disk, keep = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], check=False).returncode:
        pytest.skip(
            "no disk can be mounted here: run the tests as root on Linux, in a container with --cap-add SYS_ADMIN"
        )
    result = subprocess.run(
        [*namespace, "bash", "-c", FULL_DISK, "bash", str(disk), *COMMAND, "--out", str(disk / "run"), "--quiet"],
        env={**os.environ, "DISK": str(disk / "run"), "KEEP": str(keep)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("Error: Could not write ")
    assert "No space left on device. What was there before is untouched." in result.stderr
    assert result.stderr.count("\n") == 1
    tm.run(small(), out=keep, resume=True)
    assert numbers(keep) == numbers(undisturbed)


def test_a_directory_that_is_not_ours_to_write_is_left_alone(undisturbed: Path, tmp_path: Path) -> None:
    before = numbers(undisturbed)
    with pytest.raises(TrustmixError, match="holds a run already; add --resume to go on with it or --overwrite"):
        tm.run(small(), out=undisturbed)
    with pytest.raises(TrustmixError, match=r"begun with seed = 0, and this recipe has seed = 9"):
        tm.run(small("seed=9"), out=undisturbed, resume=True)
    with pytest.raises(TrustmixError, match="give one of them"):
        tm.run(small(), out=undisturbed, resume=True, overwrite=True)
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(TrustmixError, match=r"thesis\.txt is a file"):
        tm.run(small(), out=tmp_path / "thesis.txt")
    for flags in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(TrustmixError, match="holds other files"):
            tm.run(small(), out=tmp_path, **flags)  # type: ignore[arg-type]
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    assert numbers(undisturbed) == before


def test_resuming_a_finished_run_only_tells_it_again(undisturbed: Path) -> None:
    history = tm.run(small(), out=undisturbed, resume=True)
    assert len(history.rounds) == 5


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    tm.run(small("rounds=1"), out=tmp_path / "run")
    (tmp_path / "run" / "rounds.jsonl").write_text("no json\n")
    with pytest.raises(TrustmixError, match=r"rounds\.jsonl, line 1 is not valid JSON"):
        tm.run(small("rounds=1"), out=tmp_path / "run", resume=True)


def test_overwrite_starts_anew(tmp_path: Path) -> None:
    tm.run(small("rounds=2"), out=tmp_path / "run")
    tm.run(small("rounds=1", "seed=4"), out=tmp_path / "run", overwrite=True)
    assert len(numbers(tmp_path / "run")) == 1
    assert list(trust(tmp_path / "run")) == ["000001.safetensors", "samples.safetensors"]


def test_two_processes_cannot_run_in_one_directory(tmp_path: Path) -> None:
    def second_process(moment: ProgressEvent) -> None:
        with pytest.raises(TrustmixError, match="Another process is running"):
            tm.run(small(), out=tmp_path / "run", resume=True)

    tm.run(small("rounds=5"), out=tmp_path / "run", callbacks=[ProgressCallback(second_process)])


def test_a_recipe_that_cannot_run_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(TrustmixError, match="12, but the data have 10"):
        tm.run(small("split.classes_per_client=12"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_kind_of_split_model_form_and_rule_runs() -> None:
    mixed = [{"name": "mlp", "hidden": [16]}, {"name": "cnn", "width": 4}]
    for changes in (
        ["split.kind=dirichlet", "rule=uwa"],
        ["split.kind=homogeneous", "rule=avg", "wire.form=density"],
        ["rule=most-confident", "wire.up=float16", "wire.down=uint8"],
        ["wire.up=uint4", "wire.delta=true", "rounds=2"],
        ["rule.tau=0.5", "participation.fraction=0.5", "train.optimizer=sgd"],
        ["faults.crash=0.2", "participation.quorum=0.1"],
    ):
        recipe = Recipe.load(small("rounds=1").model_dump(exclude_none=True) | {"model": mixed}, changes)
        assert tm.run(recipe).best_accuracy is not None


def test_the_data_may_bring_their_own_public_set(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 5)).astype(np.float32), np.arange(200) % 4
    arrays: dict[str, Any] = {"x_train": x, "y_train": y, "x_test": x[:40], "y_test": y[:40], "x_public": x[:50] + 1}
    np.savez(tmp_path / "mine.npz", **arrays)
    fields = {"data": {"name": "npz", "path": str(tmp_path / "mine.npz")}, "clients": 3, "rounds": 1}
    fields |= {"split": {"samples_per_client": 20}, "engine": {"mode": "sequential"}}
    recipe = fields | {"public": {"samples": 30}}
    assert tm.run(recipe).rounds[0].teacher_accuracy is None
    with pytest.raises(TrustmixError, match="51, but the public set has 50"):
        tm.run(recipe | {"public": {"samples": 51}})


def test_homogeneous_clients_gain_from_one_round_of_talking() -> None:
    shared = ["split.kind=homogeneous", "clients=10", "rounds=1", "public.samples=400", "train.public_epochs=20"]
    recipes = (Recipe.load("demo", [*shared, "engine.mode=sequential", f"rule={rule}"]) for rule in ("alone", "avg"))
    alone, together = (tm.run(recipe).best_accuracy for recipe in recipes)
    assert together > alone + 0.05  # type: ignore[operator]


def test_label_sets_reach_the_rule_by_the_wire(tmp_path: Path) -> None:
    sharing = {
        kind: tm.run(small(f"wire.labels={kind}", "split.classes_per_client=4", "rule=trust"), out=tmp_path / kind)
        for kind in ("set", "counts")
    }
    without = tm.run(small("rule=avg", "split.classes_per_client=4"), out=tmp_path / "avg")
    for history in sharing.values():
        assert history.rounds[-1].failed == {}
        assert (history.rounds[0].teacher_accuracy or 0) > (without.rounds[0].teacher_accuracy or 0)
        assert history.rounds[0].bytes_up > without.rounds[0].bytes_up


@pytest.mark.parametrize("change", ["theory.every=1", "track.tensorboard=tb", "track.mlflow=ml"])
def test_what_needs_a_run_directory_is_refused_without_one(change: str) -> None:
    with pytest.raises(TrustmixError, match=f"{change.partition('=')[0]} needs a run directory; give out"):
        tm.run(small(change))


@pytest.mark.parametrize("option", ["resume", "overwrite"])
def test_a_run_cannot_go_on_or_be_replaced_without_a_directory(option: str) -> None:
    with pytest.raises(TrustmixError, match=f"{option} needs a run directory; give out"):
        tm.run(small(), **{option: True})  # type: ignore[arg-type]


def test_a_run_in_worker_processes_leaves_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tm.run(small("engine.mode=processes", "rounds=1"))
    assert list(tmp_path.glob("trustmix-*")) == []


class StopError(Exception):
    """Ends a run on purpose."""


def stop_in_round(number: int) -> ProgressCallback:
    def stop(moment: ProgressEvent) -> None:
        if moment.round == number and moment.stage == "clients":
            raise StopError

    return ProgressCallback(stop)


def write_arrays(file: Path, **changes: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 5)).astype(np.float32), np.arange(200) % 4
    arrays: dict[str, Any] = {"x_train": x, "y_train": y, "x_test": x[:40], "y_test": y[:40], "x_public": x[:50] + 1}
    np.savez(file, **arrays | {name: change(arrays[name]) for name, change in changes.items()})


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run of three clients and five rounds on arrays of its own, with a student, stopped in round 4."""
    write_arrays(tmp_path / "mine.npz")
    with pytest.raises(StopError):
        tm.run(own_arrays(tmp_path), out=tmp_path / "run", callbacks=[stop_in_round(4)])
    return tmp_path / "run"


def own_arrays(folder: Path) -> Recipe:
    fields = {
        "data": {"name": "npz", "path": str(folder / "mine.npz")},
        "clients": 3,
        "rounds": 5,
        "student": {"name": "mlp"},
    }
    more = {"split": {"samples_per_client": 20}, "public": {"samples": 30}, "engine": {"mode": "sequential"}}
    return Recipe.load({**fields, **more})


@pytest.mark.parametrize(
    ("array", "change", "named"),
    [
        ("x_train", lambda x: x + 1, "private"),
        ("y_train", lambda y: (y + 1) % 4, "private"),
        ("x_test", lambda x: x + 1, "test"),
        ("y_test", lambda y: (y + 1) % 4, "test"),
        ("x_public", lambda x: x + 1, "public"),
    ],
)
def test_a_run_is_not_resumed_with_other_data(stopped: Path, array: str, change: Any, named: str) -> None:
    write_arrays(stopped.parent / "mine.npz", **{array: change})
    before = numbers(stopped)
    with pytest.raises(TrustmixError, match=f"was begun with other {named} data"):
        tm.run(own_arrays(stopped.parent), out=stopped, resume=True)
    assert numbers(stopped) == before
    write_arrays(stopped.parent / "mine.npz")
    assert len(tm.run(own_arrays(stopped.parent), out=stopped, resume=True).rounds) == 5


@pytest.mark.parametrize("client", ["1", "student"])
def test_a_run_is_not_resumed_without_the_states_of_its_clients(stopped: Path, client: str) -> None:
    for file in (stopped / "checkpoint" / "clients" / client).glob("*.safetensors"):
        file.unlink()
    with pytest.raises(StorageError, match=f"clients/{client} lacks the state of round"):
        tm.run(own_arrays(stopped.parent), out=stopped, resume=True)


def test_a_run_is_not_resumed_with_the_states_of_other_clients_or_rounds(stopped: Path) -> None:
    states = stopped / "checkpoint" / "clients"
    for other in (states / "2" / "000003.safetensors", states / "1" / "000002.safetensors"):
        original = (states / "1" / "000003.safetensors").read_bytes()
        (states / "1" / "000003.safetensors").write_bytes(other.read_bytes())
        with pytest.raises(StorageError, match=r"state of (client 2|round 2)"):
            tm.run(own_arrays(stopped.parent), out=stopped, resume=True)
        (states / "1" / "000003.safetensors").write_bytes(original)


def test_stray_files_among_the_states_of_clients_are_left_alone(stopped: Path) -> None:
    folder = stopped / "checkpoint" / "clients" / "1"
    for name in (
        "notes.safetensors",
        "-1.safetensors",
        "1e3.safetensors",
        "\u0663.safetensors",
        "000003.safetensors.bak",
    ):
        (folder / name).write_bytes(b"")
    assert len(tm.run(own_arrays(stopped.parent), out=stopped, resume=True).rounds) == 5
    assert (folder / "notes.safetensors").exists()


@pytest.mark.parametrize("left", [[], [1], [2], [2, 1], [1, 1]])
def test_a_run_is_not_resumed_with_missing_lines(stopped: Path, left: list[int]) -> None:
    file = stopped / "rounds.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[number - 1] for number in left))
    with pytest.raises(StorageError, match=r"rounds\.jsonl(, line \d is of round \d| ends with round \d)"):
        tm.run(own_arrays(stopped.parent), out=stopped, resume=True)
    assert len(file.read_text().splitlines()) == len(left)


def test_a_run_is_not_resumed_from_a_checkpoint_that_is_lost_or_older_than_its_record(stopped: Path) -> None:
    manifest = stopped / "checkpoint" / "server.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"exchange": 3', '"exchange": 1'))
    with pytest.raises(StorageError, match="has 2 rounds, and the checkpoint is of exchange 1"):
        tm.run(own_arrays(stopped.parent), out=stopped, resume=True)
    manifest.unlink()
    with pytest.raises(StorageError, match="has 2 rounds, and the checkpoint is of exchange 0"):
        tm.run(own_arrays(stopped.parent), out=stopped, resume=True)


def test_a_finished_run_with_missing_lines_is_refused(undisturbed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(undisturbed, tmp_path / "run"))
    file = folder / "rounds.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:3]))
    for read in (lambda: tm.run(small(), out=folder, resume=True), lambda: load_study([folder])):
        with pytest.raises(StorageError, match="ends with round 3, and the run has 5"):
            read()

"""Trackers hold what rounds.jsonl holds, every round once, however often a run was stopped; with the real libraries."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trustmix.cli import app

INTERRUPTED = """
import sys
import trustmix as tm
from trustmix.federation import ProgressCallback

recipe = {
    "clients": 5,
    "rounds": 3,
    "data": {"name": "digits"},
    "split": {"samples_per_client": 40},
    "public": {"samples": 40},
    "engine": {"mode": "sequential"},
    "track": {sys.argv[1]: sys.argv[2]},
}


def stop(event):
    if event.round == 3 and event.done == 2:
        raise KeyboardInterrupt


try:
    tm.run(recipe, out="runs/one", callbacks=[ProgressCallback(stop)])
except KeyboardInterrupt:
    pass
tm.run(recipe, out="runs/one", resume=True)
"""


def recorded(folder: Path, tracker: str, place: str) -> list[dict[str, Any]]:
    """The rounds of a run that was interrupted and resumed with that tracker."""
    subprocess.run([sys.executable, "-c", INTERRUPTED, tracker, place], cwd=folder, check=True)
    return [json.loads(line) for line in (folder / "runs" / "one" / "rounds.jsonl").read_text().splitlines()]


NO_TRACKERS = "no trackers are installed: pip install 'trustmix[track]'"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason=NO_TRACKERS)
def test_tensorboard_has_every_round_once_after_a_resume(tmp_path: Path) -> None:
    lines = recorded(tmp_path, "tensorboard", "tb")
    code = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("tb/runs/one").Reload()
print(json.dumps({tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}))
"""
    found = json.loads(subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True))
    assert [line["round"] for line in lines] == [1, 2, 3]
    for name in ("accuracy_mean", "teacher_accuracy", "bytes_up", "concentration"):
        assert [step for step, _ in found[name]] == [1, 2, 3]
        assert [value for _, value in found[name]] == pytest.approx([line[name] for line in lines], rel=1e-6)
    assert [value for _, value in found["seconds/train"]] == pytest.approx([line["seconds"]["train"] for line in lines])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason=NO_TRACKERS)
def test_mlflow_has_one_run_with_every_round_once_after_a_resume(tmp_path: Path) -> None:
    lines = recorded(tmp_path, "mlflow", "sqlite:///mlflow.db")
    code = """
import json, mlflow
client = mlflow.MlflowClient(tracking_uri="sqlite:///mlflow.db")
runs = client.search_runs([client.get_experiment_by_name("trustmix").experiment_id])
history = {key: [[m.step, m.value] for m in client.get_metric_history(runs[0].info.run_id, key)]
           for key in ("accuracy_mean", "bytes_up")}
print(json.dumps([len(runs), runs[0].info.status, runs[0].data.params, history]))
"""
    output = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True)
    runs, status, parameters, history = json.loads(output.splitlines()[-1])
    assert (runs, status) == (1, "FINISHED")
    assert parameters["split.samples_per_client"] == "40"
    for name, logged in history.items():
        assert [step for step, _ in logged] == [1, 2, 3]
        assert [value for _, value in logged] == pytest.approx([line[name] for line in lines])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason=NO_TRACKERS)
def test_wandb_has_one_offline_run_with_every_round_once_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    lines = recorded(tmp_path, "wandb", "team/trials")
    (file,) = (tmp_path / "runs" / "one" / "wandb").glob("offline-run-*/run-*.wandb")
    code = """
import json, sys
from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.internal.datastore import DataStore
store, found = DataStore(), {"history": [], "files": []}
store.open_for_scan(sys.argv[1])
while (data := store.scan_data()) is not None:
    record = Record()
    record.ParseFromString(data)
    kind = record.WhichOneof("record_type")
    if kind == "run":
        found["run"] = [record.run.entity, record.run.project, record.run.display_name, record.run.run_id]
        found["config"] = {item.key: json.loads(item.value_json) for item in record.run.config.update}
    elif kind == "history":
        row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        found["history"].append(row)
    elif kind == "exit":
        found["exit"] = record.exit.exit_code
    elif kind == "files":
        found["files"] += [item.path for item in record.files.files]
print(json.dumps(found))
"""
    output = subprocess.check_output([sys.executable, "-c", code, str(file)], cwd=tmp_path, text=True)
    found = json.loads(output.splitlines()[-1])
    stored = json.loads((tmp_path / "runs" / "one" / "wandb.json").read_text())
    assert found["run"] == ["team", "trials", "runs/one", stored["run"]]
    assert found["config"]["split.samples_per_client"] == 40
    assert found["exit"] == 0
    assert [row["_step"] for row in found["history"]] == [1, 2, 3]
    for name in ("accuracy_mean", "bytes_up", "concentration"):
        assert [row[name] for row in found["history"]] == pytest.approx([line[name] for line in lines])
    assert "wandb-metadata.json" not in found["files"], "the machine and the command are not recorded"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason=NO_TRACKERS)
def test_wandb_without_a_login_is_refused_in_a_sentence_before_the_first_round(tmp_path: Path) -> None:
    settings = ["--set", "track.wandb=trials", "--set", "rounds=1", "--out", str(tmp_path / "run")]
    home = {"HOME": str(tmp_path), "WANDB_API_KEY": "", "WANDB_BASE_URL": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-m", "trustmix.cli", "run", "demo", *settings],
        env={**os.environ, **home},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2
    assert "Error: track.wandb: trials cannot be used" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "run" / "rounds.jsonl").read_text() == ""


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow", "wandb"])
def test_without_the_library_the_error_names_what_to_install_and_nothing_is_written(
    tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, tracker, None)
    out = str(tmp_path / "run")
    result = CliRunner().invoke(app, ["run", "demo", "--set", f"track.{tracker}={tmp_path}", "--out", out])
    assert result.exit_code == 2
    assert f'track.{tracker} needs {tracker}: pip install "trustmix[track]"' in result.stderr
    assert list(tmp_path.iterdir()) == []

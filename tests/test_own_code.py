"""A rule and a density of the user's own go wherever a built-in name goes."""

import importlib
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import trustmix as tm
from trustmix.cli import app

EXAMPLES = Path(__file__).parents[1] / "examples"
RULE, DENSITY = "own_rule:BelieveTheSure", "own_density:NearestNeighbours"
SMALL = ["clients=5", "rounds=2", "split.samples_per_client=40", "public.samples=100", "engine.mode=sequential"]
SETS = [part for setting in SMALL for part in ("--set", setting)]


@pytest.fixture(autouse=True)
def _beside_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("own_rule.py", "own_density.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_sweep_of_fresh_processes_runs_an_own_rule_and_the_report_has_its_label_and_colour(tmp_path: Path) -> None:
    call("sweep", "digits", "--over", f"rule=avg,{RULE}", *SETS, "--jobs", "2", "--out", "sweep")
    summaries = [json.loads(file.read_text()) for file in sorted((tmp_path / "sweep").rglob("summary.json"))]
    assert {summary["method"]: summary["label"] for summary in summaries} == {"avg": "AVG", RULE: "believe the sure"}
    call("report", "sweep", "--out", "sweep.html")
    page = (tmp_path / "sweep.html").read_text()
    assert "believe the sure" in page
    assert "#d9480f" in page


def test_a_report_of_an_own_rule_needs_no_code_of_its_author(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = call("run", "digits", "--set", f"rule={RULE}", *SETS, "--out", "run")
    assert "believe" in table  # the label may be broken into lines
    monkeypatch.chdir(tmp_path / "run")
    (tmp_path / "own_rule.py").write_text("raise RuntimeError('a report runs nothing of the user')")
    call("report", str(tmp_path / "run"), "--out", str(tmp_path / "again.html"))
    assert "believe the sure" in (tmp_path / "again.html").read_text()


def test_an_own_rule_is_a_class_an_instance_or_a_reference_with_the_same_numbers() -> None:
    own = importlib.import_module("own_rule").BelieveTheSure
    x, y = tm.data.load("digits").train.inputs[:200], tm.data.load("digits").train.labels[:200]
    public = tm.Public(x[:50], classes=10)
    accuracies = []
    for rule in (own, own(), RULE):
        clients = [
            tm.Client.from_arrays(
                str(index), tm.models.ModelFactory("mlp", shape=(1, 8, 8), classes=10), x, y, public=public
            )
            for index in range(3)
        ]
        with tm.Federation(clients=clients, public=public, rule=rule, public_labels=y[:50]) as federation:
            accuracies.append([line.teacher_accuracy for line in federation.run(rounds=2).rounds])
    assert accuracies[0] == accuracies[1] == accuracies[2]


def test_an_own_density_is_named_in_a_recipe(tmp_path: Path) -> None:
    call("run", "digits", "--set", f"density.kind={DENSITY}", *SETS, "--out", "run")
    assert tm.Recipe.load(tmp_path / "run" / "recipe.toml").density.kind == DENSITY


def test_a_sweep_of_fresh_processes_fits_an_own_density(tmp_path: Path) -> None:
    call("sweep", "digits", "--over", f"density.kind=gaussians,{DENSITY}", *SETS, "--jobs", "2", "--out", "sweep")
    call("report", "sweep", "--out", "sweep.html")
    page = (tmp_path / "sweep.html").read_text()
    assert "NearestNeighbours" in page


@pytest.mark.slow
def test_a_served_federation_fits_a_density_of_the_nodes_own_and_none_that_the_server_names(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")
    from benchmarks.deployment import Deployment

    settings = [
        "clients=2",
        "rounds=1",
        "split.classes_per_client=5",
        f"density.kind={DENSITY}",
        "participation.quorum=1",
    ]
    deployment = Deployment(tmp_path, "demo", settings, ["0", "1"], secure=False)
    try:
        deployment.serve()
        refused = deployment.join("0")
        deployment.wait(lambda: "which is code" in deployment.log("0") + deployment.log("serve"), 300, "the refusal")
        refused.terminate()
        refused.wait()
        for node in ("0", "1"):
            deployment.join(node, f'share = {node}\ndensity = "{DENSITY}"\n')
        assert deployment.finish(300) == 0, deployment.log("serve")
    finally:
        deployment.close()
    (line,) = deployment.rounds()
    assert sorted(line["participants"]) == ["0", "1"]


@pytest.mark.slow
def test_a_served_federation_uses_an_own_rule_that_its_nodes_do_not_have(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")
    from benchmarks.deployment import Deployment

    settings = ["clients=2", "rounds=1", "split.classes_per_client=5", f"rule={RULE}"]
    deployment = Deployment(tmp_path, "demo", settings, ["0", "1"], secure=False)
    try:
        deployment.serve()
        deployment.wait(lambda: "nodes may join" in deployment.log("serve"), 300, "the server's start")
        (tmp_path / "own_rule.py").write_text("raise RuntimeError('a node imports no rule')")
        for node in ("0", "1"):
            deployment.join(node)
        assert deployment.finish(300) == 0, deployment.log("serve")
    finally:
        deployment.close()
    assert [line["method"] for line in deployment.rounds()] == [RULE]

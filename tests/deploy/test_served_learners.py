"""Several kinds of learners in a served federation that is killed: real processes, the numbers of a simulation."""

import signal
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from benchmarks.deployment import Deployment

import trustmix as tm

pytestmark = pytest.mark.slow

TIMEOUT = 400
BOOSTING = str(Path(__file__).parents[2] / "examples" / "boosting.toml")
SETTINGS = [
    "rounds=3",
    "public.samples=200",
    "train.first_epochs=3",
    "train.public_epochs=2",
    "guard.on=false",
]


@pytest.mark.parametrize(("recipe", "nodes", "killed"), [("tabular", "012", "0"), (BOOSTING, "0123", "01")])
def test_server_and_nodes_with_boosted_trees_that_are_killed_and_started_again_change_no_number(
    recipe: str, nodes: str, killed: str, tmp_path: Path
) -> None:
    settings = [f"clients={len(nodes)}", *SETTINGS]
    expected = tm.run(tm.Recipe.load(recipe, [*settings, "engine.mode=sequential"]))
    deployment = Deployment(tmp_path, recipe, [*settings, "participation.deadline=300"], list(nodes))
    try:
        deployment.serve()
        for node in nodes:
            deployment.join(node)
        deployment.wait(lambda: len(deployment.rounds()) >= 1, TIMEOUT, "the first round")
        for name in ("serve", *killed):
            deployment.processes[name].send_signal(signal.SIGKILL)
            deployment.processes[name].wait()
        for node in killed:
            deployment.join(node)
        deployment.serve()  # it goes on where the run directory ends
        assert deployment.finish(TIMEOUT) == 0, "".join(deployment.log(name) for name in ("serve", *killed))
        found = deployment.rounds()
    finally:
        deployment.close()
    assert [sorted(line["participants"]) for line in found] == [list(nodes)] * 3
    for line, simulated in zip(found, expected.rounds, strict=True):
        assert line["accuracy"] == pytest.approx(simulated.accuracy, abs=1e-9)
        assert line["macro_f1"] == pytest.approx(simulated.macro_f1, abs=1e-9)
        assert line["recall"] == {}, "recalls show which classes a node's test set has, and stay there"

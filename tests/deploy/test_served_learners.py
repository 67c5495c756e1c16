"""Three kinds of learners in a served federation that is killed: real processes, the numbers of a simulation."""

import signal
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from benchmarks.deployment import Deployment

import trustmix as tm

pytestmark = pytest.mark.slow

TIMEOUT = 400
SETTINGS = [
    "clients=3",
    "rounds=3",
    "public.samples=200",
    "train.first_epochs=3",
    "train.public_epochs=2",
    "guard.on=false",
]


def test_server_and_a_node_with_boosted_trees_that_are_killed_and_started_again_change_no_number(
    tmp_path: Path,
) -> None:
    expected = tm.run(tm.Recipe.load("tabular", [*SETTINGS, "engine.mode=sequential"]))
    deployment = Deployment(tmp_path, "tabular", [*SETTINGS, "participation.deadline=300"], ["0", "1", "2"])
    try:
        deployment.serve()
        for node in "012":
            deployment.join(node)
        deployment.wait(lambda: len(deployment.rounds()) >= 1, TIMEOUT, "the first round")
        for name in ("serve", "0"):
            deployment.processes[name].send_signal(signal.SIGKILL)
            deployment.processes[name].wait()
        deployment.join("0")
        deployment.serve()  # it goes on where the run directory ends
        assert deployment.finish(TIMEOUT) == 0, deployment.log("serve") + deployment.log("0")
        found = deployment.rounds()
    finally:
        deployment.close()
    assert [sorted(line["participants"]) for line in found] == [["0", "1", "2"]] * 3
    for line, simulated in zip(found, expected.rounds, strict=True):
        assert line["accuracy"] == pytest.approx(simulated.accuracy, abs=1e-9)
        assert line["macro_f1"] == pytest.approx(simulated.macro_f1, abs=1e-9)
        assert line["recall"] == {}, "recalls show which classes a node's test set has, and stay there"

"""The server of a deployment: what it takes for the largest answer of a run, and what it names at the end."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

import trustmix as tm
from trustmix.deploy import server
from trustmix.deploy.server import FIGURES_BYTES, max_reply_bytes, prepare_server
from trustmix.federation import History, Round

SETTINGS = ["clients=3", "rounds=1", "split.classes_per_client=4", "split.samples_per_client=40", "public.samples=60"]


@pytest.mark.parametrize(
    "settings",
    [
        ["rule=avg"],
        ["rule=trust", "wire.labels=counts"],
        ["rule=uwa", "wire.form=density"],
        ["rule=selective-fd"],
        ["rule=fedavg"],
        ["rule=scaffold", "train.optimizer=sgd", "train.lr=0.1"],
    ],
)
def test_no_upload_of_a_run_is_larger_than_the_server_takes_and_none_much_smaller(
    tmp_path: Path, settings: list[str]
) -> None:
    recipe = tm.Recipe.load("demo", [*SETTINGS, *settings])
    limit = max_reply_bytes(prepare_server(recipe, tmp_path / "run"))
    (line,) = tm.run(tm.Recipe.load(recipe, ["engine.mode=sequential"])).rounds
    largest = max(line.client_bytes_up.values())
    assert largest < limit < 20 * largest + FIGURES_BYTES


def test_clients_that_end_below_what_they_had_alone_are_named_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    first = Round(1, "trust", local_accuracy={"north": 0.9, "south": 0.5, "share": 0.9}, own_test=["north", "south"])
    last = replace(first, round=2, accuracy={"north": 0.75, "south": 0.5, "share": 0.1})
    server._warn_of_worse_clients(History([first, last]))
    (record,) = caplog.records
    expected = "client north ends at 75.0 % on its own test data, below the 90.0 % that it had alone in round 1"
    assert record.getMessage() == expected

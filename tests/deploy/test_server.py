"""The server of a deployment: what it takes for the largest answer of a run."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

import trustmix as tm
from trustmix.deploy.server import FIGURES_BYTES, max_reply_bytes, prepare_server

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

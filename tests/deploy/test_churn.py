"""Nodes that join, leave and crash at random: no round is lost, no node is locked out, refusals have names."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from benchmarks.churn import Churn

pytestmark = pytest.mark.slow

TIMEOUT = 400


def test_nodes_that_come_and_go_at_random_lose_no_round_and_are_not_locked_out(tmp_path: Path) -> None:
    drill = Churn(tmp_path, nodes=4, rounds=5, seed=0, deadline=60)
    try:
        drill.play(TIMEOUT)
        drill.verify()
    finally:
        drill.close()
    kinds = {kind for _, kind, _ in drill.events}
    assert kinds == {"comes with a wrong file", "its SuperNode is killed", "crashes", "comes", "leaves"}

"""Lying clients in a run: one line of a recipe, recorded, repeatable, and bounded by the guard."""

from pathlib import Path
from typing import Any

import pytest
import torch

from trustmix import Callback, Recipe, TrustmixError, run
from trustmix.federation import History, ProgressCallback, ProgressEvent

SMALL = {
    "data": {"name": "digits"},
    "clients": 10,
    "rounds": 2,
    "split": {"classes_per_client": 5, "samples_per_client": 100},
    "public": {"samples": 150},
    "model": {"name": "mlp", "hidden": [32]},
    "train": {"lr": 0.005, "batch": 16, "first_epochs": 30, "epochs": 3, "public_epochs": 5},
    "engine": {"mode": "sequential", "precision": "float32"},
}


def played(rule: str, *, on: bool = True, rounds: int = 2, **attack: Any) -> History:
    return run({**SMALL, "rule": rule, "rounds": rounds, "guard": {"on": on}, "attack": attack})


def test_one_inflating_client_in_ten_ruins_uwa_and_the_guard_prevents_it() -> None:
    clean = played("uwa", rounds=1).final_accuracy or 0.0
    ruined = played("uwa", on=False, rounds=1, kind="inflate", share=0.1).final_accuracy or 0.0
    guarded = played("uwa", rounds=1, kind="inflate", share=0.1)
    assert ruined < clean - 0.15
    assert (guarded.final_accuracy or 0.0) > clean - 0.03
    assert 1.0 in [found.get("scores") for found in guarded.rounds[0].guard.values()]


class SecondRound(Callback):
    """Keeps the teacher of each round and the uploads of the second one."""

    def __init__(self) -> None:
        self.teachers: list[torch.Tensor] = []
        self.uploads: list[torch.Tensor] = []

    def on_upload(self, *found: Any) -> None:
        if found[0] == 2:
            self.uploads.append(found[1].predictions.clone())

    def on_teacher(self, *found: Any) -> None:
        self.teachers.append(found[-1].clone())


def silenced(history: History) -> set[str]:
    return {client for client, found in history.rounds[-1].guard.items() if found.get("weight", 1) < 0.5}


def test_liars_are_named_in_the_record_and_honest_clients_are_not() -> None:
    history = played("suwa", kind="least-likely", share=0.2)
    assert len(silenced(history)) == 2
    assert history.rounds[0].failed == {}


def test_forged_messages_are_refused_and_the_run_goes_on() -> None:
    for kind in ("nan", "off-simplex", "stale", "replay"):
        line = run({**SMALL, "rounds": 1, "train": {"first_epochs": 1}, "attack": {"kind": kind}}).rounds[0]
        assert len(line.failed) == 2
        assert len(line.participants) == 8


def test_attackers_that_see_the_last_teacher_alone_send_nothing_of_the_honest_clients_round() -> None:
    """`hide` repeats what it sees: honest uploads of the round, or in the second round the teacher of the first."""
    watch = SecondRound()
    attack = {"kind": "hide", "share": 0.2, "sees": "teacher"}
    run({**SMALL, "rule": "avg", "guard": {"on": False}, "attack": attack}, callbacks=[watch])
    repeated = [one for one in watch.uploads if torch.allclose(one, watch.teachers[0].to(one.dtype), atol=1e-6)]
    assert len(repeated) == 2


def test_a_resumed_run_remembers_reputations(tmp_path: Path) -> None:
    def stop(moment: ProgressEvent) -> None:
        if moment.round == 2:
            raise KeyboardInterrupt

    lying = {**SMALL, "rule": "trust", "wire": {"labels": "set"}, "attack": {"kind": "least-likely"}}
    whole = run(lying, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(lying, out=tmp_path / "cut", callbacks=[ProgressCallback(stop)])
    resumed = run(lying, out=tmp_path / "cut", resume=True)
    assert [line.guard for line in resumed.rounds] == [line.guard for line in whole.rounds]
    assert len(silenced(whole)) == 2


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["attack.kind=inflat"], 'no attack "inflat". Did you mean "inflate"'),
        (["attack.kind=flip", "rule=fedavg"], "attack.kind is not read by fedavg: it exchanges weights"),
        (["attack.kind=labels"], "which wire.labels = none does not share"),
        (["guard.cap=0.3"], "guard.cap"),
        (["attack.share=1.0"], "attack.share"),
    ],
)
def test_attacks_and_guards_that_cannot_be_are_refused(settings: list[str], reason: str) -> None:
    with pytest.raises(TrustmixError, match=reason):
        Recipe.load("digits", settings)

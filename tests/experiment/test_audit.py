"""The audit: guessing where a model never learnt from its data, much better where it learnt them by heart."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from typer.testing import CliRunner

import trustmix as tm
from trustmix.attacks.membership_inference import AttackResult, AttackScores
from trustmix.cli import app
from trustmix.errors import TrustmixError
from trustmix.experiment.audit import audit
from trustmix.experiment.build import build_federation


def trained(folder: Path, train: dict[str, Any], **further: Any) -> Path:
    split = {"samples_per_client": 60, "classes_per_client": 5}
    recipe = {"data": {"name": "digits"}, "clients": 6, "rounds": 1, "split": split, "public": {"samples": 300}}
    tm.run(recipe | {"train": train, "engine": {"mode": "stacked", "workers": 1}} | further, out=folder)
    return folder


def test_who_was_in_the_data_is_found_in_a_model_that_knows_them_by_heart_and_not_in_one_that_learnt_nothing(
    tmp_path: Path,
) -> None:
    by_heart = audit(trained(tmp_path / "by-heart", {"first_epochs": 60, "lr": 0.01}))
    nothing = audit(trained(tmp_path / "nothing", {"first_epochs": 1, "lr": 1e-12}))
    attack, guess = by_heart.findings[0], nothing.findings[0]
    assert attack.attack == guess.attack == "predictions"
    assert attack.low > 0.55
    assert guess.low < 0.5 < guess.high
    assert guess.high - guess.low < 0.2


def test_the_command_prints_all_attacks_and_refuses_what_is_no_finished_run(tmp_path: Path) -> None:
    private = {"privacy": {"epsilon": 1000.0, "mechanism": "uploads"}}
    folder = trained(tmp_path / "run", {"first_epochs": 1}, **private)
    printed = CliRunner().invoke(app, ["audit", str(folder)], env={"COLUMNS": "200"})
    assert printed.exit_code == 0, printed.output
    assert all(word in printed.output for word in ("predictions", "scores", "teacher", "1000"))
    refused = CliRunner().invoke(app, ["audit", str(tmp_path / "nothing")])
    assert refused.exit_code == 2
    (folder / "summary.json").unlink()
    with pytest.raises(TrustmixError, match="holds no finished run"):
        audit(folder)


def test_a_run_with_byzantine_clients_is_audited_as_if_they_were_honest(tmp_path: Path) -> None:
    how = {"seed": 3, "guard": {"on": True}}
    honest = audit(trained(tmp_path / "honest", {"first_epochs": 1}, **how))
    attacked = audit(
        trained(tmp_path / "attacked", {"first_epochs": 1}, attack={"kind": "takeover", "share": 0.2}, **how)
    )
    assert attacked.findings[0] == honest.findings[0]


@pytest.mark.parametrize(("kind", "members"), [("gaussians", 12), ("ratio", 60), ("discriminator", 48)])
def test_members_of_the_attack_on_scores_are_the_samples_behind_the_density(
    kind: str, members: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = {}

    def count(cls: type[AttackResult], attack: str, scores: AttackScores) -> AttackResult:
        counted[attack] = int(scores.members[scores.groups == 0].sum())
        return cls(attack, 0.5, 0.5, 0.5, 0.0)

    monkeypatch.setattr(AttackResult, "from_scores", classmethod(count))
    audit(trained(tmp_path / "run", {"first_epochs": 1}, density={"kind": kind}, split={"samples_per_client": 60}))
    assert counted["scores"] == members
    assert counted["predictions"] == 48


def test_every_public_set_of_the_audit_has_members_and_fresh_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[torch.Tensor] = []
    predict_on = tm.Client.predict_on

    def record(client: tm.Client, round_: int, public: tm.Public) -> bytes:
        asked.append(public.inputs)
        return predict_on(client, round_, public)

    monkeypatch.setattr(tm.Client, "predict_on", record)
    folder = trained(tmp_path / "run", {"first_epochs": 1})
    audit(folder)
    with build_federation(tm.Recipe.load(folder / "recipe.toml")) as experiment:
        private = {tuple(row) for c in experiment.clients for row in c.private.inputs.flatten(1).tolist()}
    for inputs in asked:
        known = sum(tuple(row) in private for row in inputs.flatten(1).tolist())
        assert 0.1 < known / len(inputs) < 0.9


def test_auc_and_tpr_are_those_of_scikit_learn_ties_included() -> None:
    draws = np.random.default_rng(0)
    members = draws.random(3000) < 0.4
    scores = np.round(draws.normal(size=3000) + members, 1)
    auc, tpr = AttackScores(scores, members, np.zeros(3000), np.arange(3000)).auc_and_tpr()
    alarms, hits, _ = roc_curve(members, scores, drop_intermediate=False)
    assert auc == pytest.approx(roc_auc_score(members, scores))
    assert tpr == pytest.approx(hits[alarms <= 0.01].max())

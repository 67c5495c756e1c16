"""The audit: guessing where a model never learnt from its data, much better where it learnt them by heart."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import roc_auc_score, roc_curve
from typer.testing import CliRunner

import trustmix as tm
from trustmix.attacks.label_inference import class_evidence, guess_histograms, score_evidence
from trustmix.attacks.membership_inference import AttackResult, AttackScores
from trustmix.attacks.shadow_models import MIN_VARIANCE, likelihood_ratios
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
    by_heart = audit(trained(tmp_path / "by-heart", {"first_epochs": 60, "lr": 0.01}), shadows=4)
    nothing = audit(trained(tmp_path / "nothing", {"first_epochs": 1, "lr": 1e-12}), shadows=2)
    attack, guess = by_heart.findings[0], nothing.findings[0]
    assert attack.attack == guess.attack == "predictions"
    assert attack.low > 0.55
    assert guess.low < 0.5 < guess.high
    assert guess.high - guess.low < 0.2
    for found, least, most in ((by_heart, 0.55, 1.0), (nothing, 0.35, 0.65)):
        lira = next(result for result in found.findings if result.attack == "shadow models (LiRA)")
        assert least < lira.auc < most
        labels = {result.attack: result.auc for result in found.labels.results}
        assert set(labels) == {"label set, from predictions", "label set, from scores"}
    assert by_heart.labels.results[0].auc > 0.95
    assert by_heart.labels.distance < 0.7 * by_heart.labels.baseline
    assert nothing.labels.results[0].low < 0.5


def test_the_command_prints_all_attacks_and_refuses_what_is_no_finished_run(tmp_path: Path) -> None:
    private = {"privacy": {"epsilon": 1000.0, "mechanism": "uploads"}}
    folder = trained(tmp_path / "run", {"first_epochs": 1}, **private)
    table = tmp_path / "audit.csv"
    command = ["audit", str(folder), "--shadows", "2", "--out", str(table)]
    printed = CliRunner().invoke(app, command, env={"COLUMNS": "80"})
    assert printed.exit_code == 0, printed.output
    rows = table.read_text().splitlines()
    assert rows[0] == "run,epsilon,accuracy,attack,auc,auc_low,auc_high,caught_at_1_percent"
    assert all(row.split(",")[3].strip('"') in printed.output for row in rows[1:] if '"' not in row)
    cells = [line for line in printed.output.splitlines() if line.startswith("│")]
    assert len(cells) == len(rows) - 1, "a row of the table is broken into lines"
    assert all(word in printed.output for word in ("predictions", "scores", "teacher", "1000", "LiRA", "label set"))
    odd = CliRunner().invoke(app, ["audit", str(folder), "--shadows", "3"])
    assert odd.exit_code == 2
    assert "even number" in odd.output
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
    own = experiment.federation.context.public.inputs  # the attack on labels uses the run's own public set
    for inputs in (inputs for inputs in asked if not torch.equal(inputs, own)):
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


def test_likelihood_ratios_are_those_of_two_normal_distributions() -> None:
    draws = np.random.default_rng(1)
    inside = draws.random((8, 50)).argsort(0) < 4
    shadows = draws.normal(size=(8, 50)) * np.where(inside, 3.0, 2.0) + 2 * inside
    observed = draws.normal(size=50)
    expected = []
    for index in range(50):
        logs = []
        for chosen in (inside, ~inside):
            means = [shadows[chosen[:, i], i].mean() for i in range(50)]
            rest = sum(((shadows[chosen[:, i], i] - means[i]) ** 2).sum() for i in range(50))
            logs.append(norm.logpdf(observed[index], means[index], np.sqrt(max(MIN_VARIANCE, rest / (50 * 4 - 50)))))
        expected.append(logs[0] - logs[1])
    assert likelihood_ratios(observed, shadows, inside) == pytest.approx(np.array(expected))


def test_what_a_client_predicts_and_scores_more_than_others_is_evidence_of_its_classes() -> None:
    draws = np.random.default_rng(2)
    held = np.eye(3)[:, [0, 1, 2, 0]] + 0.05
    predictions = draws.dirichlet(np.ones(4), (3, 200)) * held[:, None]
    predictions /= predictions.sum(2, keepdims=True)
    own = held > 0.5
    assert (class_evidence(predictions) > 0).tolist() == own.tolist()
    truth = predictions.mean(0)
    scores = 50 * (truth @ own.T.astype(float)).T + draws.normal(size=(3, 200))
    assert roc_auc_score(own.ravel(), score_evidence(predictions, scores).ravel()) == 1
    assert guess_histograms(predictions)[0, [1, 2]] == pytest.approx(0, abs=1e-12)
    alike = np.full((2, 5, 4), 0.25)
    assert guess_histograms(alike) == pytest.approx(0.25)

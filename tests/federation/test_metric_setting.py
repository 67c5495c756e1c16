"""Figures beside accuracy in every round, and the metric that runs are compared by."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score

import trustmix as tm
from trustmix.federation import Round
from trustmix.federation import server as server_module

SMALL = ["clients=5", "rounds=2", "split.samples_per_client=60", "public.samples=80", "engine.mode=sequential"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = tmp_path_factory.mktemp("run") / "run"
    tm.run(tm.Recipe.load("digits", [*SMALL, "metric=macro_f1"]), out=found)
    return found


def test_a_round_has_the_figures_of_every_client_as_scikit_learn_computes_them(folder: Path) -> None:
    line = Round.from_json((folder / "rounds.jsonl").read_text().splitlines()[-1])
    data = tm.data.load("digits")
    y = data.test.labels.numpy()
    for client in map(str, range(5)):
        with torch.no_grad():
            p = torch.softmax(tm.load_model(folder, client)(data.test.inputs).double(), 1).numpy()
        guess = p.argmax(1)
        assert line.balanced_accuracy[client] == pytest.approx(balanced_accuracy_score(y, guess))
        assert line.macro_f1[client] == pytest.approx(f1_score(y, guess, average="macro", zero_division=0))
        assert line.auroc[client] == pytest.approx(roc_auc_score(y, p, multi_class="ovr"), abs=1e-6)
        recall = [float((guess[y == cls] == cls).mean()) for cls in range(10)]
        assert line.recall[client] == pytest.approx(recall, abs=1e-4)
    assert line.macro_f1_mean == pytest.approx(np.mean(list(line.macro_f1.values())))
    assert line.recall_mean == pytest.approx(np.array(list(line.recall.values()), float).mean(0), abs=2e-4)
    assert line.teacher_auroc is not None
    assert len(line.teacher_recall) == 10


def test_the_best_round_and_the_summary_are_by_the_metric_of_the_recipe(folder: Path) -> None:
    lines = [Round.from_json(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    means = [line.macro_f1_mean or 0 for line in lines]
    assert (summary["metric"], summary["best"], summary["final"]) == ("macro_f1", max(means), means[-1])
    assert summary["best_round"] == 1 + means.index(max(means))
    assert summary["best_accuracy"] == max(line.accuracy_mean or 0 for line in lines)


def test_a_history_is_compared_by_its_metric() -> None:
    lines = [Round(1, "avg", accuracy_mean=0.9, auroc_mean=0.5), Round(2, "avg", accuracy_mean=0.8, auroc_mean=0.7)]
    assert (tm.History(lines).best_round, tm.History(lines, "auroc").best_round) == (1, 2)
    assert repr(tm.History(lines, "auroc")) == "<History of 2 rounds of avg: best AUROC 70.0 % in round 2>"


def test_recalls_of_many_clients_are_left_to_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = {str(i): tm.federation.Reply(str(i), 1, recall=(i / 4, None, 0.5)) for i in range(3)}
    assert server_module._recalls(replies) == {
        "recall": {"0": [0.0, None, 0.5], "1": [0.25, None, 0.5], "2": [0.5, None, 0.5]},
        "recall_mean": [0.25, None, 0.5],
    }
    monkeypatch.setattr(server_module, "MAX_RECALLS", 8)
    assert server_module._recalls(replies) == {"recall": {}, "recall_mean": [0.25, None, 0.5]}

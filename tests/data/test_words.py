"""Texts as hashed words: the same numbers as an independent count, and a run without a network."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.utils import murmurhash3_32

import trustmix as tm
from trustmix.data import load
from trustmix.data.words import WORD_FEATURES, hash_words
from trustmix.experiment.predict import predict

TOPICS = {"sport": ["ball", "goal", "team", "match"], "food": ["bread", "soup", "salt", "oven"]}


def test_words_and_pairs_are_counted_at_the_place_and_with_the_sign_of_their_hash() -> None:
    wanted = np.zeros(WORD_FEATURES)
    for term in ("the", "goal", "goal", "the goal", "goal goal"):
        place = murmurhash3_32(term, seed=0)
        wanted[abs(place) % WORD_FEATURES] += 1 if place >= 0 else -1
    assert torch.equal(hash_words(["The GOAL, goal!"])[0], torch.from_numpy(wanted).float())


def write_texts(path: Path) -> None:
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for index in range(160):
            topic = list(TOPICS)[index % 2]
            rows.writerow([" ".join(rng.choice(TOPICS[topic], 6)), topic])


def test_a_csv_of_texts_runs_and_predicts_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)  # importing it fails
    write_texts(tmp_path / "texts.csv")
    assert load("text", path=tmp_path / "texts.csv").shape == (WORD_FEATURES,)
    recipe = {
        "data": {"name": "text", "path": str(tmp_path / "texts.csv")},
        "clients": 2,
        "rounds": 1,
        "split": {"classes_per_client": 2, "samples_per_client": 40},
        "public": {"samples": 20},
        "engine": {"mode": "sequential"},
    }
    history = tm.run(recipe, out=tmp_path / "run")
    assert history.best_accuracy is not None
    assert history.best_accuracy > 0.9
    found = predict(tmp_path / "run", tmp_path / "texts.csv")
    assert found.accuracy is not None
    assert found.accuracy > 0.9

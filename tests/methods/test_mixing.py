"""Mixing arrays and DataFrames by the rule of any method."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import trustmix as tm
from trustmix.aggregation import Median

CATS = pd.DataFrame({"cat": [0.9, 0.2], "dog": [0.1, 0.8]}, index=["x", "y"])
TURNED = pd.DataFrame({"dog": [0.3, 0.4], "cat": [0.7, 0.6]}, index=["y", "x"])


@given(st.integers(0, 1000), st.sampled_from(["avg", "uwa", "suwa", "most-confident", "median", "trust"]))
def test_a_rule_by_its_name_gives_the_teacher_of_its_aggregator(seed: int, rule: str) -> None:
    rng = np.random.default_rng(seed)
    predictions, scores = rng.dirichlet(np.ones(3), (4, 6)), rng.normal(size=(4, 6))
    aggregator = tm.federation.resolve_method(rule).make_aggregator()
    for q, score in zip(predictions, scores, strict=True):
        aggregator.update(q, score)
    teacher = tm.mix(predictions, scores, rule=rule)
    assert np.array_equal(teacher.probabilities, aggregator.compute().probabilities)


def test_a_class_and_an_instance_are_rules_too() -> None:
    predictions = np.random.default_rng(0).dirichlet(np.ones(3), (3, 4))
    wanted = np.median(predictions, 0)
    wanted /= wanted.sum(1, keepdims=True)
    for rule in (Median, Median(), "median"):
        assert np.allclose(tm.mix(predictions, rule=rule).probabilities, wanted)


def test_frames_are_aligned_by_their_labels_and_come_back_as_frames() -> None:
    teacher = tm.mix([CATS, TURNED], rule="avg")
    assert teacher.probabilities.equals((CATS + TURNED) / 2)  # which pandas aligns by itself
    assert teacher.effective_clients.to_dict() == {"x": 2.0, "y": 2.0}


def test_series_and_frames_of_scores_are_aligned_too() -> None:
    first, second = pd.Series([0.0, -90.0], index=["x", "y"]), pd.Series([0.0, -90.0], index=["y", "x"])
    by_series = tm.mix([CATS, TURNED], [first, second], tau=1).probabilities
    assert by_series.round(6).to_numpy().tolist() == [[0.9, 0.1], [0.7, 0.3]]
    by_frame = tm.mix([CATS, TURNED], pd.DataFrame({"a": first, "b": second}), tau=1).probabilities
    assert by_frame.equals(by_series)


def test_label_sets_may_name_columns() -> None:
    by_name = tm.mix([CATS, TURNED], label_sets=[["cat"], ["cat", "dog"]]).probabilities
    by_number = tm.mix([CATS, TURNED], label_sets=[[0], [0, 1]]).probabilities
    assert by_name.equals(by_number)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tm.mix([CATS, CATS.rename(columns={"dog": "cow"})]), 'client 2 of 2: the columns differs .* in "'),
        (lambda: tm.mix([CATS, CATS.iloc[:1]]), 'client 2 of 2: the index differs .* in "y"'),
        (lambda: tm.mix([CATS, CATS], label_sets=[["cow"], ["cat"]]), r"client 1 of 2: the label set is \['cow'\]"),
        (lambda: tm.mix([CATS], label_sets=[[2]]), "classes 0 to 1, or cat, dog"),
        (lambda: tm.mix([]), "predictions are of 0 clients"),
        (lambda: tm.mix([CATS], tau=1, rule="avg"), "give it without rule"),
        (lambda: tm.mix([CATS], rule="fedavg"), "no rule for predictions"),
        (lambda: tm.mix([CATS], rule="mediam"), 'Did you mean "median"'),
        (lambda: tm.mix([CATS], [[0.0, 0.0], [0.0, 0.0]]), "predictions are of 1 clients and scores of 2"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(tm.TrustmixError, match=message):
        call()


def test_reprs_of_large_values_are_one_short_line() -> None:
    inputs, labels = torch.rand(20, 4), torch.arange(20) % 2
    public = tm.Public(torch.rand(500, 4), classes=2)
    client = tm.Client.from_arrays("north", lambda: torch.nn.Linear(4, 2), inputs, labels, public=public)
    upload = tm.Upload.from_arrays("north", np.full((1000, 10), 0.1), np.zeros(1000))
    data = tm.Dataset("mine", client.private, client.calibration, ("cat", "dog"))
    with tm.Federation(clients=[client], public=public) as federation:
        values = [tm.mix(np.full((2, 1000, 10), 0.1)), upload, public, client, data, client.private, federation]
        for value in [*values, tm.Trust()]:
            assert len(repr(value)) < 150, repr(value)
            assert "\n" not in repr(value)

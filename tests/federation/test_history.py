"""A history is a sequence of rounds that pandas, matplotlib and notebooks can show."""

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot

from trustmix.errors import TrustmixError
from trustmix.federation import History, Round

matplotlib.use("agg")
ROUNDS = [
    Round(1, "suwa", accuracy_mean=0.5, accuracy={"a": 0.4, "b": 0.6}, seconds={"train": 8.0, "wall": 2.0}),
    Round(2, "suwa", accuracy_mean=0.75, accuracy={"a": 0.7}, failed={"b": "late"}, seconds={"train": 4.0}),
]
HISTORY = History(ROUNDS)


def test_a_history_is_a_sequence_of_its_rounds() -> None:
    assert (len(HISTORY), HISTORY[0], HISTORY[-1], list(HISTORY)) == (2, ROUNDS[0], ROUNDS[1], ROUNDS)
    assert HISTORY[1:] == History(ROUNDS[1:])
    assert ROUNDS[1] in HISTORY


def test_reprs_are_one_short_line() -> None:
    assert repr(HISTORY) == "<History of 2 rounds of suwa: best accuracy 75.0 % in round 2>"
    assert repr(ROUNDS[0]) == "<Round 1 of suwa: 0 clients, accuracy 50.0 %>"
    assert repr(History([])) == "<History of 0 rounds>"


def test_the_frame_has_a_row_per_round_and_the_figures_that_are_known() -> None:
    frame = HISTORY.to_frame()
    assert frame.index.tolist() == [1, 2]
    assert frame["accuracy_mean"].tolist() == [0.5, 0.75]
    assert frame["failed"].tolist() == [0, 1]
    assert frame["seconds"].tolist() == [2.0, 4.0]  # those that have passed, where they were recorded
    assert "teacher_accuracy" not in frame
    assert len(History([]).to_frame()) == 0


def test_the_frame_of_a_field_has_a_column_per_client() -> None:
    frame = HISTORY.to_frame("accuracy")
    assert frame["a"].tolist() == [0.4, 0.7]
    assert frame["b"].isna().tolist() == [False, True]
    with pytest.raises(TrustmixError, match='no "accuracy_mean" by client; it has accuracy, local_accuracy'):
        HISTORY.to_frame("accuracy_mean")


def test_the_plot_has_labelled_axes_and_a_curve_for_each_known_accuracy() -> None:
    axes = HISTORY.plot()
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "accuracy, %")
    assert [line.get_label() for line in axes.get_lines()] == ["clients, all classes"]
    assert np.asarray(axes.get_lines()[0].get_ydata()).tolist() == [50.0, 75.0]
    assert HISTORY.plot(axes) is axes
    pyplot.close("all")


def test_the_table_of_a_notebook_escapes_what_a_method_is_called() -> None:
    table = History([Round(1, "<script>", accuracy_mean=0.5)])._repr_html_()
    assert "<script>" not in table
    assert "<td>50.0 %</td>" in table
    assert table.count("<tr>") == 2


def test_the_seconds_of_a_summary_are_those_that_have_passed() -> None:
    assert HISTORY.summary()["seconds"] == 6.0

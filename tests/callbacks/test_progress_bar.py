"""The progress of a run in Python."""

import io

import pytest

import trustmix as tm
from trustmix.callbacks import ProgressBar


def test_a_run_in_a_script_writes_over_one_line_and_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    tm.run("digits", rounds=1, clients=5, split={"samples_per_client": 20}, public={"samples": 20}, progress=True)
    shown = capsys.readouterr().err
    assert "round 1/1, client 5/5" in shown
    assert shown.count("\n") == 1
    assert shown.rstrip().endswith("done")


def test_an_error_is_named() -> None:
    shown = io.StringIO()
    bar = ProgressBar(shown)
    bar.on_run_begin([])
    bar.on_run_end(KeyboardInterrupt())
    assert shown.getvalue() == "\rended by KeyboardInterrupt\n"


def test_without_a_notebook_no_bar_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    history = tm.run("digits", rounds=1, clients=5, split={"samples_per_client": 20}, public={"samples": 20})
    assert capsys.readouterr().err == ""
    assert 0 < history[0].seconds["wall"] < 600


def test_keywords_change_a_section_and_leave_its_other_keys(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(tm.TrustmixError, match=r"split.samples_per_client"):
        tm.run("digits", split={"samples_per_client": 0})
    with pytest.raises(tm.TrustmixError, match="rounds is <object"):
        tm.run("digits", rounds=object())

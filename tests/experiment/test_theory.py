"""The probe on real runs: it rebuilds the teacher of the run, and its measurements keep to the theory."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import trustmix as tm
from trustmix import Recipe, TrustmixError
from trustmix.cli import app
from trustmix.experiment.run import build_probe
from trustmix.experiment.run_directory import RunDirectory
from trustmix.experiment.theory import analyze_runs
from trustmix.federation import ProgressCallback, ProgressEvent
from trustmix.report.theory_page import write_theory_page
from trustmix.theory.analysis import TAUS
from trustmix.theory.measurement import Measurement, read_measurements

SMALL = ["clients=5", "rounds=2", "split.samples_per_client=40", "public.samples=80", "engine.mode=sequential"]
RULES = ("avg", "suwa", "uwa")


def small(*overrides: str) -> Recipe:
    return Recipe.load("demo", [*SMALL, "train.public_epochs=2", *overrides])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rules on one split, and a second seed of sUWA on the same split."""
    folder = tmp_path_factory.mktemp("theory")
    for rule in RULES:
        tm.run(small(f"rule={rule}", "split.seed=0", "theory.every=1"), out=folder / rule)
    tm.run(small("rule=suwa", "split.seed=0", "seed=1", "theory.every=1"), out=folder / "suwa-1")
    return folder


def test_the_probe_rebuilds_the_teacher_of_every_round(runs: Path) -> None:
    for rule in RULES:
        lines, measured = RunDirectory(runs / rule).rounds(), read_measurements(runs / rule)
        assert [m.round for m in measured] == [1, 2]
        for line, found in zip(lines, measured, strict=True):
            assert found.concentration == pytest.approx(line.concentration, rel=1e-4)
            assert found.method == line.method == rule


def test_the_probe_rebuilds_scores_of_the_density_ratio_from_all_samples_of_a_client(tmp_path: Path) -> None:
    recipe = small("rule=uwa", "density.kind=ratio", "guard.on=false", "rounds=1", "theory.every=1")
    line = tm.run(recipe, out=tmp_path / "run").rounds[0]
    assert read_measurements(tmp_path / "run")[0].concentration == pytest.approx(line.concentration, rel=1e-4)


def test_avg_trusts_everybody_alike_and_suwa_lies_between_avg_and_uwa(runs: Path) -> None:
    chi = {rule: read_measurements(runs / rule)[0].concentration for rule in RULES}
    assert chi["avg"] == pytest.approx(1 / 5, rel=1e-6)
    assert chi["avg"] < chi["suwa"] < chi["uwa"] <= 1


def test_measured_gradients_keep_to_the_theory(runs: Path) -> None:
    for rule in RULES:
        for found in read_measurements(runs / rule):
            assert found.discrepancy <= found.score_energy * found.teacher_error
            assert found.zeta2 == pytest.approx(found.floor * (1 - found.m))
            assert found.pl is None or 0 < found.pl <= found.smoothness


def test_a_finished_run_is_measured_as_it_was_while_it_ran(runs: Path) -> None:
    found = analyze_runs([runs / "uwa"]).runs[0].measurement
    assert asdict(found) == pytest.approx(asdict(read_measurements(runs / "uwa")[-1]))


def test_measuring_does_not_change_the_run(runs: Path, tmp_path: Path) -> None:
    tm.run(small("rule=uwa", "split.seed=0"), out=tmp_path / "plain")
    accuracies = [[line.accuracy for line in RunDirectory(f).rounds()] for f in (runs / "uwa", tmp_path / "plain")]
    assert accuracies[0] == accuracies[1]


def test_an_interrupted_run_has_each_measurement_once(runs: Path, tmp_path: Path) -> None:
    moments = 0

    def interrupt(_: ProgressEvent) -> None:
        nonlocal moments
        moments += 1
        if moments > 14:
            raise KeyboardInterrupt

    recipe = small("rule=uwa", "split.seed=0", "theory.every=1")
    with pytest.raises(KeyboardInterrupt):
        tm.run(recipe, out=tmp_path / "cut", callbacks=[ProgressCallback(interrupt)])
    tm.run(recipe, out=tmp_path / "cut", resume=True)
    assert (tmp_path / "cut" / "theory.jsonl").read_text() == (runs / "uwa" / "theory.jsonl").read_text()
    tm.run(small("rule=uwa", "split.seed=0"), out=tmp_path / "cut", overwrite=True)
    assert read_measurements(tmp_path / "cut") == []


def test_seeds_of_one_split_show_bias_variance_and_lemma_1(runs: Path) -> None:
    (curve,) = analyze_runs([runs / "suwa", runs / "suwa-1"]).curves
    assert curve.biases is not None
    assert curve.variances is not None
    assert curve.decompositions is not None
    assert curve.concentrations == sorted(curve.concentrations)
    assert curve.biases[TAUS.index(0.0)] > curve.biases[TAUS.index(0.25)] > curve.biases[TAUS.index(1.0)]
    for bias, variance, error in zip(curve.biases, curve.variances, curve.errors, strict=True):
        assert bias + variance == pytest.approx(error)
    for tau, found in curve.decompositions.items():
        assert found.error == pytest.approx(curve.errors[TAUS.index(tau)])
    assert curve.decompositions[0.0].error <= curve.decompositions[0.0].bound
    assert curve.decompositions[0.0].coupling == pytest.approx(0, abs=1e-9)


def test_seeds_of_different_splits_are_compared_on_the_test_set(runs: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        tm.run(small("rounds=1", f"seed={seed}"), out=tmp_path / str(seed))
    (curve,) = analyze_runs([tmp_path]).curves
    assert curve.runs == 2
    assert curve.decompositions is None


def test_split_seed_fixes_who_holds_what_and_nothing_else() -> None:
    one, other = (build_probe(small("split.seed=3", f"seed={seed}")) for seed in (0, 1))
    plain = build_probe(small("seed=3"))
    for probe in (other, plain):
        assert torch.equal(one.public.inputs, probe.public.inputs)
        assert torch.equal(one.shares[2][0].inputs, probe.shares[2][0].inputs)
    first, second = (next(probe.factories[0]().parameters()) for probe in (one, other))
    assert not torch.equal(first, second)


def test_against_labels_no_reference_model_is_needed(runs: Path) -> None:
    found = analyze_runs([runs / "uwa"], reference="labels").runs[0].measurement
    assert found.reference == "labels"
    assert found.teacher_error == pytest.approx(found.label_error)


def test_the_command_shows_figures_a_verdict_and_leaves_a_page_that_opens_offline(runs: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["theory", str(runs), "--out", str(tmp_path / "theory.html")])
    assert result.exit_code == 0, result.output
    assert "teacher error" in result.output
    assert "rank correlation" in result.output
    text = (tmp_path / "theory.html").read_text()
    assert "Bias against variance as tau goes from AVG to UWA" in text
    assert "Lemma 1 over 2 runs" in text
    assert "Teacher error, round by round" in text
    assert '<script src="http' not in text


def test_a_single_run_gets_a_sentence_about_its_floor(runs: Path, tmp_path: Path) -> None:
    findings = analyze_runs([runs / "uwa"])
    assert "The predicted floor of |grad F|² is" in findings.verdict()
    assert "tau = 0.25" in findings.verdict()
    assert "Teacher error as tau goes" in write_theory_page(findings, tmp_path / "page.html").read_text()


def test_bad_input_is_answered_in_a_sentence(runs: Path, tmp_path: Path) -> None:
    tm.run(small("rounds=1", "rule=alone"), out=tmp_path / "alone")
    tm.run(small("rounds=1"), out=tmp_path / "unfinished")
    (tmp_path / "unfinished" / "summary.json").unlink()
    for arguments, sentence in (
        (["theory", str(tmp_path / "nowhere")], "there is no run here"),
        (["theory", str(tmp_path / "alone")], "was run by alone: the theory is about"),
        (["theory", str(tmp_path / "unfinished")], "is not finished"),
        (["theory", str(runs / "uwa"), "--reference", "oracle"], "it must be model or labels"),
        (["run", "demo", "--set", "theory.every=0"], "theory.every"),
        (["run", "demo", "--set", "rule=alone", "--set", "theory.every=1"], "theory.every is not read by alone"),
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2, result.output
        assert sentence in result.output
    with pytest.raises(TrustmixError, match="is no record of a Measurement; it lacks method, reference"):
        Measurement.from_json(json.dumps({"round": 1}))


@pytest.mark.parametrize("change", ["train.public_epochs=auto", "train.stages=mixed"])
def test_the_theory_of_steps_on_the_teacher_alone_is_not_measured_on_others(tmp_path: Path, change: str) -> None:
    with pytest.raises(TrustmixError, match=r"set train\.public_epochs to a number and train\.stages to two"):
        tm.run(small("theory.every=1", change), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()

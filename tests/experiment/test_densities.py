"""Runs of a recipe that asks for another density than the paper's."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import nn

import trustmix as tm
from trustmix import Recipe, TrustmixError
from trustmix.experiment import estimate
from trustmix.experiment.build import build_federation
from trustmix.experiment.estimate import estimate_cost
from trustmix.experiment.run import build_probe
from trustmix.experiment.run_directory import RunDirectory
from trustmix.learners.discriminator import count_steps
from trustmix.learners.scoring import density_samples

SETTINGS = ["clients=5", "rounds=1", "split.samples_per_client=60", "public.samples=80", "engine.mode=sequential"]


def recipe(*overrides: str) -> Recipe:
    return Recipe.load("demo", [*SETTINGS, "rule=uwa", *overrides])


@pytest.mark.parametrize("density", ["{kind='features'}", "{kind='ratio'}", "{kind='kernel', standardise=true}"])
def test_the_probe_rebuilds_the_teacher_of_any_density(density: str, tmp_path: Path) -> None:
    wanted = recipe(f"density={density}")
    tm.run(wanted, out=tmp_path / "run")
    line = RunDirectory(tmp_path / "run").rounds()[0]
    teacher = build_probe(wanted).uploads(tmp_path / "run", line).teacher(tau=1.0)
    assert float(teacher.concentration.mean()) == pytest.approx(line.concentration, rel=1e-4)


def test_the_ratio_is_fitted_on_each_sample_once_where_none_is_held_out() -> None:
    with build_federation(recipe("density={kind='ratio', calibration='private'}")) as experiment:
        client = experiment.clients[0]
        assert len(density_samples("ratio", client.private, client.calibration)) == len(client.private)


def test_the_theory_is_not_measured_on_kept_scores() -> None:
    with pytest.raises(TrustmixError, match=r"The theory is measured on scores of each round's models"):
        build_probe(recipe("density.refresh=once"))


def test_the_forecast_is_of_messages_with_the_densitys_own_scores() -> None:
    plain, features = (estimate_cost(recipe(f"density.kind={kind}")).messages for kind in ("gaussians", "features"))
    assert features["float32"][0] == pytest.approx(plain["float32"][0], rel=0.05)
    assert features["float32"][0] != plain["float32"][0]


def test_the_forecast_counts_the_training_of_discriminators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "measure_throughput", lambda *_: 1.0)  # so that seconds are steps
    ratio, dearer = (estimate_cost(recipe(f"density.kind={kind}", "rounds=1")) for kind in ("ratio", "discriminator"))
    assert dearer.training_seconds == ratio.training_seconds + 5 * count_steps(48, 80, 32)
    assert dearer.messages["float32"][0] == pytest.approx(ratio.messages["float32"][0], rel=0.05)


def without_features(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, classes, (shape[1], shape[2])), nn.Flatten())


def test_a_model_without_features_is_refused_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "own_models", SimpleNamespace(flat=without_features))
    with pytest.raises(TrustmixError, match=r"neither a linear layer nor a module called head"):
        tm.run(recipe("density.kind=features", "model={source='own_models:flat'}"))

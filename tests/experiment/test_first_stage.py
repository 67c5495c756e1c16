"""Runs that begin alike share the first private stage, and their numbers are those of separate runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import trustmix as tm
from trustmix import Recipe, storage
from trustmix.experiment.first_stage import first_stage_key
from trustmix.experiment.run_directory import RunDirectory
from trustmix.federation import Round

SMALL = ["clients=5", "rounds=2", "split.samples_per_client=60", "public.samples=40", "split.test_samples=50"]
NORMED = ["model.name=cnn", "model.width=4", "model.norm=true", "train.augment=crop", "train.batch=16"]


def without_seconds(folder: Path) -> list[Round]:
    return [replace(line, seconds={}) for line in RunDirectory(folder).rounds()]


def states(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of all clients, optimisers and buffers included."""
    files = sorted(folder.glob("checkpoint/clients/*/*.safetensors"))
    found = {
        f"{file.parent.name}/{file.stem}/{name}": tensor
        for file in files
        for name, tensor in storage.read_tensors(file)[0].items()
    }
    assert found
    return found


@pytest.mark.parametrize("settings", [["engine.mode=stacked", "engine.workers=1"], ["engine.mode=sequential", *NORMED]])
def test_numbers_and_weights_are_those_of_separate_runs_to_the_last_bit(settings: list[str], tmp_path: Path) -> None:
    for rule in ("suwa", "trust", "alone"):
        recipe = Recipe.load("demo", [*SMALL, *settings, "engine.precision=float32", f"rule={rule}"])
        shared, apart = tmp_path / f"{rule}-shared", tmp_path / rule
        tm.run(recipe, out=shared, first_stages=tmp_path / "stages")
        tm.run(recipe, out=apart)
        assert without_seconds(shared) == without_seconds(apart)
        one, two = states(shared), states(apart)
        assert set(one) == set(two)
        assert all(torch.equal(one[name], two[name]) for name in one)
        trained = "train" in RunDirectory(shared).rounds()[0].seconds
        assert trained == (rule == "suwa")  # the first run plays the stage, the others begin from it
    assert len(list((tmp_path / "stages").iterdir())) == 1


def test_a_stage_that_is_not_there_for_every_client_is_played_again(tmp_path: Path) -> None:
    recipe = Recipe.load("demo", [*SMALL, "engine.mode=sequential"])
    first = tm.run(recipe, first_stages=tmp_path)
    next(tmp_path.glob("*/3/*.safetensors")).unlink()
    again = tm.run(recipe, first_stages=tmp_path)
    assert "train" in again.rounds[0].seconds
    assert again.rounds[-1].accuracy == first.rounds[-1].accuracy
    assert len(list(tmp_path.glob("*/*/000001.safetensors"))) == 5


def test_a_damaged_stage_is_an_error_and_no_result(tmp_path: Path) -> None:
    recipe = Recipe.load("demo", [*SMALL, "engine.mode=sequential"])
    tm.run(recipe, first_stages=tmp_path)
    next(tmp_path.glob("*/3/*.safetensors")).write_bytes(b"no tensors")
    with pytest.raises(tm.TrustmixError, match=r"000001\.safetensors"):
        tm.run(recipe, first_stages=tmp_path)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("rule=alone", True),
        ("rounds=7", True),
        ("density.kind=kernel", True),
        ("wire.up=uint4", True),
        ("guard.on=false", True),
        ("attack.kind=flip", True),
        ("train.epochs=3", True),
        ("train.public_epochs=auto", True),
        ("rule=own.module:Rule", True),
        ("seed=1", False),
        ("split.classes_per_client=3", False),
        ("public.samples=300", False),
        ("density.holdout=0.3", False),
        ("density.calibration=private", False),
        ("train.first_epochs=3", False),
        ("train.lr=0.1", False),
        ("train.keep_optimizer=false", False),
        ("model.hidden=[7]", False),
        ("engine.precision=bfloat16", False),
        ("clients=19", False),
    ],
)
def test_what_acts_before_the_end_of_the_stage_tells_stages_apart(change: str, same: bool) -> None:
    base = first_stage_key(Recipe.load("demo"))
    assert base is not None
    assert (first_stage_key(Recipe.load("demo", [change])) == base) == same


@pytest.mark.parametrize(
    "changes",
    [["rule=fedavg"], ["rule=reference"], ["rule=fedaux"], ["privacy.epsilon=3"], ["engine.name=ray"]],
    ids=json.dumps,
)
def test_other_kinds_of_first_stages_are_not_shared(changes: list[str], tmp_path: Path) -> None:
    assert first_stage_key(Recipe.load("demo", changes)) is None

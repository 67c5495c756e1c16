"""Models are built the same in every process and checked before they are trained."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import trustmix as tm
from trustmix import TrustmixError
from trustmix.models import ModelFactory, cnn, mlp, validate_model

IMAGES = torch.zeros(2, 1, 8, 8)


def own_network(shape: tuple[int, ...], classes: int, *, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes, bias=bias))


def no_network(shape: tuple[int, ...], classes: int) -> str:
    return "network"


def frozen_network(shape: tuple[int, ...], classes: int) -> nn.Module:
    return own_network(shape, classes).requires_grad_(False)


def too_few_outputs(shape: tuple[int, ...], classes: int) -> nn.Module:
    return own_network(shape, classes - 1)


def factory(name: str | None = None, source: str | None = None, **options: Any) -> ModelFactory:
    return ModelFactory(name, source and f"{__name__}:{source}", options, (1, 8, 8), 10)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


@pytest.mark.parametrize(("name", "source"), [("mlp", None), ("cnn", None), (None, "own_network")])
def test_a_model_is_the_same_each_time_and_another_for_another_client(name: str | None, source: str | None) -> None:
    make = ModelFactory(name, source and f"{__name__}:{source}", {}, (1, 8, 8), 10, seed=3, client="1")
    other = ModelFactory(name, source and f"{__name__}:{source}", {}, (1, 8, 8), 10, seed=3, client="2")
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one, again = make().state_dict(), make().state_dict()
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[key], again[key]) for key in one)
    assert not any(torch.equal(one[key], other().state_dict()[key]) for key in one)
    assert validate_model(make, IMAGES)(IMAGES).shape == (2, 10)


def test_options_reach_the_function() -> None:
    assert len(mlp((4,), 3, hidden=[5, 6])) == 1 + 2 * 2 + 1  # type: ignore[arg-type]
    assert validate_model(factory(source="own_network", bias=False), IMAGES).state_dict().keys() == {"1.weight"}


def test_batch_norm_after_each_convolution_makes_its_outputs_standard() -> None:
    network = cnn((1, 8, 8), 10, layers=2, norm=True)
    assert [type(part).__name__ for part in network.children()][:4] == ["Conv2d", "BatchNorm2d", "MaxPool2d", "ReLU"]
    assert [isinstance(part, nn.BatchNorm2d) for part in cnn((1, 8, 8), 10).modules()].count(True) == 0
    seen = []
    for part in network.children():
        if isinstance(part, nn.BatchNorm2d):
            part.register_forward_hook(lambda _module, _inputs, outputs: seen.append(outputs.detach()))
    network.train()(5 + 3 * torch.randn(64, 1, 8, 8))
    assert len(seen) == 2
    for outputs in seen:
        torch.testing.assert_close(outputs.mean((0, 2, 3)), torch.zeros(outputs.shape[1]), atol=1e-4, rtol=0)
        torch.testing.assert_close(outputs.var((0, 2, 3)), torch.ones(outputs.shape[1]), atol=1e-2, rtol=0)


def test_uint8_images_are_normalized_inside_the_model() -> None:
    normalized = ModelFactory("mlp", None, {}, (3, 2, 2), 10, scale=((0.5, 0.25, 0.0), (0.5, 0.25, 1.0)))()
    images = torch.randint(0, 256, (5, 3, 2, 2), dtype=torch.uint8)
    by_hand = images.float() / 255
    by_hand = (by_hand - torch.tensor([0.5, 0.25, 0]).view(3, 1, 1)) / torch.tensor([0.5, 0.25, 1]).view(3, 1, 1)
    torch.testing.assert_close(normalized(images), normalized[1](by_hand))  # type: ignore[index]


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (factory("cnnn"), 'Did you mean "cnn"'),
        (factory("mlp", depth=3), "unexpected keyword argument 'depth'"),
        (factory(source="no_network"), "returned str; it must return a torch.nn.Module"),
        (factory(source="frozen_network"), "no parameter to train"),
        (factory(source="too_few_outputs"), r"returns \(2, 9\); it must return logits of shape \(2, 10\)"),
        (ModelFactory("cnn", None, {}, (64,), 10), r"takes images .* not \(64,\)"),
        (ModelFactory("mlp", None, {}, (9,), 10), "fails on inputs"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_training(model: ModelFactory, sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        validate_model(model, IMAGES)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("dtype", [np.int64, np.int16])
def test_whole_numbers_other_than_uint8_images_are_refused_with_their_type(
    name: str, dtype: type[np.integer[Any]], tmp_path: Path
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 1, 8, 8))
    labels = np.arange(60) % 3
    x = images.astype(dtype)
    np.savez(tmp_path / "whole.npz", x_train=x, y_train=labels, x_test=x[:6], y_test=labels[:6])
    recipe = {"data": {"name": "npz", "path": str(tmp_path / "whole.npz")}, "model": {"name": name}, "clients": 2}
    sizes = {"split": {"samples_per_client": 8}, "public": {"samples": 10}}
    sentence = rf'"{name}" takes float32 inputs, but those of the data are torch.{np.dtype(dtype)}: convert numbers to'
    with pytest.raises(TrustmixError, match=sentence):
        tm.run({**recipe, **sizes})


def test_token_ids_outside_the_vocabulary_are_no_fault_of_their_type() -> None:
    tokens = torch.full((2, 4), 40_000)
    with pytest.raises(TrustmixError, match=r"fails on inputs \(2, 4\): index out of range"):
        validate_model(ModelFactory("bert-tiny", shape=(4,), classes=3), tokens)


FACTS = """
import hashlib, torch
from trustmix.settings.recipe import Recipe
from trustmix.experiment.build import build_federation
with build_federation(Recipe.load("demo", ["engine.mode=sequential"])) as experiment:
    digest = hashlib.sha256(experiment.federation.context.public.fingerprint.encode())
    for client in experiment.clients:
        digest.update(client.private.inputs.numpy().tobytes())
        for tensor in client.model().state_dict().values():
            digest.update(tensor.numpy().tobytes())
print(torch.get_num_threads(), digest.hexdigest())
"""


def test_the_number_of_threads_changes_neither_the_split_nor_the_initial_models() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    two = subprocess.run([sys.executable, "-c", FACTS], env=environment, capture_output=True, text=True, check=True)
    with redirect_stdout(io.StringIO()) as one:
        exec(FACTS, {})  # the tests themselves have one thread
    assert [output.split()[0] for output in (one.getvalue(), two.stdout)] == ["1", "2"]
    assert one.getvalue().split()[1] == two.stdout.split()[1]

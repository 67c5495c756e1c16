"""Promises of privacy in a federation: spent as promised, repeatable where simulated, secret elsewhere, or refused."""

from typing import Any

import pytest
import torch

import trustmix as tm
from trustmix.errors import TrustmixError
from trustmix.federation import Privacy, Training
from trustmix.study.building import prepare

SMALL: dict[str, Any] = {
    "data": {"name": "digits"},
    "clients": 4,
    "rounds": 3,
    "split": {"samples_per_client": 60, "classes_per_client": 3},
    "public": {"samples": 60},
    "train": {"first_epochs": 2},
    "engine": {"mode": "sequential", "precision": "float32"},
}


@pytest.mark.parametrize("mechanism", ["training", "uploads"])
def test_epsilon_grows_to_what_was_promised_and_the_same_recipe_gives_the_same_numbers(mechanism: str) -> None:
    recipe = SMALL | {"privacy": {"epsilon": 20.0, "mechanism": mechanism}}
    history, again = tm.run(recipe), tm.run(recipe)
    spent = [line.epsilon for line in history.rounds if line.epsilon is not None]
    assert len(spent) == 3
    assert sorted(spent) == spent
    assert 19 < spent[-1] <= 20
    assert history.rounds[0].epsilon_round == spent[0]
    assert history.summary()["epsilon"] == spent[-1]
    assert [line.accuracy for line in history.rounds] == [line.accuracy for line in again.rounds]


def test_uploads_under_a_promise_differ_from_those_without_and_nothing_is_held_out() -> None:
    _, open_ = prepare(tm.Recipe.load(SMALL))
    _, private = prepare(tm.Recipe.load(SMALL | {"privacy": {"epsilon": 20.0}}))
    first, second = (federation.engine.members[0] for federation in (open_, private))  # type: ignore[attr-defined]
    assert len(first.private) + len(first.calibration) == len(second.private) == 60
    assert first.gradient_noise is None
    assert second.gradient_noise.multiplier > 0.3


def test_noise_is_repeatable_only_where_it_is_simulated() -> None:
    def drawn(privacy: Privacy) -> torch.Tensor:
        return torch.randn(5, generator=privacy.draws(0, "upload", "north", 1))

    simulated, real = Privacy(8.0, 3, simulated=True), Privacy(8.0, 3)
    assert torch.equal(drawn(simulated), drawn(simulated))
    assert not torch.equal(drawn(real), drawn(real))
    assert not torch.equal(drawn(real), drawn(simulated))


def test_more_samples_and_fewer_rounds_need_less_noise() -> None:
    def multiplier(samples: int, rounds: int) -> float:
        noise = Privacy(8.0, rounds).gradients(samples, Training())
        assert noise is not None
        return noise.multiplier

    assert multiplier(4000, 2) < multiplier(400, 2) < multiplier(400, 4)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"rule": "fedavg"}, "goes with rules that mix predictions, or alone; fedavg"),
        ({"wire": {"labels": "counts"}}, "wire.labels = counts tells what privacy.mechanism = training protects"),
        ({"wire": {"form": "density"}}, "wire.form = scores"),
        ({"density": {"calibration": "augmented"}}, "leaves no density.calibration to choose"),
        ({"privacy": {"epsilon": 0}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": 8.0, "delta": 0.1}}, r"client 0 has 60 records, and it must be well below 1/60"),
        ({"model": {"name": "resnet18"}}, "takes|batch norm"),
        ({"theory": {"every": 1}}, "not on those of"),
    ],
)
def test_what_would_break_a_promise_is_refused_in_a_sentence(
    setting: dict[str, Any], reason: str, tmp_path: Any
) -> None:
    with pytest.raises(TrustmixError, match=reason):
        tm.run(SMALL | {"privacy": {"epsilon": 8.0}} | setting, out=tmp_path / "run")

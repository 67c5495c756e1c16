"""Privacy budgets in a federation: spent as planned, repeatable where simulated, secret elsewhere, or refused."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import trustmix as tm
from trustmix.errors import TrustmixError
from trustmix.experiment.build import build_federation
from trustmix.federation import Request
from trustmix.learners import Training, TrainingJob
from trustmix.privacy import PrivacyBudget
from trustmix.seeds import STATE, secure_generator

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
    with build_federation(tm.Recipe.load(SMALL)) as open_:
        first = open_.clients[0]
    with build_federation(tm.Recipe.load(SMALL | {"privacy": {"epsilon": 20.0}})) as private:
        second = private.clients[0]
    assert len(first.private) + len(first.calibration) == len(second.private) == 60
    assert first.dp_sgd_params is None
    assert second.dp_sgd_params is not None
    assert second.dp_sgd_params.noise_multiplier > 0.3


def test_noise_is_repeatable_only_where_it_is_simulated() -> None:
    def drawn(privacy: PrivacyBudget) -> torch.Tensor:
        return torch.randn(5, generator=privacy.generator(0, "upload", "north", 1))

    simulated, real = PrivacyBudget(8.0, 3, simulated=True), PrivacyBudget(8.0, 3)
    assert torch.equal(drawn(simulated), drawn(simulated))
    assert not torch.equal(drawn(real), drawn(real))
    assert not torch.equal(drawn(real), drawn(simulated))


def test_secret_noise_has_no_seed_that_could_be_tried() -> None:
    """A seed of 32 bits would give the second word of the generator's state from the first."""
    first, second = secure_generator().get_state().numpy()[STATE].view(np.uint64)[:2].tolist()
    assert (1812433253 * (first ^ (first >> 30)) + 1) % 2**32 != second


def crowd(**promise: Any) -> list[tm.Client]:
    draws = torch.Generator().manual_seed(1)
    public = tm.Public(torch.rand(20, 4, generator=draws), classes=2)
    inputs, labels, privacy = torch.rand(40, 4, generator=draws), torch.arange(40) % 2, PrivacyBudget(8.0, **promise)
    model = partial(torch.nn.Linear, 4, 2)
    return [tm.Client.from_arrays(name, model, inputs, labels, public=public, privacy=privacy) for name in "ab"]


def test_training_under_a_promise_draws_its_noise_from_the_operating_system_too() -> None:
    def learnt(**how: Any) -> torch.Tensor:
        client = crowd(rounds=1, **how)[0]
        job = next(client.step_jobs(Request(1)))
        assert isinstance(job, TrainingJob)
        with torch.no_grad():
            for parameter in job.model.parameters():
                parameter.zero_()
        job.order = [torch.arange(len(job.inputs))] * 3  # what is left to chance is the noise
        job.run()
        return torch.cat([parameter.detach().flatten() for parameter in job.model.parameters()])

    assert torch.equal(learnt(simulated=True), learnt(simulated=True))
    assert not torch.equal(learnt(), learnt())


@pytest.mark.parametrize("mechanism", ["training", "uploads"])
def test_a_client_that_has_spent_its_rounds_answers_no_more(mechanism: Any) -> None:
    client = crowd(rounds=2, mechanism=mechanism)[0]
    spent = [client.step(Request(number)).epsilon for number in (1, 2)]
    assert 7 < (spent[-1] or 0) <= 8
    with pytest.raises(TrustmixError, match="for 2 rounds, and these are spent"):
        client.step(Request(3))
    assert client.step(Request(3, train=False)).payload is None  # the closing of a run asks for nothing private


def test_more_samples_and_fewer_rounds_need_less_noise() -> None:
    def multiplier(samples: int, rounds: int) -> float:
        params = PrivacyBudget(8.0, rounds).dp_sgd_params(samples, Training())
        assert params is not None
        return params.noise_multiplier

    assert multiplier(4000, 2) < multiplier(400, 2) < multiplier(400, 4)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"rule": "fedavg"}, "privacy.epsilon is not read by fedavg: it exchanges weights"),
        ({"wire": {"labels": "counts"}}, "wire.labels = counts shows what privacy.mechanism = training protects"),
        ({"wire": {"form": "density"}}, "wire.form = scores"),
        ({"density": {"calibration": "augmented"}}, "leaves no density.calibration to choose"),
        ({"privacy": {"epsilon": 0}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": 8.0, "delta": 0.1}}, r"client 0 has 60 records, and it must be well below 1/60"),
        ({"model": {"name": "resnet18"}}, "takes|batch norm"),
        ({"theory": {"every": 1}, "rule": "uwa"}, "not on those of"),
    ],
)
def test_what_would_break_a_promise_is_refused_in_a_sentence(
    setting: dict[str, Any], reason: str, tmp_path: Any
) -> None:
    with pytest.raises(TrustmixError, match=reason):
        tm.run(SMALL | {"privacy": {"epsilon": 8.0}} | setting, out=tmp_path / "run")

"""Discriminators: what they see, in which batches, and that they are trained once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trustmix as tm
from trustmix import Labelled, Training
from trustmix.density import roc_auc
from trustmix.engines import ExecutionPlan
from trustmix.federation import DiskStore, Request
from trustmix.learners import DeviceConfig, TrainingJob
from trustmix.learners import discriminator as module
from trustmix.learners.discriminator import (
    FOLDS,
    WEIGHT_DECAY,
    DiscriminatorTraining,
    balanced_batches,
    count_steps,
)
from trustmix.learners.training import predict
from trustmix.seeds import torch_generator
from trustmix.wire import decode_upload

CENTRES = 3 * torch.eye(4, 8)


def samples(count: int, classes: list[int], seed: int) -> Labelled:
    labels = torch.tensor(classes).repeat(count)[:count]
    return Labelled(CENTRES[labels] + torch.randn(count, 8, generator=torch.Generator().manual_seed(seed)), labels)


PUBLIC = samples(200, [0, 1, 2, 3], 1)
SHARED = tm.Public(PUBLIC.inputs, 4)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def client(name: str = "a", own: tuple[int, ...] = (0, 1), **settings: Any) -> tm.Client:
    training = Training(lr=1e-2, batch=16, first_epochs=2)
    data = samples(80, list(own), 2), samples(30, list(own), 3)
    fields = {"density": "discriminator", "training": training, **settings}
    return tm.Client(name, network, *data, SHARED, **fields)


def sent(of: tm.Client, round_: int) -> torch.Tensor:
    payload = of.step(Request(round_)).payload
    assert payload is not None
    upload = decode_upload(payload, SHARED.header(of.id, round_))
    assert upload.scores is not None
    return upload.scores


def test_discriminators_tell_own_classes_from_foreign_ones_by_a_ratio_of_mean_one() -> None:
    scores = sent(client(), 1)
    own = PUBLIC.labels < 2
    assert roc_auc(scores, own) > 0.9
    assert float(scores.double().exp().mean()) == pytest.approx(1, abs=1e-3)


def test_a_client_with_samples_like_the_public_ones_prefers_none() -> None:
    scores = sent(client(own=(0, 1, 2, 3)), 1)
    assert float(scores.std()) < 1


def test_every_public_sample_is_scored_by_a_model_that_has_not_seen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[nn.Module, torch.Tensor] = {}
    asked: dict[nn.Module, torch.Tensor] = {}

    def record(model: nn.Module, inputs: torch.Tensor, hardware: Any) -> torch.Tensor:
        asked[model] = inputs
        return predict(model, inputs, hardware)

    monkeypatch.setattr(module, "predict", record)
    of = client()
    jobs = of.step_jobs(Request(1))
    for job in jobs:
        assert isinstance(job, TrainingJob)
        if isinstance(job.training, DiscriminatorTraining):
            seen[job.model] = job.inputs
        job.run()
    assert len(seen) == len(asked) == FOLDS
    rows = [{tuple(row) for row in inputs.tolist()} for inputs in (*seen.values(), *asked.values())]
    calibration = {tuple(row) for row in of.calibration.inputs.tolist()}
    public = {tuple(row) for row in PUBLIC.inputs.tolist()}
    for trained, scored in zip(rows[:FOLDS], rows[FOLDS:], strict=True):
        assert not trained & scored
        assert calibration <= scored
    assert public == set().union(*rows[FOLDS:]) - calibration


def test_batches_are_half_private_and_pass_over_the_larger_side_in_every_epoch() -> None:
    order = balanced_batches(30, 100, 16, 3, torch.Generator().manual_seed(0))
    assert all(int((batch < 30).sum()) * 2 == len(batch) for batch in order)
    counts = torch.bincount(torch.cat(order), minlength=130)
    assert counts[30:].tolist() == [3] * 100
    assert sorted(set(counts[:30].tolist())) == [10]
    assert len(order) == -(-3 * 100 // 8)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_smallest_batch_has_one_sample_of_each_side(size: int) -> None:
    """Half of a batch of one would be nobody."""
    found = balanced_batches(2, 5, size, 1, torch.Generator().manual_seed(0))
    assert [len(batch) for batch in found] == [2] * 5
    assert all(int((batch < 2).sum()) == 1 for batch in found)
    assert sorted(int(batch.max()) for batch in found) == [2, 3, 4, 5, 6]


def test_batches_and_seed_of_a_discriminator_come_from_a_stream_of_its_own() -> None:
    private, seen = samples(30, [0, 1], 2), len(PUBLIC) // FOLDS
    jobs = module.train_discriminators(
        network,
        private,
        samples(9, [0, 1], 3),
        PUBLIC.inputs,
        client="a",
        seed=4,
        architecture=None,
        training=Training(batch=16),
        hardware=DeviceConfig(),
    )
    for fold, job in enumerate(jobs):
        draws = torch_generator(4, "discriminator", "a", fold)
        expected = balanced_batches(len(private), len(PUBLIC) - seen, 16, module.EPOCHS, draws)
        assert [batch.tolist() for batch in job.order] == [batch.tolist() for batch in expected]
        assert job.seed == int(torch.randint(2**62, (1,), generator=draws))
        assert job.targets.tolist() == [1] * len(private) + [0] * (len(PUBLIC) - seen)


def test_the_steps_that_are_foreseen_are_those_that_are_trained() -> None:
    steps = [len(job.order) for job in client()._discriminate(1, {}) if isinstance(job, TrainingJob)]
    assert sum(steps) == count_steps(80, 200, 16)


@pytest.mark.parametrize(("optimizer", "kind"), [("adam", "AdamW"), ("adamw", "AdamW"), ("sgd", "SGD")])
def test_discriminators_learn_as_the_client_does_with_weight_decay(optimizer: str, kind: str) -> None:
    made = DiscriminatorTraining(optimizer=optimizer, lr=0.3).make_optimizer(network().parameters())
    assert type(made).__name__ == kind
    assert (made.defaults["lr"], made.defaults["weight_decay"]) == (0.3, WEIGHT_DECAY)


def discriminators(of: tm.Client, round_: int) -> int:
    made: list[TrainingJob] = []
    for job in of.step_jobs(Request(round_)):
        assert isinstance(job, TrainingJob)
        job.run()
        made += [job] if isinstance(job.training, DiscriminatorTraining) else []
    return len(made)


def test_discriminators_are_trained_once_and_their_scores_survive_the_process(tmp_path: Path) -> None:
    one = client(store=DiskStore(tmp_path))
    assert discriminators(one, 1) == FOLDS
    assert discriminators(one, 2) == 0
    again = client(store=DiskStore(tmp_path))
    assert discriminators(again, 3) == 0
    whole = client()
    first, second = sent(whole, 1), sent(whole, 2)
    resumed = sent(client(store=DiskStore(tmp_path)), 4)
    assert torch.equal(first, second)
    assert torch.equal(first, resumed)


def test_scores_depend_on_the_seed_and_on_nothing_that_the_clients_model_learns() -> None:
    usual = sent(client(), 1)
    longer = client(training=Training(lr=1e-2, batch=16, first_epochs=9))
    assert torch.equal(usual, sent(longer, 1))
    assert not torch.equal(usual, sent(client(seed=1), 1))


def test_standardised_scores_have_the_calibration_samples_as_their_unit() -> None:
    raw, standard = sent(client(), 1), sent(client(standardise=True), 1)
    assert torch.equal(raw.argsort(), standard.argsort())
    assert not torch.allclose(raw, standard)


def test_another_public_set_gets_discriminators_of_its_own() -> None:
    of = client()
    own = sent(of, 1)
    other = tm.Public(samples(60, [0, 1, 2, 3], 9).inputs, 4)
    upload = decode_upload(of.predict_on(1, other), other.header("a", 1))
    assert upload.scores is not None
    assert roc_auc(upload.scores, torch.arange(60) % 4 < 2) > 0.8
    assert torch.equal(own, sent(of, 2))


@pytest.mark.parametrize("plan", [ExecutionPlan("stacked", 1), ExecutionPlan("processes", 2)], ids=str)
def test_the_engine_may_train_discriminators_as_it_likes(plan: ExecutionPlan) -> None:
    def concentrations(how: ExecutionPlan) -> list[float | None]:
        engine = tm.LocalEngine([client(str(i), own=(i, (i + 1) % 4)) for i in range(4)], how)
        try:
            history = tm.Federation(clients=engine, public=SHARED, rule="uwa").run(2)
        finally:
            engine.close()
        assert all(not line.failed for line in history.rounds)
        return [line.concentration for line in history.rounds]

    assert concentrations(plan) == pytest.approx(concentrations(ExecutionPlan()), rel=1e-3)

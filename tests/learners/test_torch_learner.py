"""The learner of torch modules: the samples, targets and steps of its jobs, and what its state carries on."""

from typing import Any

import pytest
import torch
from sklearn.naive_bayes import GaussianNB
from torch import nn

from trustmix.data import Labelled, augment_batch
from trustmix.errors import TrustmixError
from trustmix.learners import DeviceConfig, Lesson, RefittingLearner, TorchLearner, Training
from trustmix.learners.torch_learner import as_torch
from trustmix.learners.training import mixed_batches
from trustmix.models.classifier import ClassifierModel
from trustmix.privacy import DPSGDParams

CLASSES = 3
OWN = Labelled(torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(1)), torch.tensor([2, 0, 0, 2]))
PUBLIC = torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(2))
TEACHER = torch.softmax(torch.randn(5, CLASSES, generator=torch.Generator().manual_seed(3)), 1)
LESSON = Lesson(PUBLIC, TEACHER)


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, CLASSES))


def learner(**settings: Any) -> TorchLearner:
    hardware = DeviceConfig()
    return TorchLearner(hardware.to_device(convolutional()), Training(batch=3, lr=1e-2, **settings), hardware, "small")


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def learn(of: TorchLearner, times: int) -> dict[str, torch.Tensor]:
    """The state of a learner after so many private stages and distillations."""
    for _ in range(times):
        of.fit(OWN, epochs=2, generator=generator()).run()
        of.distil(LESSON, OWN, epochs=1, generator=generator()).run()
    return of.state_dict()


def test_a_mixed_stage_learns_own_labels_and_the_teacher_in_the_same_batches() -> None:
    job = learner(stages="mixed").distil(LESSON, OWN, epochs=2, generator=generator())
    assert torch.equal(job.inputs, torch.cat([OWN.inputs, PUBLIC]))
    labels = torch.tensor([[0.0, 0, 1], [1, 0, 0], [1, 0, 0], [0, 0, 1]])
    assert torch.equal(job.targets, torch.cat([labels, TEACHER]))
    draws = generator()
    assert job.seed == int(torch.randint(2**62, (1,), generator=draws))
    steps = [batch for _ in range(2) for batch in mixed_batches(len(OWN), len(PUBLIC), 3, draws)]
    assert [batch.tolist() for batch in job.order] == [batch.tolist() for batch in steps]
    assert (job.epochs, job.architecture) == (2, "small")


def test_augmentation_changes_the_own_images_of_a_mixed_batch_and_leaves_the_public_ones_as_they_are() -> None:
    made = learner(stages="mixed", augment="crop")
    seen: list[torch.Tensor] = []
    made.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    job = made.distil(LESSON, OWN, epochs=1, generator=generator())
    job.run()
    draws = torch.Generator().manual_seed(job.seed)
    for batch, inputs in zip(job.order, seen, strict=True):
        own, public = batch[batch < len(OWN)], batch[batch >= len(OWN)] - len(OWN)
        assert 0 < len(own) < len(batch)
        assert torch.equal(inputs, torch.cat([augment_batch(OWN.inputs[own], "crop", draws), PUBLIC[public]]))
        assert not torch.equal(inputs[: len(own)], OWN.inputs[own])


def test_two_stages_learn_own_labels_and_the_teacher_apart() -> None:
    made = learner(augment="crop")
    private, public = (
        made.fit(OWN, epochs=3, generator=generator()),
        made.distil(LESSON, OWN, epochs=2, generator=generator()),
    )
    assert torch.equal(private.targets, OWN.labels)
    assert torch.equal(public.targets, TEACHER)
    assert (private.augment, public.augment) == ("crop", "none")
    assert [sorted(batch.tolist()) for batch in private.order] == [[0, 1, 2, 3]] * 3  # three and one would be too few
    assert sorted(torch.cat(public.order).tolist()) == sorted(2 * list(range(5)))
    assert (private.epochs, public.epochs, private.secret) == (3, 2, None)
    assert private.seed == public.seed == int(torch.randint(2**62, (1,), generator=generator()))


@pytest.mark.parametrize("secret", [True, False])
def test_private_training_draws_as_many_poisson_batches_as_epochs_have_steps(secret: bool) -> None:
    draws, noise = generator(), DPSGDParams(clip=1.0, noise_multiplier=0.5, sample_rate=0.6)
    job = learner().fit(OWN, epochs=3, generator=draws, noise=noise, secret=secret)
    again = generator()
    assert job.seed == int(torch.randint(2**62, (1,), generator=again))
    steps = 3 * 2  # 4 samples in batches of 3 are two steps
    expected = [[row for row, drawn in enumerate(torch.rand(4, generator=again)) if drawn < 0.6] for _ in range(steps)]
    assert [batch.tolist() for batch in job.order] == expected
    assert job.secret is (draws if secret else None)
    assert job.noise == noise


def test_one_epoch_after_another_takes_the_steps_of_the_whole_job_with_a_seed_each() -> None:
    job = learner().distil(LESSON, OWN, epochs=3, generator=generator())
    parts = job.split_epochs()
    assert [batch.tolist() for part in parts for batch in part.order] == [batch.tolist() for batch in job.order]
    assert [part.seed - job.seed for part in parts] == [0, 1, 2]
    assert [part.epochs for part in parts] == [1, 1, 1]


@pytest.mark.parametrize(
    ("settings", "total"), [({}, 4), ({"keep_optimizer": True}, 4), ({"keep_optimizer": False}, 2)]
)
def test_the_past_of_the_optimiser_is_kept_unless_it_is_to_end_with_its_stage(
    settings: dict[str, bool], total: int
) -> None:
    made = learner(**settings)
    learn(made, 1)
    steps = [int(entry["step"]) for entry in made.optimizer.state_dict()["state"].values()]
    assert set(steps) == {total}  # 2 epochs of one batch in private, and 2 batches of the public samples


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_learner_that_is_restored_goes_on_as_if_it_had_never_ended(optimizer: str) -> None:
    whole, before, after = learner(optimizer=optimizer), learner(optimizer=optimizer), learner(optimizer=optimizer)
    expected = learn(whole, 3)
    after.load_state_dict(learn(before, 1))
    found = learn(after, 2)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)
    state = after.optimizer.state_dict()["state"]
    if optimizer == "adam":
        assert state[0]["exp_avg"].is_contiguous(memory_format=torch.channels_last)
        assert {name.split(".")[0] for name in found} == {"model", "optimizer"}


def test_only_networks_have_weights_to_exchange() -> None:
    made = learner()
    assert as_torch(made, "fedavg") is made
    with pytest.raises(TrustmixError, match="fedavg exchanges the weights of torch modules"):
        as_torch(RefittingLearner(ClassifierModel(GaussianNB(), 2), Training(), DeviceConfig()), "fedavg")

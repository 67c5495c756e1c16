"""Batches by length, prediction in the order given, augmentation."""

from copy import deepcopy
from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trustmix.data import Augment, augment_batch
from trustmix.engines.vectorized import stack_key
from trustmix.learners import DeviceConfig, Training, TrainingJob, train
from trustmix.learners.training import batches, evaluate, predict, token_lengths
from trustmix.models.resnet import resnet18


@settings(deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=400), st.integers(2, 33), st.integers(0, 2**32))
def test_every_text_is_in_exactly_one_batch_of_an_epoch(sizes: list[int], size: int, seed: int) -> None:
    parts = list(batches(len(sizes), size, torch.Generator().manual_seed(seed), torch.tensor(sizes)))
    assert sorted(torch.cat(parts).tolist()) == list(range(len(sizes)))
    assert all(len(part) <= size + 1 for part in parts)
    assert len(sizes) == 1 or all(len(part) > 1 for part in parts)


@pytest.mark.parametrize(
    ("samples", "sizes"), [(1, [1]), (4, [4]), (5, [5]), (6, [4, 2]), (8, [4, 4]), (9, [4, 5]), (10, [4, 4, 2])]
)
def test_a_last_batch_of_one_joins_the_one_before(samples: int, sizes: list[int]) -> None:
    assert [len(part) for part in batches(samples, 4, torch.Generator())] == sizes


def test_the_length_of_a_text_counts_every_token_and_no_padding() -> None:
    found = token_lengths(torch.tensor([[0, 7, -1], [5, -1, -1], [0, 0, 0]], dtype=torch.int16))
    assert found is not None
    assert found.tolist() == [2, 1, 3]
    assert token_lengths(torch.tensor([[0, 7, 1]])) is None, "texts that are all of one length need no sorting"


def test_sorting_by_length_saves_most_of_the_padding_and_keeps_epochs_different() -> None:
    sizes = (5 + 123 * torch.rand(2000, generator=torch.Generator().manual_seed(0)) ** 3).long()

    def padded(parts: list[torch.Tensor]) -> int:
        return sum(len(part) * int(sizes[part].max()) for part in parts)

    generator = torch.Generator().manual_seed(0)
    sorted_, plain = (list(batches(2000, 32, generator, given)) for given in (sizes, None))
    assert padded(sorted_) < 1.15 * int(sizes.sum())
    assert padded(plain) > 2.5 * int(sizes.sum())
    again = list(batches(2000, 32, generator, sizes))
    assert not all(torch.equal(a, b) for a, b in zip(sorted_, again, strict=True))


def test_batches_of_texts_are_pools_of_fifty_batches_that_are_sorted_by_length_and_shuffled() -> None:
    sizes = torch.randint(1, 60, (430,), generator=torch.Generator().manual_seed(1))
    draws = torch.Generator().manual_seed(2)
    order = torch.randperm(430, generator=draws).tolist()
    pools = [sorted(order[start : start + 50 * 4], key=sizes.tolist().__getitem__) for start in range(0, 430, 50 * 4)]
    texts = [text for pool in pools for text in pool]
    parts = [texts[start : start + 4] for start in range(0, 430, 4)]
    expected = [parts[index] for index in torch.randperm(len(parts), generator=draws).tolist()]
    found = batches(430, 4, torch.Generator().manual_seed(2), sizes)
    assert [part.tolist() for part in found] == expected


class Sum(torch.nn.Module):
    """A model whose logits say which text it saw."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        real = tokens.clamp_min(0).double().sum(1, keepdim=True)
        return torch.cat([real, -real], 1)


def test_texts_are_predicted_by_length_and_answered_in_their_order() -> None:
    tokens = torch.randint(1, 100, (500, 20), dtype=torch.int16)
    tokens[torch.arange(20) >= torch.randint(1, 20, (500, 1))] = -1
    logits = predict(Sum(), tokens, DeviceConfig())
    assert torch.equal(logits[:, 0], tokens.clamp_min(0).sum(1).float())


def test_texts_of_one_length_are_predicted_in_the_order_given() -> None:
    """As Python sorts: which texts share a batch, and so how sums are rounded, is the same everywhere."""
    lengths = torch.randint(1, 4, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    tokens = torch.full((300, 4), -1)
    for number, length in enumerate(lengths):
        tokens[number, :length] = number
    seen, model = list[int](), Sum()
    model.register_forward_hook(lambda _, inputs, __: seen.extend(inputs[0][:, 0].tolist()))
    predict(model, tokens, DeviceConfig())
    assert seen == sorted(range(300), key=lengths.__getitem__)


def test_a_cpu_predicts_128_samples_at_a_time_and_another_device_1024() -> None:
    seen = list[int]()
    model = torch.nn.Identity()
    model.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    inputs = torch.arange(600.0).view(300, 2)
    assert torch.equal(predict(model, inputs, DeviceConfig()), inputs)
    assert seen == [128, 128, 44]
    assert DeviceConfig("cuda").prediction_batch == 1024


def test_a_network_with_convolutions_has_its_channels_last_in_memory_and_another_is_left_as_it_is() -> None:
    """Which numbers it has is not changed: convolutions are faster so, and a table of four axes gains nothing."""
    table = nn.ParameterList([nn.Parameter(torch.rand(2, 3, 4, 5))])
    for network, channels_last in ((nn.Sequential(nn.Conv2d(3, 4, 2), nn.ReLU()), True), (table, False)):
        before = next(network.parameters()).detach().clone()
        after = next(DeviceConfig().to_device(network).parameters())
        assert torch.equal(before, after)
        assert after.is_contiguous(memory_format=torch.channels_last) == channels_last


@pytest.mark.parametrize("width", [4, 8, 16])
def test_gradients_of_a_narrow_network_with_shortcuts_are_those_of_double_precision(width: int) -> None:
    """A strided 1x1 convolution of few channels ends the process, or has wrong gradients, if its channels are last."""
    network = DeviceConfig().to_device(resnet18((3, 16, 16), 4, stem="cifar", width=width))
    inputs = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    found = []
    for one, batch in ((network, inputs), (deepcopy(network).double(), inputs.double())):
        one(batch).square().sum().backward()
        found.append([weights.grad.double() for weights in one.parameters() if weights.grad is not None])
    assert len(found[0]) == len(list(network.parameters()))
    for single, double in zip(*found, strict=True):
        torch.testing.assert_close(single, double, atol=1e-3 * float(double.abs().max()), rtol=0)
    if width != 8:  # the numbers in a vector register of some CPUs
        assert next(network.parameters()).is_contiguous(memory_format=torch.channels_last) == (width == 16)


@pytest.mark.parametrize("kind", ["crop", "crop-flip"])
def test_an_augmented_image_is_a_shifted_and_perhaps_mirrored_one(kind: Augment) -> None:
    images = torch.randint(1, 256, (64, 3, 8, 10), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)
    changed = augment_batch(images, kind, generator)
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    mirrored = padded.flip(3)
    kinds = set()
    for index in range(64):
        found = [
            (flip, y, x)
            for flip, source in enumerate((padded, mirrored))
            for y in range(9)
            for x in range(9)
            if torch.equal(changed[index], source[index, :, y : y + 8, x : x + 10])
        ]
        assert found
        kinds.add(found[0])
    assert len(kinds) > 30  # not all alike
    assert any(flip for flip, _, _ in kinds) == (kind == "crop-flip")
    assert torch.equal(augment_batch(images, "none", generator), images)


def job(augment: Augment, seed: int = 3) -> TrainingJob:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    images = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    training = Training(batch=5, augment=augment)
    return TrainingJob.of(
        model,
        training.make_optimizer(model.parameters()),
        images,
        torch.arange(20) % 2,
        epochs=2,
        generator=torch.Generator().manual_seed(seed),
        architecture="x",
        training=training,
        hardware=DeviceConfig(),
        augment=augment,
    )


def test_augmented_training_repeats_itself_and_differs_from_plain_training() -> None:
    jobs = [job("crop-flip"), job("crop-flip"), job("none")]
    for one in jobs:
        train(one)
    weights = [one.model.state_dict()["1.weight"] for one in jobs]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_augmented_jobs_are_never_stacked() -> None:
    one, two = job("crop"), job("crop")
    assert stack_key(one) != stack_key(two)
    plain = [replace(job("none")), replace(job("none"))]
    assert stack_key(plain[0]) == stack_key(plain[1])


def test_a_client_learns_as_the_table_of_settings_says_where_nothing_is_set() -> None:
    assert asdict(Training()) == {
        "optimizer": "adam",
        "lr": 0.001,
        "batch": 32,
        "first_epochs": 5,
        "epochs": 1,
        "public_epochs": 1,
        "stages": "two",
        "augment": "none",
        "calibrate": False,
        "keep_optimizer": True,
    }


def test_auto_takes_twice_as_many_epochs_from_the_first_teacher_as_later() -> None:
    auto = Training(public_epochs="auto")
    assert [auto.max_public_epochs(stages) for stages in (0, 1, 2, 7)] == [20, 20, 10, 10]


def test_a_temperature_divides_the_logits_that_are_evaluated() -> None:
    inputs, labels = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 4
    found = evaluate(torch.nn.Identity(), inputs, labels, DeviceConfig(), temperature=2.5)
    expected = torch.nn.functional.cross_entropy(inputs.double() / 2.5, labels)
    assert found.nll == pytest.approx(float(expected), rel=1e-5)

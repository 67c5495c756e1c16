"""Samples for people to look at: images, texts and numbers."""

from dataclasses import replace
from pathlib import Path

import torch

from trustmix import Labelled, Recipe
from trustmix.data import from_arrays, load
from trustmix.experiment.previews import MAX_PIXELS, describe_samples, thumbnails


def test_small_images_are_kept_as_they_are() -> None:
    images = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(thumbnails(images), images)
    assert torch.equal(thumbnails(images.float() / 255), images)


def test_large_images_shrink_and_other_numbers_are_stretched_to_bytes() -> None:
    shrunk = thumbnails(torch.linspace(-3, 5, 2 * 128 * 96).reshape(2, 1, 128, 96))
    assert shrunk.shape == (2, 1, MAX_PIXELS, 48)
    assert (int(shrunk.min()) < 3, int(shrunk.max()) > 252) == (True, True)


def test_digits_are_images_with_their_labels() -> None:
    data = load("digits")
    tensors, facts = describe_samples(Recipe.load("demo"), data, data.train[torch.arange(4)])
    assert tensors["images"].shape == (4, 1, 8, 8)
    assert facts["labels"] == data.train.labels[:4].tolist()
    assert facts["classes"][3] == "3"


def test_tables_are_numbers() -> None:
    x, y = torch.arange(12.0).reshape(2, 6).repeat(2, 1), torch.tensor([0, 1, 0, 1])
    recipe = Recipe.load({"data": {"name": "npz", "path": "anything.npz"}})
    made = from_arrays("mine", {"x_train": x.numpy(), "y_train": y.numpy(), "x_test": x.numpy(), "y_test": y.numpy()})
    tensors, facts = describe_samples(recipe, made, Labelled(x[:2], y[:2]))
    assert tensors == {}
    assert facts["texts"] == ["0, 1, 2, 3, 4, 5", "6, 7, 8, 9, 10, 11"]


def test_a_text_without_its_tokenizer_is_left_blank_and_does_not_stop_a_run(tmp_path: Path) -> None:
    recipe = Recipe.load({"data": {"name": "yahoo", "tokenizer": str(tmp_path)}})
    tokens = torch.full((2, 5), 3, dtype=torch.int16)
    data = load("digits")
    texts = Labelled(tokens, torch.tensor([0, 1]))
    _, facts = describe_samples(recipe, replace(data, train=texts, test=texts), texts)
    assert facts["texts"] == ["", ""]

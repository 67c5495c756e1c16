"""Frozen features of a pretrained network as npz files: small clients then train on them in seconds.

    python -m benchmarks.features cifar10 OUT.npz     the last layer's inputs of ResNet-18 (ImageNet weights), 64 pixels
    python -m benchmarks.features text OUT.npz        the mean last hidden state of BERT-tiny, ten topics of questions

The data and weights are looked for as every recipe does (TRUSTMIX_DATA). A run then takes them by
`--set data.name=npz --set data.path=OUT.npz`.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trustmix.data import Labelled
from trustmix.experiment.data import load_data
from trustmix.settings.recipe import Recipe

TRAIN, TEST = 20_000, 4_000
"""Samples taken of each part, the first of a fixed shuffle."""


def main(data: str, out: str) -> None:
    """Write the features of the training and test samples, standardised by the training samples."""
    recipe, extract = {"cifar10": images, "cifar100": images, "text": texts}[data](data)
    source = load_data(recipe)
    network = extract(source.shape, source.classes)
    if source.train.inputs.dtype == torch.uint8:
        mean, std = (torch.tensor(value).view(-1, 1, 1) for value in (source.mean, source.std))
        scaled = lambda x: network((x / 255 - mean) / std)  # noqa: E731
    else:
        scaled = network
    train, test = (_features(part, size, scaled) for part, size in ((source.train, TRAIN), (source.test, TEST)))
    middle, spread = train[0].mean(0), train[0].std(0) + 1e-6
    arrays = {"x_train": (train[0] - middle) / spread, "y_train": train[1]}
    arrays |= {"x_test": (test[0] - middle) / spread, "y_test": test[1]}
    np.savez(Path(out), **arrays)
    print(f"{out}: {arrays['x_train'].shape} and {arrays['x_test'].shape}")


def images(data: str) -> tuple[Recipe, Callable[..., Callable[[torch.Tensor], torch.Tensor]]]:
    """ResNet-18 with ImageNet weights."""

    def extract(shape: tuple[int, ...], classes: int) -> Callable[[torch.Tensor], torch.Tensor]:
        from trustmix.models.resnet import resnet18

        network = resnet18(shape, classes, stem="imagenet", weights="resnet18", enlarge=64)
        network.fc = torch.nn.Identity()
        return network.eval()

    return Recipe.load(f"{data}-small"), extract


def texts(_: str) -> tuple[Recipe, Callable[..., Callable[[torch.Tensor], torch.Tensor]]]:
    """BERT-tiny with its pretrained weights."""

    def extract(shape: tuple[int, ...], classes: int) -> Callable[[torch.Tensor], torch.Tensor]:
        from trustmix.models.transformer import bert_tiny

        encoder: Any = bert_tiny(shape, classes, weights="bert_tiny").eval().encoder

        def mean_state(tokens: torch.Tensor) -> torch.Tensor:
            real = (tokens >= 0).to(torch.int64)
            state = encoder(input_ids=tokens.clamp_min(0).to(torch.int64), attention_mask=real).last_hidden_state
            weight = real.unsqueeze(-1)
            mean: torch.Tensor = (state * weight).sum(1) / weight.sum(1)
            return mean

        return mean_state

    return Recipe.load("text-small"), extract


def _features(
    part: Labelled, size: int, network: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[np.ndarray, np.ndarray]:
    chosen = np.random.default_rng(0).permutation(len(part))[:size]
    some = part[torch.from_numpy(chosen)]
    with torch.no_grad():
        found = [network(batch) for batch in torch.split(some.inputs, 250)]
    return torch.cat(found).float().numpy(), some.labels.numpy()


if __name__ == "__main__":
    main(*sys.argv[1:])

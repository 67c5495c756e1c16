"""Public samples for people to look at: small images, texts, or a few numbers, kept in the run directory.

So a report needs neither the data nor the tokenizer again.
"""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trustmix.callbacks.trust_log import SHOWN, TrustRecorder, tracked_indices
from trustmix.data import DATASETS, Dataset, Labelled
from trustmix.data.text import DEFAULT_TOKENIZER, decode_tokens
from trustmix.errors import TrustmixError
from trustmix.experiment.recipe import Recipe

PIXELS = 64
"""Images are kept at this height and width at most."""
LETTERS = 400
"""Texts are cut after so many letters."""
NUMBERS = 8
"""Of samples that are neither, so many numbers are kept."""


def build_trust_recorder(
    recipe: Recipe, data: Dataset, public: Labelled, held: Mapping[str, torch.Tensor], folder: Path
) -> TrustRecorder | None:
    """The recorder of client weights of a run directory; None where no predictions are exchanged."""
    if recipe.method.exchanges != "predictions":
        return None
    samples = tracked_indices(len(public), recipe.seed if recipe.split.seed is None else recipe.split.seed)
    about = describe_samples(recipe, data, public[samples[:SHOWN]], held)
    return TrustRecorder(folder / "trust", samples, public.labels[samples], about)


def describe_samples(
    recipe: Recipe, data: Dataset, shown: Labelled, held: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What a reader needs to know of the shown public samples, as tensors and facts of one file."""
    holders = {client: classes.tolist() for client, classes in held.items()}
    facts = {"classes": list(data.class_names), "labels": shown.labels.tolist(), "held": holders}
    if len(data.shape) == 3 and data.shape[0] in (1, 3):
        return {"images": thumbnails(shown.inputs)}, facts
    return {}, facts | {"texts": _texts(recipe, shown.inputs)}


def thumbnails(images: torch.Tensor) -> torch.Tensor:
    """Images (n, 1 or 3, h, w) as bytes, shrunk to `PIXELS` where larger; other numbers than 0 to 1 are stretched.

    >>> thumbnails(torch.rand(2, 1, 100, 200)).shape
    torch.Size([2, 1, 32, 64])
    """
    floats = images.to("cpu", torch.float32)
    if images.dtype == torch.uint8:
        floats = floats / 255
    elif float(floats.min()) < 0 or float(floats.max()) > 1:
        floats = (floats - floats.min()) / (floats.max() - floats.min())
    height, width = floats.shape[2:]
    if max(height, width) > PIXELS:
        size = [max(1, round(side * PIXELS / max(height, width))) for side in (height, width)]
        floats = torch.nn.functional.interpolate(floats, size, mode="area")
    return (floats * 255).round().clamp(0, 255).to(torch.uint8)


def _texts(recipe: Recipe, inputs: torch.Tensor) -> list[str]:
    """Texts as they were, and numbers as text; nothing where a tokenizer is not there any more."""
    name = recipe.public.data or recipe.data.name
    if name is None or "tokenizer" not in inspect.signature(DATASETS.get(name)).parameters:
        return [_numbers(row) for row in inputs.flatten(1)]
    options = {**(recipe.data.model_extra or {}), **(recipe.public.model_extra or {})}
    try:
        return [text[:LETTERS] for text in decode_tokens(inputs, options.get("tokenizer", DEFAULT_TOKENIZER))]
    except TrustmixError:
        return [""] * len(inputs)


def _numbers(row: torch.Tensor) -> str:
    """The first numbers of a sample.

    >>> _numbers(torch.tensor([0.5, 2.0])), _numbers(torch.arange(10))
    ('0.5, 2', '0, 1, 2, 3, 4, 5, 6, 7, …')
    """
    return ", ".join([f"{value:.3g}" for value in row[:NUMBERS].tolist()] + ["…"] * (len(row) > NUMBERS))

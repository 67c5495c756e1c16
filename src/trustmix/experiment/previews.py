"""Previews of public samples for a report: small images, texts, or a few numbers.

The run directory keeps them, so that a report needs neither the data nor the tokenizer.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trustmix.callbacks.trust_log import SHOWN, TrustRecorder, tracked_indices
from trustmix.data import Dataset, Labelled
from trustmix.data.text import decode_tokens, default_tokenizer
from trustmix.data.words import WORDS
from trustmix.errors import TrustmixError
from trustmix.settings.recipe import Recipe

MAX_PIXELS = 64
"""Height and width of an image at most."""
MAX_CHARACTERS = 400
"""Characters of a text at most."""
MAX_NUMBERS = 8
"""Numbers at most of a sample that is neither an image nor a text."""


def build_trust_recorder(
    recipe: Recipe, data: Dataset, public: Labelled, held: Mapping[str, torch.Tensor], folder: Path
) -> TrustRecorder | None:
    """Create the recorder of client weights of a run directory.

    Parameters
    ----------
    recipe : Recipe
        The recipe of the run.
    data : Dataset
        The data set of the recipe.
    public : Labelled
        The public set.
    held : mapping of str to torch.Tensor
        By client id: the indices of the classes that the client holds.
    folder : Path
        The run directory.

    Returns
    -------
    TrustRecorder or None
        The recorder; None for a method that exchanges no predictions.
    """
    if recipe.method.exchanges != "predictions":
        return None
    samples = tracked_indices(len(public), recipe.seed if recipe.split.seed is None else recipe.split.seed)
    about = describe_samples(recipe, data, public[samples[:SHOWN]])
    return TrustRecorder(folder / "trust", samples, public.labels[samples], about, held)


def describe_samples(recipe: Recipe, data: Dataset, shown: Labelled) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Describe public samples for the readers of a report.

    Parameters
    ----------
    recipe : Recipe
        The recipe of the run.
    data : Dataset
        The data set of the recipe.
    shown : Labelled
        The public samples to show.

    Returns
    -------
    tensors : dict of str to torch.Tensor
        `images` (n, 1 or 3, h, w) of bytes, if the samples are images.
    facts : dict
        JSON values: the names of `classes`, the `labels` of the samples, and `texts` if the samples are not images.
    """
    facts = {"classes": list(data.class_names), "labels": shown.labels.tolist()}
    if len(data.shape) == 3 and data.shape[0] in (1, 3):
        return {"images": thumbnails(shown.inputs)}, facts
    return {}, facts | {"texts": _texts(recipe, shown.inputs)}


def thumbnails(images: torch.Tensor) -> torch.Tensor:
    """Shrink images to `MAX_PIXELS` and convert them to bytes.

    Parameters
    ----------
    images : torch.Tensor
        (n, 1 or 3, h, w), bytes or floats. Floats outside 0 to 1 are rescaled to that range.

    Returns
    -------
    torch.Tensor
        (n, 1 or 3, h', w') of uint8.

    Examples
    --------
    >>> thumbnails(torch.rand(2, 1, 100, 200)).shape
    torch.Size([2, 1, 32, 64])
    """
    floats = images.to("cpu", torch.float32)
    if images.dtype == torch.uint8:
        floats = floats / 255
    elif float(floats.min()) < 0 or float(floats.max()) > 1:
        floats = (floats - floats.min()) / (floats.max() - floats.min())
    height, width = floats.shape[2:]
    if max(height, width) > MAX_PIXELS:
        size = [max(1, round(side * MAX_PIXELS / max(height, width))) for side in (height, width)]
        floats = torch.nn.functional.interpolate(floats, size, mode="area")
    return (floats * 255).round().clamp(0, 255).to(torch.uint8)


def _texts(recipe: Recipe, inputs: torch.Tensor) -> list[str]:
    """Decoded texts, or numbers as texts; empty texts if the tokenizer is not on this machine any more."""
    default = default_tokenizer(recipe.public.data or recipe.data.name)
    if default is None:
        return [_numbers(row) for row in inputs.flatten(1)]
    options = {**(recipe.data.model_extra or {}), **(recipe.public.model_extra or {})}
    tokenizer = str(options.get("tokenizer", default))
    if tokenizer == WORDS:
        return [""] * len(inputs)  # hashed words cannot be read
    try:
        return [text[:MAX_CHARACTERS] for text in decode_tokens(inputs, tokenizer)]
    except TrustmixError:
        return [""] * len(inputs)


def _numbers(row: torch.Tensor) -> str:
    """The first numbers of a sample.

    >>> _numbers(torch.tensor([0.5, 2.0])), _numbers(torch.arange(10))
    ('0.5, 2', '0, 1, 2, 3, 4, 5, 6, 7, …')
    """
    return ", ".join([f"{value:.3g}" for value in row[:MAX_NUMBERS].tolist()] + ["…"] * (len(row) > MAX_NUMBERS))

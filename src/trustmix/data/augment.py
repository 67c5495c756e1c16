"""Augmentation of image batches: random crops after padding, and random horizontal flips."""

from typing import Literal

import torch

Augment = Literal["none", "crop", "crop-flip"]

PADDING = 4
"""Pixels of black padding on each side before a crop."""


def augment_batch(images: torch.Tensor, kind: Augment, generator: torch.Generator) -> torch.Tensor:
    """Shift each image by up to `PADDING` pixels and, for "crop-flip", mirror it with probability 1/2.

    Parameters
    ----------
    images
        Tensor (n, channels, height, width) of any type.
    kind
        "none", "crop" or "crop-flip".
    generator
        Source of the shifts and flips, on the CPU.

    Returns
    -------
    torch.Tensor
        Images of the same shape and type; for "none" the images themselves.

    Examples
    --------
    >>> images = torch.arange(9).reshape(1, 1, 3, 3)
    >>> augment_batch(images, "crop", torch.Generator().manual_seed(0)).shape
    torch.Size([1, 1, 3, 3])
    """
    if kind == "none":
        return images
    count, channels, height, width = images.shape
    shift = torch.randint(2 * PADDING + 1, (2, count, 1), generator=generator)
    mirror = torch.rand((count, 1), generator=generator) < (0.5 if kind == "crop-flip" else 0.0)
    rows = torch.arange(height) + shift[0]
    columns = torch.arange(width).expand(count, width)
    columns = torch.where(mirror, width - 1 - columns, columns) + shift[1]
    # one indexing operation for the whole batch
    index = (
        torch.arange(count).view(count, 1, 1, 1),
        torch.arange(channels).view(1, channels, 1, 1),
        rows.view(count, 1, height, 1),
        columns.view(count, 1, 1, width),
    )
    padded = torch.nn.functional.pad(images, (PADDING,) * 4)
    return padded[tuple(axis.to(images.device) for axis in index)]

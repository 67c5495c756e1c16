"""Images: scikit-learn's digits, Fashion-MNIST, and folders of the user's own images.

Images become tensors (n, channels, height, width): float32 for the digits, uint8 for all others.
"""

import importlib
import io
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from trustmix import paths
from trustmix.data.dataset import Dataset, Labelled
from trustmix.data.hub import resolve_user_path
from trustmix.data.labels import build_dataset, select_classes, split_off_test
from trustmix.data.loading import DATASETS, find_sklearn_file, refuse_path
from trustmix.data.unpacking import read_unpacked, require_file
from trustmix.errors import TrustmixError

Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
"""One image, (height, width, 3) or grey (height, width), or several of them in a row."""

FASHION_NAMES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
MAX_SIZE = 4096
"""Largest height and width in pixels to which images are scaled."""


@DATASETS.register("digits")
def digits(path: Path | None = None) -> Dataset:
    """Load the 1,797 handwritten digits of 8 x 8 pixels inside scikit-learn; a fixed fifth of each class is for tests.

    Parameters
    ----------
    path
        Must be None, as the data set is built in.

    Returns
    -------
    Dataset
        Ten classes; inputs are floats (1, 8, 8) between 0 and 1.

    Raises
    ------
    TrustmixError
        If a path is given.

    Examples
    --------
    >>> digits().train.inputs.shape
    torch.Size([1438, 1, 8, 8])
    """
    refuse_path(path, "digits")
    table = torch.from_numpy(np.loadtxt(find_sklearn_file("digits.csv.gz"), np.uint8, delimiter=","))
    inputs = table[:, :64].to(torch.float32).div(16).reshape(-1, 1, 8, 8)
    train, test = split_off_test(Labelled(inputs, table[:, 64].to(torch.int64)), 10, 0.2, "digits")
    return Dataset("digits", train, test, tuple(map(str, range(10))))


@DATASETS.register("fashion")
def fashion(path: Path | None = None) -> Dataset:
    """Read Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 grey images of 28 x 28 pixels, ten kinds of clothing.

    Parameters
    ----------
    path
        Folder of the four idx files, plain or gzipped; None uses the search paths.

    Returns
    -------
    Dataset
        Ten classes; inputs are uint8 images (1, 28, 28).

    Raises
    ------
    TrustmixError
        If a file is missing or damaged.
    """
    folder = _find_idx_folder("fashion", path, "train-images-idx3-ubyte", "Debian's package dataset-fashion-mnist")
    train, test = (
        Labelled(
            _read_idx(folder, f"{part}-images-idx3-ubyte").unsqueeze(1),
            _read_idx(folder, f"{part}-labels-idx1-ubyte").long(),
        )
        for part in ("train", "t10k")
    )
    return Dataset("fashion", train, test, FASHION_NAMES, mean=(0.2860,), std=(0.3530,))


def _find_idx_folder(name: str, path: Path | None, file: str, package: str) -> Path:
    """Return the first folder that holds the file: the recipe's path, or else one of the search paths."""
    defaults = [*paths.search_paths(name, here=False), paths.DEBIAN / f"{name}-mnist"]
    searched = paths.search_paths(path) if path is not None else defaults
    for folder in searched:
        if any((folder / (file + suffix)).is_file() for suffix in ("", ".gz")):
            return folder
    raise TrustmixError(
        f'The data set "{name}" was not found: no {file}[.gz] in {", ".join(map(str, searched))}. '
        f"Install {package}, or set data.path or TRUSTMIX_DATA to where the files lie."
    )


def _read_idx(folder: Path, name: str) -> torch.Tensor:
    """Read an idx file (LeCun's format: two zero bytes, type 8 = unsigned byte, rank, sizes, values)."""
    plain, zipped = folder / name, folder / (name + ".gz")
    file = plain if plain.is_file() else zipped
    raw = read_unpacked(file)
    rank = raw[3] if len(raw) > 3 else 0
    header = 4 + 4 * rank
    sizes = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(rank)]
    if raw[:3] != b"\x00\x00\x08" or len(raw) != header + int(np.prod(sizes)):
        raise TrustmixError(f"{file} is not a whole idx file of unsigned bytes ({len(raw)} bytes).")
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=header).reshape(sizes).copy())


@DATASETS.register("images")
def images(
    path: Path | None = None, *, size: int | None = None, classes: Sequence[str] | None = None, test: float = 0.2
) -> Dataset:
    """Read a folder of images with one folder per class, with or without train/ and test/ above them.

    Parameters
    ----------
    path
        The folder.
    size
        Height and width in pixels to which all images are scaled; None keeps their size, which must be the same.
    classes
        The classes to keep, in this order; "a+b" makes one class of two. None keeps all.
    test
        Fraction of each class kept for tests, if there is no folder test/ or val/.

    Returns
    -------
    Dataset
        The data set; inputs are uint8 images (channels, height, width).

    Raises
    ------
    TrustmixError
        If the folder holds no images, an image cannot be decoded, images differ in size, or a setting is not valid.
    """
    folder = resolve_user_path(path, "images", "a folder with a folder of images for each class")
    if size is not None and not 1 <= size <= MAX_SIZE:
        raise TrustmixError(f"data.size is {size}; images are scaled to 1 to {MAX_SIZE} pixels a side.")
    listed = [_list_images(part) for part in _part_folders(folder)]
    names, indices = select_classes([file.parent.name for files in listed for file in files], classes)
    files = [file for file, index in zip(itertools.chain(*listed), indices, strict=True) if index >= 0]
    labels = torch.tensor([index for index in indices if index >= 0])
    samples = Labelled(stack_images([decode_image(file, size=size) for file in files], files), labels)
    if len(listed) == 1:
        train, held_out = split_off_test(samples, len(names), test, folder.name)
    else:
        count = sum(index >= 0 for index in indices[: len(listed[0])])
        train, held_out = samples[torch.arange(count)], samples[torch.arange(count, len(files))]
    return build_dataset(folder.name, train, held_out, names)


def _part_folders(folder: Path) -> list[Path]:
    """Return the folders of the training and test images, or the folder itself if it has no train/."""
    if not (folder / "train").is_dir():
        return [folder]
    test = next((folder / name for name in ("test", "val") if (folder / name).is_dir()), None)
    if test is None:
        raise TrustmixError(f"{folder} has a train/ but no test/ (or val/).")
    return [folder / "train", test]


def _list_images(folder: Path) -> list[Path]:
    """Return the image files in the class folders of a folder."""
    files = (file for file in folder.glob("*/*") if not file.parent.name.startswith("."))
    found = sorted(file for file in files if file.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise TrustmixError(f"{folder} holds no images; it needs a folder for each class with images in it.")
    return found


def decode_image(source: Path | bytes, *, size: int | None = None, where: str | Path | None = None) -> Pixels:
    r"""Decode one image, upright and with 8 bits per channel.

    Parameters
    ----------
    source
        A file, or the encoded bytes.
    size
        Height and width in pixels to which the image is scaled; None keeps its size.
    where
        What the image is called in messages; the file by default.

    Returns
    -------
    np.ndarray
        The pixels as uint8, (height, width, 3) or grey (height, width).

    Raises
    ------
    TrustmixError
        If Pillow is not installed, the image cannot be decoded, or its pixels have 32 bits.

    Examples
    --------
    >>> decode_image(b"P5 2 1 255 \x00\xff")
    array([[  0, 255]], dtype=uint8)
    """
    where = where or (source if isinstance(source, Path) else "an image")
    if isinstance(source, Path):
        require_file(source)
    try:
        pillow: Any = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise TrustmixError(f'{where} needs Pillow to be read: pip install "trustmix[images]".') from error
    try:
        with pillow.open(source if isinstance(source, Path) else io.BytesIO(source)) as image:
            if image.mode in ("I", "F"):
                raise TrustmixError(f"{where} has pixels of 32 bits; save it with 8 or 16 bits a channel.")
            upright = importlib.import_module("PIL.ImageOps").exif_transpose(image)
            if upright.mode.startswith("I;16"):
                upright = pillow.fromarray((np.asarray(upright) // 257).astype(np.uint8))
            converted = upright.convert("L" if upright.mode in ("L", "1") else "RGB")
            if size is not None:
                converted = converted.resize((size, size), pillow.Resampling.BILINEAR)
            return np.asarray(converted)
    except TrustmixError:
        raise
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:  # what Pillow raises
        raise TrustmixError(f"{where} is not a whole image ({error}); mend or remove it.") from error


def stack_images(images: Sequence[Pixels], names: Iterable[object]) -> torch.Tensor:
    """Stack images of one size.

    Parameters
    ----------
    images
        The images, each (height, width, 3) or grey (height, width).
    names
        What each image is called in messages, such as its file.

    Returns
    -------
    torch.Tensor
        uint8 images (n, channels, height, width). If some images are coloured, grey ones get three channels.

    Raises
    ------
    TrustmixError
        If the images differ in size.

    Examples
    --------
    >>> grey, coloured = np.zeros((4, 5), np.uint8), np.zeros((4, 5, 3), np.uint8)
    >>> stack_images([grey, coloured], ["a.png", "b.png"]).shape
    torch.Size([2, 3, 4, 5])
    """
    coloured = any(image.ndim == 3 for image in images)
    alike = [np.repeat(image[..., None], 3, -1) if coloured and image.ndim == 2 else image for image in images]
    for name, image in zip(names, alike, strict=True):
        if image.shape != alike[0].shape:
            sizes = [f"{shape[1]} x {shape[0]}" for shape in (image.shape, alike[0].shape)]
            raise TrustmixError(
                f"{name} is {sizes[0]} pixels, the first image {sizes[1]}; set data.size (or public.size) to scale all."
            )
    return channels_first(np.stack(alike))


def channels_first(pixels: Pixels) -> torch.Tensor:
    """Convert images to the layout of torch.

    Parameters
    ----------
    pixels
        Images (n, height, width, 3) or grey (n, height, width).

    Returns
    -------
    torch.Tensor
        The images as (n, channels, height, width).

    Examples
    --------
    >>> channels_first(np.zeros((2, 4, 5, 3), np.uint8)).shape
    torch.Size([2, 3, 4, 5])
    """
    tensor = torch.from_numpy(np.ascontiguousarray(pixels))
    return tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2).contiguous()

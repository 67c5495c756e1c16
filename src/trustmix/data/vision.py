"""Images: CIFAR-10 and CIFAR-100 in the forms in which they are handed around, and folders of one's own.

Whatever the form, inputs become uint8 (n, channels, height, width). Pickles of the original archives are read by an
unpickler that knows arrays and plain values only: nothing in them is executed.
"""

import importlib
import io
import itertools
import lzma
import pickle
import tarfile
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trustmix.data.dataset import Dataset, Labelled
from trustmix.data.hub import locate_dataset, resolve_user_path
from trustmix.data.labels import chosen_classes, scaled, split_off_test
from trustmix.data.loading import DATASETS, npz, read_npz
from trustmix.data.tables import column, read_table
from trustmix.errors import TrustmixError


@dataclass(frozen=True)
class _Cifar:
    """What differs between the two."""

    name: str
    hub: str
    classes: int
    train: tuple[str, ...]
    """Files of the python version, and with .bin of the binary one."""
    test: str
    labels: str
    meta: str
    names: str
    label_bytes: int
    """Of a record in the binary version; the last of them is the label."""
    names_file: str


CIFAR10 = _Cifar(
    "cifar10",
    "uoft-cs/cifar10",
    10,
    tuple(f"data_batch_{i}" for i in range(1, 6)),
    "test_batch",
    "labels",
    "batches.meta",
    "label_names",
    1,
    "batches.meta.txt",
)
CIFAR100 = _Cifar(
    "cifar100",
    "uoft-cs/cifar100",
    100,
    ("train",),
    "test",
    "fine_labels",
    "meta",
    "fine_label_names",
    2,
    "fine_label_names.txt",
)


@DATASETS.register("cifar10")
def cifar10(path: Path | None = None) -> Dataset:
    """CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32 x 32, ten classes."""
    return _cifar(CIFAR10, path)


@DATASETS.register("cifar100")
def cifar100(path: Path | None = None) -> Dataset:
    """CIFAR-100 with its hundred fine labels; a subset of the images will do."""
    return _cifar(CIFAR100, path)


def _cifar(kind: _Cifar, path: Path | None) -> Dataset:
    """Whichever form lies there: an npz file, an archive, or a folder of pickles, records, sheets, parquet, images."""
    place = locate_dataset(kind.name, path, kind.hub, "https://www.cs.toronto.edu/~kriz/cifar.html")
    if place.suffix == ".npz":
        return npz(place)
    whole = _folder(kind.name, place) if place.is_dir() else None
    if whole is not None and whole.classes != kind.classes:
        raise TrustmixError(f"{place} holds {whole.classes} classes; {kind.name} has {kind.classes}.")
    if whole is not None:
        return whole
    binaries = [f"{name}.bin" for name in (*kind.train, kind.test)]
    files = _members(place, {*kind.train, kind.test, kind.meta, *binaries, kind.names_file})
    for wanted, read in (([*kind.train, kind.test], _pickled), (binaries, _binary)):
        if any(name in files for name in wanted):
            missing = [name for name in wanted if name not in files]
            if missing:
                raise TrustmixError(f"{place} lacks {', '.join(missing)}; {kind.name} is not whole there.")
            parts = [read(kind, f"{place}: {name}", files[name]) for name in wanted]
            train = Labelled(*(torch.cat(pieces) for pieces in zip(*parts[:-1], strict=True)))
            return scaled(kind.name, train, Labelled(*parts[-1]), _cifar_names(kind, place, files))
    raise TrustmixError(
        f"{place} is no form of {kind.name} that can be read: neither the python nor the binary version (archive or "
        "folder), nor parquet files, nor train/ and test/ folders of images, nor an npz file."
    )


def _folder(name: str, place: Path) -> Dataset | None:
    """A folder that is read as a whole: sheets, parquet files, or images."""
    if (place / "labels.npz").is_file():
        return _sheets(name, place)
    if any(place.rglob("*.parquet")):
        return _parquet(name, place)
    return images(place) if (place / "train").is_dir() else None


def _members(place: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """The wanted files, by their names, from a folder or from a tar archive."""
    try:
        if place.is_dir():
            return {file.name: file.read_bytes() for file in place.rglob("*") if file.name in wanted and file.is_file()}
        found: dict[str, bytes] = {}
        with tarfile.open(place) as archive:
            for member in archive:
                name = Path(member.name).name
                if member.isfile() and name in wanted:
                    stream = archive.extractfile(member)
                    found[name] = stream.read() if stream else b""
            while archive.fileobj and archive.fileobj.read(2**20):  # the checksum is behind all files
                pass
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        raise TrustmixError(f"{place} could not be read ({error}); fetch the archive again.") from error
    return found


class _Kind:
    """A pickled array's type: whole numbers only, since others could carry pointers."""

    def __init__(self, code: str, *_: object) -> None:
        self.code = code.decode() if isinstance(code, bytes) else str(code)
        if self.code not in ("u1", "i1", "i2", "i4", "i8"):
            raise pickle.UnpicklingError(f"it holds an array of type {self.code[:20]}, not of whole numbers")
        self.order = "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = ">" if state[1] in (">", b">") else "<"


class _Array:
    """A pickled array, made anew from its bytes; numpy's own unpickling is never called."""

    values: np.ndarray[Any, Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_columns, raw = state
        flat = np.frombuffer(raw, np.dtype(kind.order + kind.code))
        self.values = flat.reshape(shape, order="F" if by_columns else "C")


class _SafeUnpickler(pickle.Unpickler):
    """Arrays, numbers, text, lists and dicts; anything else in a pickle is refused before it is touched."""

    KNOWN: Mapping[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
        ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Kind,
        ("_codecs", "encode"): lambda text, _: text.encode("latin1"),  # how python 3 writes bytes for python 2
    }

    def find_class(self, module: str, name: str) -> Any:
        """The few things a pickled array needs."""
        try:
            return self.KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs") from None


def _unpickled(where: str, data: bytes) -> dict[str, Any]:
    """A pickled dict of plain values, keys as text."""
    try:
        entries = _SafeUnpickler(io.BytesIO(data), encoding="bytes").load()
        return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in entries.items()}
    except Exception as error:  # a broken pickle may raise anything
        raise TrustmixError(f"{where} is not a file of CIFAR's python version ({error}).") from error


def _pickled(kind: _Cifar, where: str, data: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    entries = _unpickled(where, data)
    try:
        pixels = entries["data"].values.astype(np.uint8).reshape(-1, 3, 32, 32)
        labels = np.asarray(entries[kind.labels], np.int64).reshape(len(pixels))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise TrustmixError(f"{where} holds no images and {kind.labels} ({error}).") from error
    return torch.from_numpy(pixels), torch.from_numpy(labels)


def _binary(kind: _Cifar, where: str, data: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    size = kind.label_bytes + 3072
    if not data or len(data) % size:
        raise TrustmixError(f"{where} has {len(data)} bytes; records of {kind.name} have {size} each.")
    records = torch.from_numpy(np.frombuffer(data, np.uint8).reshape(-1, size).copy())
    return records[:, kind.label_bytes :].reshape(-1, 3, 32, 32), records[:, kind.label_bytes - 1].long()


def _cifar_names(kind: _Cifar, place: Path, files: Mapping[str, bytes]) -> list[str]:
    """The names of the classes, numbers where the files do not tell them."""
    names: list[str] = []
    if kind.meta in files:
        found = _unpickled(f"{place}: {kind.meta}", files[kind.meta]).get(kind.names, [])
        listed = found if isinstance(found, list) else []
        names = [name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in listed]
    elif kind.names_file in files:
        names = files[kind.names_file].decode("utf-8", "replace").split()
    return names if len(names) == kind.classes else [str(number) for number in range(kind.classes)]


def _sheets(name: str, folder: Path) -> Dataset:
    """Contact sheets: labels.npz (train, test, classes), and train-NN, test-NN pictures with 25 images in a row."""
    archive = read_npz(folder / "labels.npz")
    try:
        labels = {part: archive[part].astype(np.int64).reshape(-1) for part in ("train", "test")}
        names = [str(entry) for entry in archive["classes"].reshape(-1)]
    except (ValueError, KeyError) as error:
        raise TrustmixError(f"{folder / 'labels.npz'} lacks train, test or classes ({error}).") from error
    parts = []
    for part, wanted in labels.items():
        files = sorted(folder.glob(f"{part}-*.*"))
        pictures = [decode_image(file) for file in files]
        for file, sheet in zip(files, pictures, strict=True):
            if sheet.ndim != 3 or sheet.shape[0] % 32 or sheet.shape[1] != 25 * 32:
                raise TrustmixError(f"{file} is no sheet of 32 x 32 colour images in 25 columns.")
        cells = [sheet.reshape(sheet.shape[0] // 32, 32, 25, 32, 3).swapaxes(1, 2) for sheet in pictures]
        pixels = np.concatenate([cell.reshape(-1, 32, 32, 3) for cell in cells]) if cells else np.zeros((0, 32, 32, 3))
        if len(pixels) != len(wanted):
            raise TrustmixError(f"{folder} has {len(pixels)} {part} images on its sheets, but {len(wanted)} labels.")
        parts.append(Labelled(_channels_first(pixels), torch.from_numpy(wanted)))
    return scaled(name, parts[0], parts[1], names)


def _parquet(name: str, folder: Path) -> Dataset:
    """train*.parquet and test*.parquet with encoded images, as Hugging Face keeps them."""
    parts: list[tuple[torch.Tensor, list[Any]]] = []
    for part in ("train", "test"):
        files = sorted(folder.rglob(f"{part}*.parquet"))
        if not files:
            raise TrustmixError(f"{folder} has no {part}*.parquet.")
        pixels: list[np.ndarray[Any, Any]] = []
        labels: list[Any] = []
        for file in files:
            table = read_table(file)
            image = next((key for key in ("img", "image") if key in table), "image")
            label = next((key for key in ("fine_label", "label") if key in table), "label")
            cells = column(table, image, file, "the images")
            for row, cell in enumerate(cells):
                data = cell.get("bytes") if isinstance(cell, dict) else cell
                if not isinstance(data, bytes):
                    raise TrustmixError(f'{file}, row {row}: the column "{image}" holds no encoded image.')
                pixels.append(decode_image(data, where=f"{file}, row {row}"))
            labels += column(table, label, file, "the labels")
        parts.append((stack_images(pixels, [f"{part} image {i}" for i in range(len(pixels))]), labels))
    names, both = chosen_classes([*parts[0][1], *parts[1][1]], None)
    border = len(parts[0][1])
    train = Labelled(parts[0][0], torch.tensor(both[:border]))
    return scaled(name, train, Labelled(parts[1][0], torch.tensor(both[border:])), names)


LARGEST = 4096
"""Pixels of a side that images are scaled to."""
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


@DATASETS.register("images")
def images(
    path: Path | None = None, *, size: int | None = None, classes: Sequence[str] | None = None, test: float = 0.2
) -> Dataset:
    """A folder of images, a folder for each class, with or without train/ and test/ above them.

    `size` scales all to size x size; `classes` chooses some ("a+b" joins two); `test` is the part kept for tests where
    the data have no test/ of their own.
    """
    if path is None:
        raise TrustmixError('The data set "images" needs data.path, a folder with a folder of images for each class.')
    if size is not None and not 1 <= size <= LARGEST:
        raise TrustmixError(f"data.size is {size}; images are scaled to 1 to {LARGEST} pixels a side.")
    folder = resolve_user_path(path)
    halves = [folder / "train", next((folder / n for n in ("test", "val") if (folder / n).is_dir()), folder / "test")]
    if not halves[0].is_dir():
        halves = [folder]
    elif not halves[1].is_dir():
        raise TrustmixError(f"{folder} has a train/ but no test/ (or val/).")
    listed = [_listed(half) for half in halves]
    names, numbers = chosen_classes([file.parent.name for files in listed for file in files], classes)
    chosen = [file for file, number in zip(itertools.chain(*listed), numbers, strict=True) if number >= 0]
    labels = torch.tensor([number for number in numbers if number >= 0])
    whole = Labelled(stack_images([decode_image(file, size=size) for file in chosen], chosen), labels)
    if len(listed) == 1:
        train, held_out = split_off_test(whole, len(names), test, folder.name)
    else:
        border = sum(number >= 0 for number in numbers[: len(listed[0])])
        train, held_out = whole[torch.arange(border)], whole[torch.arange(border, len(chosen))]
    return scaled(folder.name, train, held_out, names)


def _listed(folder: Path) -> list[Path]:
    """The image files in the folder's class folders."""
    files = (file for file in folder.glob("*/*") if not file.parent.name.startswith("."))
    found = sorted(file for file in files if file.suffix.lower() in ENDINGS)
    if not found:
        raise TrustmixError(f"{folder} holds no images; it needs a folder for each class with images in it.")
    return found


def decode_image(
    source: Path | bytes, *, size: int | None = None, where: str | Path | None = None
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One decoded image, (height, width, 3) or grey (height, width)."""
    where = where or (source if isinstance(source, Path) else "an image")
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
            plain = upright.convert("L" if upright.mode in ("L", "1") else "RGB")
            if size is not None:
                plain = plain.resize((size, size), pillow.Resampling.BILINEAR)
            return np.asarray(plain)
    except TrustmixError:
        raise
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:  # what Pillow raises
        raise TrustmixError(f"{where} is not a whole image ({error}); mend or remove it.") from error


def stack_images(pictures: Sequence[np.ndarray[Any, Any]], names: Iterable[Any]) -> torch.Tensor:
    """All images as one tensor; they must be of one size. Where some are coloured, grey ones get three channels."""
    coloured = any(decode_image.ndim == 3 for decode_image in pictures)
    same = [np.repeat(p[..., None], 3, -1) if coloured and p.ndim == 2 else p for p in pictures]
    for name, decode_image in zip(names, same, strict=True):
        if decode_image.shape != same[0].shape:
            sizes = [f"{shape[1]} x {shape[0]}" for shape in (decode_image.shape, same[0].shape)]
            raise TrustmixError(
                f"{name} is {sizes[0]} pixels, the first image {sizes[1]}; set data.size (or public.size) to scale all."
            )
    return _channels_first(np.stack(same))


def _channels_first(pixels: np.ndarray[Any, Any]) -> torch.Tensor:
    """(n, height, width[, 3]) to (n, channels, height, width)."""
    tensor = torch.from_numpy(np.ascontiguousarray(pixels))
    return tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2).contiguous()

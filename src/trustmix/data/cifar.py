"""CIFAR-10 and CIFAR-100 in the forms in which they are distributed, as uint8 images (n, 3, 32, 32).

Pickles of the original archives are read by an unpickler that accepts arrays and plain values only. Nothing in them is
executed.
"""

import io
import lzma
import pickle
import tarfile
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trustmix.data.dataset import Dataset, Labelled
from trustmix.data.hub import locate_dataset
from trustmix.data.labels import build_dataset, read_labels, select_classes
from trustmix.data.loading import DATASETS, npz, read_npz
from trustmix.data.tables import column, read_table
from trustmix.data.vision import channels_first, decode_image, images, stack_images
from trustmix.errors import TrustmixError

HOMEPAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
SHEET_COLUMNS = 25
"""Images in each row of a contact sheet."""


@dataclass(frozen=True)
class _Cifar:
    """The differences between the two data sets."""

    name: str
    repository: str
    """Name on the hub."""
    classes: int
    train: tuple[str, ...]
    """Files of the python version; those of the binary version end in .bin."""
    test: str
    labels_key: str
    meta: str
    names_key: str
    label_bytes: int
    """Bytes before the pixels of a record in the binary version; the last of them is the label."""
    names_file: str


CIFAR10 = _Cifar(
    name="cifar10",
    repository="uoft-cs/cifar10",
    classes=10,
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    labels_key="labels",
    meta="batches.meta",
    names_key="label_names",
    label_bytes=1,
    names_file="batches.meta.txt",
)
CIFAR100 = _Cifar(
    name="cifar100",
    repository="uoft-cs/cifar100",
    classes=100,
    train=("train",),
    test="test",
    labels_key="fine_labels",
    meta="meta",
    names_key="fine_label_names",
    label_bytes=2,
    names_file="fine_label_names.txt",
)


@DATASETS.register("cifar10")
def cifar10(path: Path | None = None) -> Dataset:
    """Read CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32 x 32 pixels, ten classes.

    Parameters
    ----------
    path
        An npz file, an archive of the python or binary version, or a folder of these files, of contact sheets, of
        parquet files or of images; None uses the search paths and the hub.

    Returns
    -------
    Dataset
        The data set; inputs are uint8 images (3, 32, 32).

    Raises
    ------
    TrustmixError
        If the data set is not found or damaged.
    """
    return _read_cifar(CIFAR10, path)


@DATASETS.register("cifar100")
def cifar100(path: Path | None = None) -> Dataset:
    """Read CIFAR-100 (Krizhevsky 2009) with its hundred fine labels, or a subset of its images.

    Parameters
    ----------
    path
        As for `cifar10`.

    Returns
    -------
    Dataset
        The data set; inputs are uint8 images (3, 32, 32).

    Raises
    ------
    TrustmixError
        If the data set is not found or damaged.
    """
    return _read_cifar(CIFAR100, path)


def _read_cifar(kind: _Cifar, path: Path | None) -> Dataset:
    """Read the data set in the form that is found."""
    place = locate_dataset(kind.name, path, kind.repository, HOMEPAGE)
    if place.suffix == ".npz":
        return npz(place)
    dataset = _read_folder(kind.name, place) if place.is_dir() else None
    if dataset is not None and dataset.classes != kind.classes:
        raise TrustmixError(f"{place} holds {dataset.classes} classes; {kind.name} has {kind.classes}.")
    return _read_original(kind, place) if dataset is None else dataset


def _read_folder(name: str, folder: Path) -> Dataset | None:
    """Read contact sheets, parquet files or images; None if the folder holds none of them."""
    if (folder / "labels.npz").is_file():
        return _read_sheets(name, folder)
    if any(folder.rglob("*.parquet")):
        return _read_parquet(name, folder)
    return images(folder) if (folder / "train").is_dir() else None


def _read_original(kind: _Cifar, place: Path) -> Dataset:
    """Read the python or the binary version from an archive or a folder."""
    pickles = [*kind.train, kind.test]
    binaries = [f"{name}.bin" for name in pickles]
    files = _read_members(place, {*pickles, *binaries, kind.meta, kind.names_file})
    versions: list[tuple[list[str], Callable[[_Cifar, str, bytes], Labelled]]]
    versions = [(pickles, _parse_pickle), (binaries, _parse_binary)]
    for names, parse in versions:
        if any(name in files for name in names):
            missing = [name for name in names if name not in files]
            if missing:
                raise TrustmixError(f"{place} lacks {', '.join(missing)}; {kind.name} is not whole there.")
            *batches, test = [parse(kind, f"{place}: {name}", files[name]) for name in names]
            inputs, labels = ([getattr(batch, key) for batch in batches] for key in ("inputs", "labels"))
            train = Labelled(torch.cat(inputs), torch.cat(labels))
            return build_dataset(kind.name, train, test, _read_class_names(kind, place, files))
    raise TrustmixError(
        f"{place} is no form of {kind.name} that can be read: neither the python nor the binary version (archive or "
        "folder), nor parquet files, nor train/ and test/ folders of images, nor an npz file."
    )


def _read_members(place: Path, names: Collection[str]) -> dict[str, bytes]:
    """Read the files of these names from a folder or a tar archive."""
    try:
        if place.is_dir():
            return {file.name: file.read_bytes() for file in place.rglob("*") if file.name in names and file.is_file()}
        found: dict[str, bytes] = {}
        with tarfile.open(place) as archive:
            for member in archive:
                name = Path(member.name).name
                if member.isfile() and name in names:
                    stream = archive.extractfile(member)
                    found[name] = stream.read() if stream else b""
            while archive.fileobj and archive.fileobj.read(2**20):  # the checksum is behind all files
                pass
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        raise TrustmixError(f"{place} could not be read ({error}); fetch the archive again.") from error
    return found


class _PickledType:
    """The type of a pickled array: whole numbers only, since other types could hold pointers."""

    def __init__(self, code: str, *_: object) -> None:
        self.code = code.decode() if isinstance(code, bytes) else str(code)
        if self.code not in ("u1", "i1", "i2", "i4", "i8"):
            raise pickle.UnpicklingError(f"it holds an array of type {self.code[:20]}, not of whole numbers")
        self.order = "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = ">" if state[1] in (">", b">") else "<"


class _PickledArray:
    """A pickled array, rebuilt from its bytes without NumPy's own unpickling."""

    values: np.ndarray[Any, Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_columns, raw = state
        flat = np.frombuffer(raw, np.dtype(kind.order + kind.code))
        self.values = flat.reshape(shape, order="F" if by_columns else "C")


class _SafeUnpickler(pickle.Unpickler):
    """Reads arrays, numbers, text, lists and dicts; anything else in a pickle is refused before it is imported."""

    KNOWN: Mapping[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): lambda *_: _PickledArray(),
        ("numpy._core.multiarray", "_reconstruct"): lambda *_: _PickledArray(),
        ("numpy", "ndarray"): _PickledArray,
        ("numpy", "dtype"): _PickledType,
        ("_codecs", "encode"): lambda text, _: text.encode("latin1"),  # how python 3 writes bytes for python 2
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few objects that a pickled array needs."""
        try:
            return self.KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs") from None


def _unpickle(where: str, data: bytes) -> dict[str, Any]:
    """Read a pickled dict of plain values, with keys as text."""
    try:
        entries = _SafeUnpickler(io.BytesIO(data), encoding="bytes").load()
        return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in entries.items()}
    except Exception as error:  # a broken pickle may raise anything
        raise TrustmixError(f"{where} is not a file of CIFAR's python version ({error}).") from error


def _parse_pickle(kind: _Cifar, where: str, data: bytes) -> Labelled:
    entries = _unpickle(where, data)
    try:
        pixels = entries["data"].values.astype(np.uint8).reshape(-1, 3, 32, 32)
        labels = np.asarray(entries[kind.labels_key], np.int64).reshape(len(pixels))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise TrustmixError(f"{where} holds no images and {kind.labels_key} ({error}).") from error
    return Labelled(torch.from_numpy(pixels), torch.from_numpy(labels))


def _parse_binary(kind: _Cifar, where: str, data: bytes) -> Labelled:
    size = kind.label_bytes + 3072
    if not data or len(data) % size:
        raise TrustmixError(f"{where} has {len(data)} bytes; records of {kind.name} have {size} each.")
    records = torch.from_numpy(np.frombuffer(data, np.uint8).reshape(-1, size).copy())
    pixels = records[:, kind.label_bytes :].reshape(-1, 3, 32, 32)
    return Labelled(pixels, records[:, kind.label_bytes - 1].long())


def _read_class_names(kind: _Cifar, place: Path, files: Mapping[str, bytes]) -> list[str]:
    """Return the names of the classes, or numbers if the files do not contain them."""
    names: list[str] = []
    if kind.meta in files:
        found = _unpickle(f"{place}: {kind.meta}", files[kind.meta]).get(kind.names_key, [])
        entries = found if isinstance(found, list) else []
        names = [name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in entries]
    elif kind.names_file in files:
        names = files[kind.names_file].decode("utf-8", "replace").split()
    return names if len(names) == kind.classes else [str(number) for number in range(kind.classes)]


def _read_sheets(name: str, folder: Path) -> Dataset:
    """Read labels.npz (train, test, classes) and contact sheets train-NN.*, test-NN.* of 25 images in a row."""
    archive = read_npz(folder / "labels.npz")
    try:
        labels = {part: archive[part].astype(np.int64).reshape(-1) for part in ("train", "test")}
        names = [str(entry) for entry in archive["classes"].reshape(-1)]
    except (ValueError, KeyError) as error:
        raise TrustmixError(f"{folder / 'labels.npz'} lacks train, test or classes ({error}).") from error
    parts = []
    for part, known in labels.items():
        cells = [_cut_sheet(file) for file in sorted(folder.glob(f"{part}-*.*"))]
        pixels = np.concatenate(cells) if cells else np.zeros((0, 32, 32, 3), np.uint8)
        if len(pixels) != len(known):
            raise TrustmixError(f"{folder} has {len(pixels)} {part} images on its sheets, but {len(known)} labels.")
        parts.append(Labelled(channels_first(pixels), torch.from_numpy(known)))
    return build_dataset(name, parts[0], parts[1], names)


def _cut_sheet(file: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the images (n, 32, 32, 3) of a contact sheet, row by row."""
    sheet = decode_image(file)
    if sheet.ndim != 3 or sheet.shape[0] % 32 or sheet.shape[1] != SHEET_COLUMNS * 32:
        raise TrustmixError(f"{file} is no sheet of 32 x 32 colour images in {SHEET_COLUMNS} columns.")
    return sheet.reshape(sheet.shape[0] // 32, 32, SHEET_COLUMNS, 32, 3).swapaxes(1, 2).reshape(-1, 32, 32, 3)


def _read_parquet(name: str, folder: Path) -> Dataset:
    """Read train*.parquet and test*.parquet with encoded images, as on the hub."""
    parts: list[tuple[torch.Tensor, list[Any]]] = []
    for part in ("train", "test"):
        files = sorted(folder.rglob(f"{part}*.parquet"))
        if not files:
            raise TrustmixError(f"{folder} has no {part}*.parquet.")
        pixels: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
        labels: list[Any] = []
        for file in files:
            table = read_table(file)
            image = next((key for key in ("img", "image") if key in table), "image")
            label = next((key for key in ("fine_label", "label") if key in table), "label")
            for row, cell in enumerate(column(table, image, file, "the images"), 1):
                data = cell.get("bytes") if isinstance(cell, dict) else cell
                if not isinstance(data, bytes):
                    raise TrustmixError(f'{file}, row {row}: the column "{image}" holds no encoded image.')
                pixels.append(decode_image(data, where=f"{file}, row {row}"))
            labels += read_labels(table, label, file, "the labels")
        parts.append((stack_images(pixels, [f"{part} image {i}" for i in range(len(pixels))]), labels))
    names, indices = select_classes([*parts[0][1], *parts[1][1]], None)
    count = len(parts[0][1])
    train = Labelled(parts[0][0], torch.tensor(indices[:count]))
    return build_dataset(name, train, Labelled(parts[1][0], torch.tensor(indices[count:])), names)

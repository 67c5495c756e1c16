"""CIFAR in every form in which it is distributed, and the errors of damaged files."""

import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from trustmix import Dataset, TrustmixError
from trustmix.data import load

RNG = np.random.default_rng(0)
TRAIN, TEST = RNG.integers(0, 256, (50, 3, 32, 32), np.uint8), RNG.integers(0, 256, (10, 3, 32, 32), np.uint8)
TRAIN_LABELS, TEST_LABELS = np.arange(50) % 10, np.arange(10)
NAMES = [f"kind{i}" for i in range(10)]


def pickles(folder: Path) -> Path:
    """As the original archive has them: python 2 pickles, keys and names as bytes, images as flat rows."""
    folder.mkdir(parents=True)
    for i in range(5):
        rows = slice(10 * i, 10 * i + 10)
        entries = {b"data": TRAIN[rows].reshape(10, -1), b"labels": TRAIN_LABELS[rows].tolist()}
        (folder / f"data_batch_{i + 1}").write_bytes(pickle.dumps(entries, protocol=2))
    entries = {b"data": TEST.reshape(10, -1), b"labels": TEST_LABELS.tolist()}
    (folder / "test_batch").write_bytes(pickle.dumps(entries, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [n.encode() for n in NAMES]}, protocol=2))
    return folder


def archive(folder: Path) -> Path:
    inside = pickles(folder / "cifar-10-batches-py")
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(inside, inside.name)
    return folder / "cifar-10-python.tar.gz"


def binary(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for i in range(6):
        rows = slice(10 * i, 10 * i + 10)
        pixels, labels = (TRAIN[rows], TRAIN_LABELS[rows]) if i < 5 else (TEST, TEST_LABELS)
        records = np.concatenate([labels[:, None].astype(np.uint8), pixels.reshape(10, -1)], 1)
        (folder / (f"data_batch_{i + 1}.bin" if i < 5 else "test_batch.bin")).write_bytes(records.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n")
    return folder


def encoded(pixels: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(stream, "PNG")
    return stream.getvalue()


def parquet(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for part, pixels, labels in (("train", TRAIN, TRAIN_LABELS), ("test", TEST, TEST_LABELS)):
        images = [{"bytes": encoded(one), "path": None} for one in pixels]
        table = pyarrow.table({"img": images, "label": labels.tolist()})
        pyarrow.parquet.write_table(table, folder / f"{part}-00000-of-00001.parquet")
    return folder


def image_folder(folder: Path) -> Path:
    for part, pixels, labels in (("train", TRAIN, TRAIN_LABELS), ("test", TEST, TEST_LABELS)):
        for index, (one, label) in enumerate(zip(pixels, labels, strict=True)):
            place = folder / part / NAMES[label]
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{index:03d}.png").write_bytes(encoded(one))
    return folder


def sheets(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for part, pixels in (("train", TRAIN), ("test", np.tile(TEST, (5, 1, 1, 1))[:25])):
        rows = pixels.transpose(0, 2, 3, 1).reshape(-1, 25, 32, 32, 3).swapaxes(1, 2).reshape(-1, 800, 3)
        Image.fromarray(rows).save(folder / f"{part}-00.webp", lossless=True)
    labels = np.tile(TEST_LABELS, 5)[:25]
    np.savez(folder / "labels.npz", train=TRAIN_LABELS.astype(np.uint8), test=labels.astype(np.uint8), classes=NAMES)
    return folder


def npz(folder: Path) -> Path:
    folder.mkdir(parents=True)
    np.savez(folder / "c.npz", x_train=TRAIN, y_train=TRAIN_LABELS, x_test=TEST, y_test=TEST_LABELS, classes=NAMES)
    return folder / "c.npz"


def by_content(data: Dataset) -> dict[bytes, int]:
    return {x.numpy().tobytes(): int(y) for x, y in zip(data.train.inputs, data.train.labels, strict=True)}


@pytest.mark.parametrize("form", [pickles, archive, binary, parquet, image_folder, sheets, npz])
def test_cifar10_is_the_same_in_every_form(tmp_path: Path, form: Callable[[Path], Path]) -> None:
    data = load("cifar10", path=form(tmp_path / "cifar"))
    wanted = {x.tobytes(): int(y) for x, y in zip(TRAIN, TRAIN_LABELS, strict=True)}
    assert by_content(data) == wanted
    assert {x.numpy().tobytes() for x in data.test.inputs} == {x.tobytes() for x in TEST}
    assert data.classes == 10
    if form is not parquet:
        assert data.class_names == tuple(NAMES)
    exact = TRAIN.astype(np.float64) / 255
    assert data.mean == pytest.approx(exact.mean((0, 2, 3)))
    assert data.std == pytest.approx(exact.std((0, 2, 3)))


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    fine = (np.arange(200) % 100).tolist()
    for part in ("train", "test"):
        entries = {"data": RNG.integers(0, 256, (200, 3072), np.uint8), "fine_labels": fine, "coarse_labels": [0] * 200}
        (folder / part).write_bytes(pickle.dumps(entries, protocol=2))
    data = load("cifar100", path=folder)
    assert data.train.labels.tolist() == fine
    assert data.classes == 100
    records = np.concatenate([np.full((200, 1), 7), np.array(fine)[:, None], np.zeros((200, 3072))], 1).astype(np.uint8)
    for part in ("train", "test"):
        (folder / part).unlink()
        (folder / f"{part}.bin").write_bytes(records.tobytes())
    assert load("cifar100", path=folder).train.labels.tolist() == fine


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("a pickle was executed",))


def test_nothing_in_a_pickle_is_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pickles(tmp_path / "cifar")
    (folder / "data_batch_3").write_bytes(pickle.dumps({b"data": Harmful(), b"labels": []}, protocol=2))
    with pytest.raises(TrustmixError, match=r"data_batch_3 is not a file .* asks for __builtin__.print"):
        load("cifar10", path=folder)
    assert "executed" not in capsys.readouterr().out


def test_a_pickled_array_of_pointers_is_refused(tmp_path: Path) -> None:
    folder = pickles(tmp_path / "cifar")
    fake = pickle.dumps({b"data": np.zeros(4, np.uint8), b"labels": []}, protocol=2).replace(b"u1", b"O8")
    (folder / "data_batch_3").write_bytes(fake)
    with pytest.raises(TrustmixError, match=r"data_batch_3 .* array of type O8, not of whole numbers"):
        load("cifar10", path=folder)


def test_a_sheet_or_a_parquet_column_of_another_kind_is_one_sentence(tmp_path: Path) -> None:
    folder = sheets(tmp_path / "sheets")
    Image.fromarray(np.zeros((32, 64, 3), np.uint8)).save(folder / "train-00.webp")
    with pytest.raises(TrustmixError, match=r"train-00.webp is no sheet of 32 x 32"):
        load("cifar10", path=folder)
    (folder / "labels.npz").write_bytes(b"PK cut")
    with pytest.raises(TrustmixError, match=r"labels.npz could not be read"):
        load("cifar10", path=folder)
    folder = parquet(tmp_path / "pq")
    pyarrow.parquet.write_table(pyarrow.table({"img": ["x"], "label": [0]}), folder / "train-00000-of-00001.parquet")
    with pytest.raises(TrustmixError, match=r'row 1: the column "img" holds no encoded image'):
        load("cifar10", path=folder)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flip(file: Path) -> None:
    """An archive whose checksum is that of other contents."""
    packed = bytearray(file.read_bytes())
    packed[-8] ^= 1
    file.write_bytes(packed)


def one_class_less(folder: Path) -> None:
    with np.load(folder / "labels.npz") as labels:
        kept = {part: np.minimum(labels[part], 8) for part in ("train", "test")}
    np.savez(folder / "labels.npz", **kept, classes=np.array(NAMES[:9]))


@pytest.mark.parametrize(
    ("form", "damage", "sentence"),
    [
        (archive, cut, "cifar-10-python.tar.gz could not be read"),
        (pickles, lambda folder: (folder / "data_batch_2").unlink(), "lacks data_batch_2"),
        (pickles, lambda folder: cut(folder / "data_batch_2"), "data_batch_2 is not a file of CIFAR's python version"),
        (binary, lambda folder: cut(folder / "test_batch.bin"), "test_batch.bin has 30630 bytes; records .* 3073"),
        (parquet, lambda folder: cut(folder / "train-00000-of-00001.parquet"), "is not a whole parquet file"),
        (sheets, lambda folder: (folder / "test-00.webp").unlink(), "0 test images on its sheets, but 25 labels"),
        (image_folder, lambda folder: cut(folder / "train/kind3/003.png"), r"kind3/003.png is not a whole image"),
        (npz, cut, "could not be read as an npz"),
        (archive, flip, "cifar-10-python.tar.gz could not be read"),
        (sheets, lambda folder: np.savez(folder / "labels.npz", train=0, test=0), "lacks train, test or classes"),
        (sheets, one_class_less, "holds 9 classes; cifar10 has 10"),
    ],
)
def test_damage_is_one_sentence_that_names_the_file(
    tmp_path: Path, form: Callable[[Path], Path], damage: Callable[[Path], Any], sentence: str
) -> None:
    place = form(tmp_path / "cifar")
    damage(place)
    with pytest.raises(TrustmixError, match=sentence):
        load("cifar10", path=place)


def test_a_folder_that_is_no_cifar_is_refused_with_the_forms_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(TrustmixError, match="no form of cifar10 that can be read: neither the python"):
        load("cifar10", path=tmp_path)


def test_data_that_are_not_found_are_refused_with_the_search_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUSTMIX_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(TrustmixError, match=rf"not found in {tmp_path}/cifar10, .*trustmix/cifar10.*nor fetched.*kriz"):
        load("cifar10")
    with pytest.raises(TrustmixError, match=r"data.path is /nowhere/cifar, and there is nothing there"):
        load("cifar10", path="/nowhere/cifar")

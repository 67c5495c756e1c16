"""CIFAR in every form it is handed around in, folders of images, and what is said of broken ones."""

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
import torch
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


def test_sixteen_bits_are_scaled_and_thirty_two_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.fromarray(np.full((4, 4), 257 * 40 * i, np.uint16)).save(tmp_path / name / f"{i}.png")
    data = load("images", path=tmp_path)
    assert sorted({int(x.max()) for x in data.train.inputs} | {int(x.max()) for x in data.test.inputs}) == [
        0,
        40,
        80,
        120,
        160,
    ]
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "a" / "f.tiff")
    with pytest.raises(TrustmixError, match=r"f.tiff has pixels of 32 bits"):
        load("images", path=tmp_path)


def test_a_photo_is_turned_upright(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[274] = 6
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.fromarray(np.zeros((20, 40, 3), np.uint8)).save(tmp_path / name / f"{i}.jpg", exif=turned)
    assert load("images", path=tmp_path).shape == (3, 40, 20)


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
    with pytest.raises(TrustmixError, match=r'row 0: the column "img" holds no encoded image'):
        load("cifar10", path=folder)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"size": "x"}, r"data.size: input should be a valid integer"),
        ({"size": 0}, r"data.size is 0"),
        ({"size": 1_000_000}, r"data.size is 1000000; images are scaled to 1 to 4096"),
        ({"test": "x"}, r"data.test: input should be a valid number"),
        ({"classes": "kind0"}, r"data.classes: .* \(given: 'kind0'\)"),
    ],
)
def test_a_setting_of_the_wrong_type_is_one_sentence(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        load("images", path=tmp_path, **options)


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


def test_a_folder_that_is_no_cifar_says_what_would_be(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(TrustmixError, match="no form of cifar10 that can be read: neither the python"):
        load("cifar10", path=tmp_path)


def test_an_image_folder_without_test_set_keeps_a_part_of_each_class(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "x") / "train"
    data = load("images", path=folder, test=0.4)
    assert torch.bincount(data.test.labels).tolist() == [2] * 10
    assert torch.bincount(data.train.labels).tolist() == [3] * 10
    few = load("images", path=folder, classes=["kind7", "kind1+kind2"], test=0.2)
    assert few.class_names == ("kind7", "kind1+kind2")
    assert torch.bincount(few.train.labels).tolist() == [4, 8]


def test_images_of_different_sizes_are_refused_or_scaled(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "x") / "train"
    odd = folder / "kind0" / "odd.png"
    Image.fromarray(np.zeros((10, 20), np.uint8)).save(odd)
    with pytest.raises(TrustmixError, match=r"odd.png is 20 x 10 pixels, the first image 32 x 32; set data.size"):
        load("images", path=folder)
    assert load("images", path=folder, size=16).shape == (3, 16, 16)


def test_grey_images_have_one_channel(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.fromarray(np.full((8, 8), i, np.uint8)).save(tmp_path / name / f"{i}.png")
    assert load("images", path=tmp_path).shape == (1, 8, 8)


def test_a_wrong_setting_of_a_data_set_is_named() -> None:
    with pytest.raises(TrustmixError, match=r'"images" has no setting "clases". Did you mean "classes"'):
        load("images", path="x", clases=["a"])
    with pytest.raises(TrustmixError, match=r'"digits" has no setting "size". It has none but path'):
        load("digits", size=3)


def test_data_that_are_nowhere_are_told_with_the_places_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUSTMIX_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(TrustmixError, match=rf"not found in {tmp_path}/cifar10, .*trustmix/cifar10.*nor fetched.*kriz"):
        load("cifar10")
    with pytest.raises(TrustmixError, match=r"data.path is /nowhere/cifar, and there is nothing there"):
        load("cifar10", path="/nowhere/cifar")

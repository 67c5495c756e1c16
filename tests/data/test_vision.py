"""Digits, Fashion-MNIST and folders of images, and the errors of damaged ones."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from trustmix import TrustmixError
from trustmix.data import load


def test_digits_are_scikit_learns_and_train_and_test_are_disjoint_and_stratified() -> None:
    data = load("digits")
    whole = sorted(image.tobytes() for image in (load_digits().images / 16).astype(np.float32))
    ours = sorted(x.numpy().tobytes() for x in torch.cat([data.train.inputs, data.test.inputs]))
    assert ours == whole
    assert len(data.test) == pytest.approx(0.2 * 1797, abs=2)
    assert torch.bincount(data.test.labels).min() >= 34


def write_idx(path: Path, values: Any, *, zipped: bool) -> None:
    header = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    raw = header + values.astype(np.uint8).tobytes()
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(raw)) if zipped else path.write_bytes(raw)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("found_by", ["path", "TRUSTMIX_DATA", "cache"])
def test_fashion_is_read_from_idx_files_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool, found_by: str
) -> None:
    folder = tmp_path / {"path": "x", "TRUSTMIX_DATA": "fashion", "cache": "trustmix/fashion"}[found_by]
    folder.mkdir(parents=True)
    images = np.arange(20 * 28 * 28).reshape(20, 28, 28) % 256
    for part in ("train", "t10k"):
        write_idx(folder / f"{part}-images-idx3-ubyte", images, zipped=zipped)
        write_idx(folder / f"{part}-labels-idx1-ubyte", np.arange(20) % 10, zipped=zipped)
    if found_by == "TRUSTMIX_DATA":
        monkeypatch.setenv("TRUSTMIX_DATA", str(tmp_path))
    elif found_by == "cache":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = load("fashion", path=folder if found_by == "path" else None)
    assert data.train.inputs.dtype == torch.uint8
    np.testing.assert_array_equal(data.train.inputs[:, 0].numpy(), images)
    assert data.train.labels.tolist() == list(np.arange(20) % 10)
    assert data.class_names[9] == "ankle boot"


def test_missing_or_broken_fashion_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TrustmixError, match=f"no train-images-idx3-ubyte.*{tmp_path}.*dataset-fashion-mnist"):
        load("fashion", path=tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"\x00\x00\x08\x03" + bytes(10))
    with pytest.raises(TrustmixError, match="not a whole idx file"):
        load("fashion", path=tmp_path)
    (tmp_path / "train-images-idx3-ubyte").unlink()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(1000))[:-9])
    with pytest.raises(TrustmixError, match="could not be read"):
        load("fashion", path=tmp_path)


def image_folder(folder: Path) -> Path:
    """Five images of 32 x 32 in each of ten class folders."""
    pixels = np.random.default_rng(0).integers(0, 256, (50, 32, 32, 3), np.uint8)
    for index, image in enumerate(pixels):
        place = folder / f"kind{index % 10}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{index:03d}.png")
    return folder


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


def test_an_image_folder_without_test_set_keeps_a_part_of_each_class(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "x")
    data = load("images", path=folder, test=0.4)
    assert torch.bincount(data.test.labels).tolist() == [2] * 10
    assert torch.bincount(data.train.labels).tolist() == [3] * 10
    few = load("images", path=folder, classes=["kind7", "kind1+kind2"], test=0.2)
    assert few.class_names == ("kind7", "kind1+kind2")
    assert torch.bincount(few.train.labels).tolist() == [4, 8]


def test_images_of_different_sizes_are_refused_or_scaled(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "x")
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

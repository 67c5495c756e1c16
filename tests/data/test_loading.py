"""Data sets by name, from arrays and from functions, and the errors of those that are not valid."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trustmix import Dataset, TrustmixError
from trustmix.data import from_arrays, load


def arrays(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    good = {
        "x_train": rng.normal(size=(30, 4)).astype(np.float32),
        "y_train": np.arange(30) % 3,
        "x_test": rng.normal(size=(6, 4)).astype(np.float32),
        "y_test": np.arange(6) % 3,
    }
    return {key: value for key, value in {**good, **changes}.items() if value is not None}


def as_dataset() -> Dataset:
    return from_arrays("mine", arrays())


def as_dict() -> dict[str, Any]:
    return arrays()


def as_something_else() -> int:
    return 3


def test_an_npz_file_of_the_users(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **arrays(classes=np.array(["a", "b", "c"]), x_public=np.zeros((5, 4))))
    data = load("npz", path=tmp_path / "mine.npz")
    assert data.class_names == ("a", "b", "c")
    assert data.public is not None
    assert data.public.labels.tolist() == [-1] * 5
    assert data.public.inputs.dtype == torch.float32


@pytest.mark.parametrize("cut", [0, 10, 300, 900])
def test_a_truncated_npz_file_is_one_sentence(tmp_path: Path, cut: int) -> None:
    whole = tmp_path / "whole.npz"
    np.savez_compressed(whole, **arrays())
    (tmp_path / "cut.npz").write_bytes(whole.read_bytes()[:cut])
    with pytest.raises(TrustmixError, match=r"cut.npz could not be read as an npz"):
        load("npz", path=tmp_path / "cut.npz")


def test_pickled_objects_in_an_npz_file_are_not_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "evil.npz", **arrays(x_train=np.array([{"a": 1}], dtype=object)))
    with pytest.raises(TrustmixError, match="could not be read"):
        load("npz", path=tmp_path / "evil.npz")


@pytest.mark.parametrize("function", ["as_dataset", "as_dict"])
def test_a_function_of_the_users(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert len(load(source=f"test_loading:{function}").train) == 30


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("test_loading:as_something_else", "returned int"),
        ("test_loading:nothing", "has no nothing"),
        ("no_such_module:f", "cannot be imported"),
        ("test_loading", "must look like"),
        ("torch:pi", "not a function"),
        ("subprocess:check_output", "is of Python's standard library"),
    ],
)
def test_a_function_that_cannot_be_used_is_explained(
    source: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with pytest.raises(TrustmixError, match=sentence):
        load(source=source)


def nan_at_17() -> Any:
    x = arrays()["x_train"].copy()
    x[17, 2] = np.nan
    return x


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x_train": nan_at_17()}, "1 of 30 inputs contain NaN or infinity, the first is sample 17"),
        (
            {"y_train": np.where(np.arange(30) % 3 == 1, 0, np.arange(30) % 3)},
            r"no training sample has the class 1 \(1\)",
        ),
        ({"y_test": np.array([0, 1, 2, 3, 0, 1])}, "test part: sample 3 has the label 3; with 3 classes"),
        ({"y_train": np.arange(30) % 3 - 1}, "sample 0 has the label -1"),
        ({"y_train": np.linspace(0, 1, 30)}, "labels must be integers"),
        ({"y_train": np.array(["cat", "dog", "cow"] * 10)}, "train part: inputs and labels must be numbers"),
        ({"y_train": np.zeros(29, int)}, "30 inputs but labels of shape"),
        ({"x_test": np.zeros((6, 5), np.float32)}, r"inputs have the shape \(5,\), training ones \(4,\)"),
        ({"x_test": None}, "lacks x_test"),
        ({"x_test": np.zeros((6, 4), np.uint8)}, r"test part: inputs are torch\.uint8, training ones torch\.float32"),
        ({"x_test": np.zeros((0, 4)), "y_test": np.zeros(0, int)}, "there are no samples"),
        ({"x_public": np.zeros((0, 4))}, "public part: there are no samples"),
        (
            {"x_train": np.zeros((30, 4), bool), "x_test": np.zeros((6, 4), bool)},
            r"train part: inputs are torch\.bool; convert numbers to float32, images to uint8",
        ),
        ({"x_public": np.zeros(())}, r"x_public and y_public are \(\) and \(\); they must be \(n, ...\)"),
        ({"y_train": np.full(30, 50_000_000)}, "the labels go up to 50000000 with 30 samples; number the classes"),
        ({"x_train": np.zeros((30, 4), ">f4")}, "train part: inputs and labels must be numbers"),
        (
            {"x_train": np.zeros(30, np.float32)},
            r"are \(30,\) and \(30,\); they must be \(n, ...\)",
        ),
    ],
)
def test_bad_arrays_are_refused_with_what_and_where(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", **arrays(**changes))
    with pytest.raises(TrustmixError, match=sentence):
        load("npz", path=tmp_path / "bad.npz")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ({"name": "digitz"}, 'Did you mean "digits"'),
        ({}, "names no data"),
        ({"name": "npz"}, "needs data.path"),
        ({"name": "digits", "path": "x"}, "is built in"),
        ({"name": "npz", "path": "~nobody-of-this-name/x.npz"}, "there is nothing there"),
        ({"name": "shared", "path": "x.csv"}, "needs data.classes"),
        ({"name": "npz", "path": "/nowhere/x.npz"}, "data.path is /nowhere/x.npz, and there is nothing there"),
        ({"name": "table", "path": "/nowhere/x.csv"}, "data.path is /nowhere/x.csv, and there is nothing there"),
    ],
)
def test_a_data_set_that_cannot_be_found_is_explained(call: dict[str, str], sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        load(**call)


def test_grey_images_without_a_channel_axis_have_one_mean() -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 4, 4), dtype=np.uint8)
    data = from_arrays("mine", arrays(x_train=images, x_test=images[:6]))
    np.testing.assert_allclose(data.mean, [images.mean() / 255], rtol=1e-5)


def test_uint8_images_are_scaled_by_the_statistics_of_the_training_part() -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 3, 4, 4), dtype=np.uint8)
    data = from_arrays("mine", arrays(x_train=images, x_test=images[:6]))
    np.testing.assert_allclose(data.mean, images.mean((0, 2, 3)) / 255, rtol=1e-5)
    np.testing.assert_allclose(data.std, images.std((0, 2, 3)) / 255, rtol=1e-5)


def test_a_wrong_setting_of_a_data_set_is_named() -> None:
    with pytest.raises(TrustmixError, match=r'"images" has no setting "clases". Did you mean "classes"'):
        load("images", path="x", clases=["a"])
    with pytest.raises(TrustmixError, match=r'"digits" has no setting "size". It has none but path'):
        load("digits", size=3)

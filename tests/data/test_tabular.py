"""Tables of numbers, and public sets that come alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import datasets

import trustmix as tm
from trustmix.data import load
from trustmix.data.tabular import feature_names
from trustmix.errors import TrustmixError
from trustmix.experiment.predict import predict

ROWS = "a,b,label\n" + "".join(f"{i},{-i},{'xyz'[i % 3]}\n" for i in range(60))


def test_a_table_of_numbers_trains_a_federation(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    data = load("table", path=tmp_path / "rows.csv")
    assert data.class_names == ("x", "y", "z")
    assert data.train.inputs.shape == (48, 2)
    assert (data.train.inputs[:, 0] == -data.train.inputs[:, 1]).all()
    recipe = {"data": {"name": "table", "path": str(tmp_path / "rows.csv")}, "clients": 2, "rounds": 1}
    sizes = {"split": {"samples_per_client": 12}, "public": {"samples": 10}, "engine": {"mode": "sequential"}}
    assert tm.run({**recipe, **sizes}).rounds[0].teacher_accuracy is not None


def test_new_rows_are_read_by_the_names_of_the_columns_that_the_run_was_trained_on(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("site," + ROWS.replace("\n", "\nnorth,").removesuffix("north,"))
    data = {"name": "table", "path": str(tmp_path / "rows.csv"), "group": "site"}
    sizes = {"split": {"samples_per_client": 12}, "public": {"samples": 10}, "engine": {"mode": "sequential"}}
    tm.run({"data": data, "clients": 2, "rounds": 1, **sizes}, out=tmp_path / "run")
    (tmp_path / "same.csv").write_text("a,b\n1,9\n2,8\n")
    (tmp_path / "other.csv").write_text("note,b,id,a\nnew,9,first,1\nold,8,second,2\n")
    same, other = (predict(tmp_path / "run", tmp_path / name, client=0) for name in ("same.csv", "other.csv"))
    assert same.samples.inputs.tolist() == other.samples.inputs.tolist() == [[1, 9], [2, 8]]
    assert other.samples.ids == ("first", "second")
    (tmp_path / "short.csv").write_text("a\n1\n")
    with pytest.raises(TrustmixError, match=r'short\.csv has no column "b"'):
        predict(tmp_path / "run", tmp_path / "short.csv", client=0)


def test_a_column_names_the_client_of_each_row_and_is_no_feature(tmp_path: Path) -> None:
    rows = "a,site,label\n" + "".join(f"{i},{'north' if i < 90 else 'east'},{'xy'[i % 2]}\n" for i in range(150))
    (tmp_path / "rows.csv").write_text(rows)
    data = load("table", path=tmp_path / "rows.csv", group="site")
    assert data.shape == (1,)
    assert data.group_names == ("east", "north")
    assert data.groups is not None
    assert ((data.train.inputs[:, 0] < 90) == (data.groups == 1)).all()
    recipe = {"data": {"name": "table", "path": str(tmp_path / "rows.csv"), "group": "site"}, "clients": 2, "rounds": 1}
    sizes = {"split": {"kind": "column"}, "public": {"samples": 20}, "engine": {"mode": "sequential"}}
    assert tm.run({**recipe, **sizes}).rounds[0].participants == ["0", "1"]
    (tmp_path / "rows.csv").write_text(rows.replace("north", " ", 1))
    with pytest.raises(TrustmixError, match=r'row 1: the column "site" \(data.group\) is empty'):
        load("table", path=tmp_path / "rows.csv", group="site")


@pytest.mark.parametrize(("name", "shape", "classes"), [("breast-cancer", 30, 2), ("wine", 13, 3)])
def test_built_in_tables_are_those_of_scikit_learn(name: str, shape: int, classes: int) -> None:
    data = load(name)
    assert (data.shape, data.classes) == ((shape,), classes)
    x, y = getattr(datasets, f"load_{name.replace('-', '_')}")(return_X_y=True)
    pooled = np.concatenate([data.train.inputs.numpy(), data.test.inputs.numpy()])
    assert sorted(np.concatenate([data.train.labels, data.test.labels])) == sorted(y)
    np.testing.assert_allclose(np.corrcoef(pooled, rowvar=False), np.corrcoef(x, rowvar=False), atol=1e-4)
    np.testing.assert_allclose(data.train.inputs.std(0, correction=0), 1, atol=1e-5)
    with pytest.raises(TrustmixError, match="is built in and has no path"):
        load(name, path=Path("somewhere"))


def test_columns_and_classes_choose(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    data = load("table", path=tmp_path / "rows.csv", columns=["b"], classes=["z", "x"])
    assert data.class_names == ("z", "x")
    assert data.train.inputs.shape == (32, 1)


def test_a_public_set_alone_has_no_private_part_and_is_for_serving(tmp_path: Path) -> None:
    (tmp_path / "public.csv").write_text("b,a\n" + "1,2\n" * 12)
    data = load("shared", path=tmp_path / "public.csv", classes=["x", "y"])
    assert data.public_only
    assert data.classes == 2
    assert feature_names(tmp_path / "public.csv", None) == ["b", "a"]
    fields = {"name": "shared", "path": str(tmp_path / "public.csv"), "classes": ["x", "y"]}
    with pytest.raises(TrustmixError, match="is a public set alone: its clients are elsewhere; use `trustmix serve`"):
        tm.run({"data": fields, "public": {"samples": 10}})


def test_a_public_npz_may_bring_labels_to_measure_the_teacher(tmp_path: Path) -> None:
    np.savez(tmp_path / "public.npz", x_public=np.zeros((5, 3)), y_public=[0, 1, -1, 1, 0])
    data = load("shared", path=tmp_path / "public.npz", classes=["x", "y"])
    assert data.public is not None
    assert data.public.labels.tolist() == [0, 1, -1, 1, 0]
    np.savez(tmp_path / "other.npz", x=np.zeros((5, 3)))
    with pytest.raises(TrustmixError, match="has no x_public; it has x"):
        load("shared", path=tmp_path / "other.npz", classes=["x", "y"])


@pytest.mark.parametrize(
    ("rows", "options", "sentence"),
    [
        ("label\n" + "x\ny\n" * 5, {}, "has no column of numbers beside the label"),
        ("a,a,label\n1,2,x\n", {}, 'has the column "a" twice; every column needs'),
        (",,label\n1,2,x\n", {}, "has a column without a name; every column needs"),
        (ROWS, {"classes": ["x+y", "y", "z"]}, 'names "y" twice; a label belongs to one class'),
        (ROWS, {"classes": ["x", "q"]}, 'names "q", but the labels are x, y, z'),
        ("a,label\n1e999,x\n", {}, 'row 1: "1e999" in column "a" is no number'),
    ],
)
def test_a_table_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, rows: str, options: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "rows.csv").write_text(rows)
    with pytest.raises(TrustmixError, match=sentence):
        load("table", path=tmp_path / "rows.csv", **options)


def test_a_note_on_some_rows_is_no_feature_but_a_label_on_some_rows_is_an_error(tmp_path: Path) -> None:
    rows = [f'{{"a": {i}, "label": {i % 2}}}' for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(['{"a": 1, "label": 0, "note": "first"}', *rows]))
    assert load("table", path=tmp_path / "rows.jsonl").shape == (1,)
    (tmp_path / "rows.jsonl").write_text("\n".join([*rows, '{"a": 3}']))
    with pytest.raises(TrustmixError, match=r'rows.jsonl, row 21: there is no value in the column "label"'):
        load("table", path=tmp_path / "rows.jsonl")
    (tmp_path / "rows.jsonl").write_text("\n".join([*rows, '{"a": 1, "label": 0, "note": 7}']))
    with pytest.raises(TrustmixError, match=r'row 1: there is no value in the column "note" .data.columns.'):
        load("table", path=tmp_path / "rows.jsonl", columns=["a", "note"])


def test_a_class_may_have_a_plus_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,label\n" + "1,c++\n2,java\n3,rust\n" * 10)
    data = load("table", path=tmp_path / "rows.csv", classes=["c++", "java+rust"])
    assert data.class_names == ("c++", "java+rust")
    assert len(data.train) + len(data.test) == 30

"""Texts from csv, JSON lines and parquet are tokenized once, and a table that is not valid is one sentence."""

import csv
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch

from trustmix import TrustmixError
from trustmix.data import hub, load
from trustmix.data import text as text_module

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "the", "a", "goal", "match", "song", "band", "who", "sang", "won"]
ROWS = [("the match", "sport"), ("who won a goal", "sport"), ("a song", "music"), ("who sang the song", "music")]


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": len(WORDS)}))
    return str(folder)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    if ".parquet" in name:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif ".jsonl" in name:
        path.write_bytes(lzma.compress(lines) if name.endswith(".xz") else lines)
    else:
        with gzip.open(path, "wt", newline="") if name.endswith(".gz") else open(path, "w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    return path


def rows(repeat: int = 5) -> list[dict[str, Any]]:
    return [{"q": f"{text}" + " a" * i, "topic": topic} for i in range(repeat) for text, topic in ROWS]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.jsonl", "t.jsonl.xz", "t.parquet"])
def test_a_table_is_read_in_every_format(tmp_path: Path, tokenizer: str, name: str) -> None:
    data = load("text", path=write(tmp_path / name, rows()), text="q", label="topic", tokenizer=tokenizer, length=8)
    assert data.class_names == ("music", "sport")
    assert len(data.train) == 16
    assert torch.bincount(data.test.labels).tolist() == [2, 2]
    assert data.train.inputs.dtype == torch.int16
    words = [WORDS[i] for i in data.train.inputs[0].tolist() if i >= 0]
    assert words[0] == "[CLS]"
    assert words[-1] == "[SEP]"
    assert data.train.inputs.shape[1] == 8  # cut to the length, padded with -1
    assert int(data.train.inputs.min()) == -1


def test_columns_are_joined_and_classes_chosen(tmp_path: Path, tokenizer: str) -> None:
    table = [{"a": "who", "b": "won", "c": label} for label in ("x", "y", "z", "w") for _ in range(5)]
    path = write(tmp_path / "t.jsonl", table)
    data = load("text", path=path, text=["a", "b"], label="c", classes=["z", "x+y"], tokenizer=tokenizer)
    assert data.class_names == ("z", "x+y")
    assert torch.bincount(data.train.labels).tolist() == [4, 8]
    assert [WORDS[i] for i in data.train.inputs[0].tolist()] == ["[CLS]", "who", "won", "[SEP]"]


def test_a_folder_brings_its_own_test_set_and_names(tmp_path: Path, tokenizer: str) -> None:
    write(tmp_path / "d" / "train.jsonl", [{"text": "goal", "label": i % 2} for i in range(6)])
    write(tmp_path / "d" / "test.jsonl", [{"text": "song", "label": i % 2} for i in range(4)])
    (tmp_path / "d" / "classes.json").write_text('["sport", "music"]')
    data = load("text", path=tmp_path / "d", tokenizer=tokenizer)
    assert (len(data.train), len(data.test), data.class_names) == (6, 4, ("sport", "music"))


@pytest.mark.parametrize(("name", "classes", "columns"), [("yahoo", 10, 3), ("agnews", 4, 2)])
def test_zhangs_csv_and_parquet_give_the_same(
    tmp_path: Path, tokenizer: str, name: str, classes: int, columns: int
) -> None:
    texts = [["who", "won\\nthe match", "a band"][:columns] for _ in range(2 * classes)]
    keys = ["question_title", "question_content", "best_answer"] if name == "yahoo" else ["title", "description"]
    for part in ("train", "test"):
        (tmp_path / "csv").mkdir(exist_ok=True)
        with open(tmp_path / "csv" / f"{part}.csv", "w", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([i % classes + 1, *t] for i, t in enumerate(texts))
        label = "topic" if name == "yahoo" else "label"
        table = [{label: i % classes, **dict(zip(keys, t, strict=True))} for i, t in enumerate(texts)]
        write(tmp_path / "pq" / f"{part}-00000-of-00001.parquet", table)
    one, two = (load(name, path=tmp_path / form, tokenizer=tokenizer) for form in ("csv", "pq"))
    assert torch.equal(one.train.inputs, two.train.inputs)
    assert torch.equal(one.train.labels, two.train.labels)
    assert one.classes == classes
    assert [WORDS[i] for i in one.train.inputs[0].tolist()][1:5] == ["who", "won", "the", "match"]


def test_yahoo_is_found_by_its_folder_as_compressed_lines_of_text_and_label(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUSTMIX_DATA", str(tmp_path))
    (tmp_path / "yahoo").mkdir()
    for part, count in (("train", 30), ("test", 10)):
        rows = [{"text": f"who won {'goal ' * i}", "label": i % 10, "source": "a"} for i in range(count)]
        with lzma.open(tmp_path / "yahoo" / f"{part}.jsonl.xz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    data = load("yahoo", tokenizer=tokenizer, length=8)
    assert (len(data.train), len(data.test), data.classes) == (30, 10, 10)
    assert data.train.labels.tolist() == [i % 10 for i in range(30)]
    assert [WORDS[i] for i in data.train.inputs[1].tolist() if i >= 0] == ["[CLS]", "who", "won", "goal", "[SEP]"]


def test_texts_can_be_read_again_as_far_as_the_tokenizer_keeps_them(tokenizer: str) -> None:
    tokens = text_module.tokenize(["the song", "a goal"], tokenizer, 8)
    assert text_module.decode_tokens(tokens, tokenizer) == ["the song", "a goal"]


def test_tokenizing_is_done_once(tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls: list[int] = []
    real = text_module._run_tokenizer
    monkeypatch.setattr(text_module, "_run_tokenizer", lambda *a: calls.append(1) or real(*a))  # type: ignore[func-returns-value]
    first = text_module.tokenize(["the song", "a goal"], tokenizer, 8)
    assert torch.equal(text_module.tokenize(["the song", "a goal"], tokenizer, 8), first)
    assert len(calls) == 1
    text_module.tokenize(["the song", "a goal"], tokenizer, 3)
    (Path(tokenizer) / "vocab.txt").write_text("\n".join([*SPECIAL, *reversed(WORDS[5:])]) + "\n")
    assert not torch.equal(text_module.tokenize(["the song", "a goal"], tokenizer, 8), first)
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("content", "name", "sentence"),
    [
        (b"q,topic\nhello,a\n", "t.csv", 'has no column "text" .data.text.; it has q, topic'),
        (b"text,topic\nhello,a\n", "t.csv", 'has no column "label" .data.label.; it has text, topic'),
        (b"text,label\nhello\n", "t.csv", "row 1: 1 fields, but the columns are text, label"),
        (b"text,label\nhello,a\nh\xe9,b\n", "t.csv", "line 3: this is not UTF-8 text"),
        (b'{"text": "x", "label": 1}\n{"text": \n', "t.jsonl", "line 2 is not a JSON object"),
        (b"", "t.jsonl", "holds no rows"),
        (b"\xfd7zXZ\x00\x00garbage", "t.jsonl.xz", "could not be read"),
        (b"PAR1garbage", "t.parquet", "is not a whole parquet file"),
        (b"text,text,label\nx,y,a\n", "t.csv", 'has the column "text" twice; every column needs'),
        (b'{"text": "x", "label": NaN}\n', "t.jsonl", 'row 1: there is no value in the column "label" .data.label.'),
        (
            b'{"text": "x", "label": 1}\n\n{"text": "y"}\n',
            "t.jsonl",
            'jsonl, row 2: there is no value in the column "label"',
        ),
        (
            b'{"label": 1}\n{"text": "y"}\n',
            "t.jsonl",
            'jsonl, row 1: there is no value in the column "text" .data.text.',
        ),
        (b'{"text": "x", "label": ["a"]}\n', "t.jsonl", "it must be text or a number"),
        (b'{"text": "\\ud800", "label": 1}\n', "t.jsonl", "row 1: the text holds half a character"),
        (b"[" * 100_000, "t.jsonl", "line 1 is not a JSON object"),
        (b"whatever", "t.xlsx", "is no table: its name must end in .csv"),
    ],
)
def test_a_bad_table_is_one_sentence(tmp_path: Path, tokenizer: str, content: bytes, name: str, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TrustmixError, match=sentence):
        load("text", path=tmp_path / name, tokenizer=tokenizer)


def test_blank_lines_do_no_harm_and_own_texts_stay_as_they_are(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "t.csv").write_text("text,label\n" + "the song\\nabla,1\n\na goal,0\n" * 5 + "\n")
    data = load("text", path=tmp_path / "t.csv", classes=[0, 1], tokenizer=tokenizer)
    assert data.class_names == ("0", "1")
    assert len(data.train) + len(data.test) == 10
    (tmp_path / "t.jsonl").write_text('{"text": "goal", "label": 1}\n\n' * 5 + '{"text": "song", "label": null}\n')
    with pytest.raises(TrustmixError, match=r't.jsonl, row 6: there is no value in the column "label"'):
        load("text", path=tmp_path / "t.jsonl", tokenizer=tokenizer)


@pytest.mark.parametrize("label", ["", "[1]"])
def test_a_bad_label_is_named_by_its_file_and_its_row_there(tmp_path: Path, tokenizer: str, label: str) -> None:
    good = '{"text": "goal", "label": 1}\n'
    for name in ("train-0.jsonl", "train-1.jsonl", "test.jsonl"):
        (tmp_path / name).write_text(good * 3)
    (tmp_path / "train-1.jsonl").write_text(good + f'{{"text": "song", "label": {label or "null"}}}\n')
    with pytest.raises(TrustmixError, match=r"train-1.jsonl, row 2: "):
        load("text", path=tmp_path, tokenizer=tokenizer)


def test_a_benchmark_row_without_a_column_is_named_and_the_column_is_not_dropped(
    tmp_path: Path, tokenizer: str
) -> None:
    whole = {"title": "goal", "description": "the match", "label": 0}
    for part in ("train", "test"):
        write(tmp_path / f"{part}.jsonl", [whole, {"title": "goal", "label": 1}])
    with pytest.raises(TrustmixError, match=r'train.jsonl, row 2: there is no value in the column "description"'):
        load("agnews", path=tmp_path, tokenizer=tokenizer)
    write(tmp_path / "train.jsonl", [whole, whole | {"label": "sport"}])
    with pytest.raises(TrustmixError, match=r'train.jsonl, row 2: the label "sport" in column "label" is no number'):
        load("agnews", path=tmp_path, tokenizer=tokenizer)


def test_the_same_table_twice_is_refused(tmp_path: Path, tokenizer: str) -> None:
    for name in ("train.csv", "train.csv.gz", "test.csv"):
        write(tmp_path / "d" / name, rows())
    with pytest.raises(TrustmixError, match=r"train.csv and .*train.csv.gz may be the same table twice"):
        load("text", path=tmp_path / "d", text="q", label="topic", tokenizer=tokenizer)


def test_a_class_that_is_not_there_is_named(tmp_path: Path, tokenizer: str) -> None:
    path = write(tmp_path / "t.csv", rows())
    with pytest.raises(TrustmixError, match=r'data.classes names "sports", but the labels are music, sport'):
        load("text", path=path, text="q", label="topic", classes=["sports"], tokenizer=tokenizer)


def test_a_tokenizer_that_is_not_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = write(tmp_path / "t.csv", rows())
    with pytest.raises(TrustmixError, match=r"data.tokenizer is .*: nothing of that name in .*/none, and it could not"):
        load("text", path=path, text="q", label="topic", tokenizer=str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(TrustmixError, match=r"empty .data.tokenizer. holds no tokenizer of transformers"):
        load("text", path=path, text="q", label="topic", tokenizer=str(tmp_path / "empty"))


def test_what_the_hub_gives_is_kept_as_parquet_and_read_like_any_other(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(hub, "require_repository", lambda *_: None)  # a folder takes the place of the repository
    for part in ("train", "test"):
        write(tmp_path / "hub" / f"{part}.jsonl", [{"text": "song", "label": i % 4} for i in range(8)])
    folder = hub.download_dataset("agnews", str(tmp_path / "hub"))
    assert folder == tmp_path / "cache/trustmix/agnews"
    assert sorted(file.name for file in folder.iterdir()) == ["test.parquet", "train.parquet"]
    data = load("agnews", tokenizer=tokenizer)
    assert data.train.labels.tolist() == [0, 1, 2, 3] * 2
    with pytest.raises(TrustmixError, match="FileNotFoundError"):
        hub.download_dataset("agnews2", str(tmp_path / "no such thing"))
    assert not (tmp_path / "cache/trustmix/agnews2").exists()

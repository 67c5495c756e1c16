"""Texts with labels: Yahoo Answers, AG News and any table of one's own, as token ids.

Ids come from a tokenizer of Hugging Face's (the extra `text`), at most `length` a text, padded with -1 to the longest.
Tokenising is done once: the ids are kept in the cache folder, under a name made from the texts and the tokenizer.
"""

import hashlib
import importlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from trustmix import paths, storage
from trustmix.data.dataset import Dataset, Labelled
from trustmix.data.hub import locate_dataset, resolve_user_path
from trustmix.data.labels import chosen_classes, split_off_test
from trustmix.data.loading import DATASETS
from trustmix.data.tables import Table, column, kind_of, read_table
from trustmix.errors import StorageError, TrustmixError

BERT = "google/bert_uncased_L-2_H-128_A-2"
"""BERT-tiny's name on the hub."""

YAHOO_NAMES = (
    "Society & Culture",
    "Science & Mathematics",
    "Health",
    "Education & Reference",
    "Computers & Internet",
    "Sports",
    "Business & Finance",
    "Entertainment & Music",
    "Family & Relationships",
    "Politics & Government",
)
AGNEWS_NAMES = ("World", "Sports", "Business", "Sci/Tech")


@DATASETS.register("yahoo")
def yahoo(path: Path | None = None, *, tokenizer: str = BERT, length: int = 128) -> Dataset:
    """Yahoo Answers topics (Zhang et al. 2015): question title, content and best answer in one text, ten topics."""
    remedy = "the authors of 'Character-level Convolutional Networks' (yahoo_answers_csv)"
    place = locate_dataset("yahoo", path, "community-datasets/yahoo_answers_topics", remedy)
    header = ("class", "question_title", "question_content", "best_answer")
    return _benchmark("yahoo", place, header, "topic", YAHOO_NAMES, tokenizer, length)


@DATASETS.register("agnews")
def agnews(path: Path | None = None, *, tokenizer: str = BERT, length: int = 128) -> Dataset:
    """AG News (Zhang et al. 2015): title and description of news in four topics."""
    remedy = "the authors of 'Character-level Convolutional Networks' (ag_news_csv)"
    place = locate_dataset("agnews", path, "fancyzhx/ag_news", remedy)
    return _benchmark("agnews", place, ("class", "title", "description"), "label", AGNEWS_NAMES, tokenizer, length)


def _benchmark(
    name: str, place: Path, header: Sequence[str], label: str, names: Sequence[str], tokenizer: str, length: int
) -> Dataset:
    """A data set of Zhang et al.: their csv (no header, classes from 1), or tables with columns (classes from 0)."""
    texts: list[list[str]] = []
    labels: list[list[int]] = []
    for part, files in _parts(place).items():
        if not files:
            raise TrustmixError(f"{place} has no {part}.csv, {part}.jsonl or {part}.parquet.")
        texts.append([])
        labels.append([])
        for file in files:
            table = read_table(file, header if kind_of(file) == ".csv" else None)
            columns = [key for key in header[1:] if key in table] or ["text"]
            key = "class" if "class" in table else label
            first = 1 if key == "class" else 0
            texts[-1] += [one.replace("\\n", " ") for one in _joined(table, columns, file)]  # their new lines
            labels[-1] += [_number(value, file, key) - first for value in column(table, key, file, "the labels")]
    tokens = torch.split(tokenize([*texts[0], *texts[1]], tokenizer, length), [len(part) for part in texts])
    train, test = (Labelled(ids, torch.tensor(wanted)) for ids, wanted in zip(tokens, labels, strict=True))
    return Dataset(name, train, test, tuple(names))


@DATASETS.register("text")
def text(
    path: Path | None = None,
    *,
    text: str | Sequence[str] = "text",
    label: str = "label",
    classes: Sequence[str] | None = None,
    test: float = 0.2,
    tokenizer: str = BERT,
    length: int = 128,
) -> Dataset:
    """Any table with a column of text (or several, joined) and one of labels: a csv, jsonl or parquet file.

    A folder with train.* and test.* brings its own test set; of a single file the part `test` is kept. `classes`
    chooses labels, in that order; "a+b" joins two.
    """
    if path is None:
        raise TrustmixError('The data set "text" needs data.path, a csv, jsonl or parquet file or a folder of them.')
    if not text:
        raise TrustmixError("data.text names no column; name the one that holds the text.")
    place = resolve_user_path(path)
    parts = _parts(place) if place.is_dir() else {"train": [place], "test": []}
    if not parts["train"]:
        raise TrustmixError(f"{place} has no train.csv, train.jsonl or train.parquet.")
    texts: list[str] = []
    values: list[Any] = []
    border = 0
    for files in parts.values():
        border = border or len(values)
        for file in files:
            table = read_table(file)
            texts += _joined(table, [text] if isinstance(text, str) else list(text), file)
            values += column(table, label, file, "data.label")
    border = border if parts["test"] else len(values)
    names, numbers = chosen_classes(values, classes)
    chosen = [index for index, number in enumerate(numbers) if number >= 0]
    labels = torch.tensor([numbers[index] for index in chosen])
    whole = Labelled(tokenize([texts[index] for index in chosen], tokenizer, length), labels)
    if parts["test"]:
        kept = sum(index < border for index in chosen)
        train, held_out = whole[torch.arange(kept)], whole[torch.arange(kept, len(chosen))]
    else:
        train, held_out = split_off_test(whole, len(names), test, place.name)
    return Dataset(place.name, train, held_out, _named(place, names))


def _parts(place: Path) -> dict[str, list[Path]]:
    """The tables of training and of test samples in a folder, several where they are kept in pieces."""
    if not place.is_dir():
        raise TrustmixError(f"{place} is a file; a folder with train and test tables was expected.")
    tables = sorted(file for file in place.rglob("*") if kind_of(file))
    parts = {part: [file for file in tables if file.name.startswith(part)] for part in ("train", "test")}
    for files in parts.values():
        stems = [file.name.partition(".")[0] for file in files]
        twice = [str(file) for file, stem in zip(files, stems, strict=True) if stems.count(stem) > 1]
        if twice:
            raise TrustmixError(f"{' and '.join(twice)} may be the same table twice; leave one.")
    return parts


def _joined(table: Table, columns: Sequence[str], file: Path) -> list[str]:
    """The text columns of each row in one."""
    found = [column(table, name, file, "data.text") for name in columns]
    texts = [" ".join(str(part) for part in row if part is not None) for row in zip(*found, strict=True)]
    for row, text in enumerate(texts, 1):
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise TrustmixError(f"{file}, row {row}: the text holds half a character (a lone surrogate); mend it.")
    return texts


def _number(value: Any, file: Path, name: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise TrustmixError(f'{file}: the label "{value}" in column "{name}" is not a number.') from error


def _named(place: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Labels that are numbers get the names in classes.json or classes.txt beside them, where there is one."""
    folder = place if place.is_dir() else place.parent
    told: list[str] = []
    if (folder / "classes.json").is_file():
        found = storage.read_json(folder / "classes.json")
        told = [str(name) for name in found] if isinstance(found, list) else []
    elif (folder / "classes.txt").is_file():
        told = (folder / "classes.txt").read_text("utf-8", "replace").splitlines()
    if all(name.isdecimal() and int(name) < len(told) for name in names):
        return tuple(told[int(name)] for name in names)
    return tuple(names)


LONGEST = 2**16
"""Tokens of a text at most."""


def tokenize(texts: Sequence[str], tokenizer: str, length: int) -> torch.Tensor:
    """Token ids (n, longest), int16 where the vocabulary allows, padded with -1; from the cache where it has them."""
    if not 3 <= length <= LONGEST:
        raise TrustmixError(f"data.length is {length}; a text is cut to 3 to {LONGEST} tokens.")
    place = paths.find_path(tokenizer)
    if place is not None and not place.is_dir():
        raise TrustmixError(f"data.tokenizer is {place}, a file; name the folder that it lies in.")
    key = hashlib.sha256(json.dumps([tokenizer if place is None else _fingerprint(place), length]).encode())
    for one in texts:
        key.update(one.encode("utf-8", "surrogatepass") + b"\0")
    kept = paths.cache_dir() / "tokens" / f"{key.hexdigest()[:32]}.safetensors"
    with suppress(StorageError, KeyError):  # what is not there, or damaged, is made again
        return storage.read_tensors(kept)[0]["tokens"]
    tokens = _tokenise(texts, tokenizer, length)
    try:
        storage.write_tensors(kept, {"tokens": tokens})
    except StorageError:
        return tokens  # where the cache cannot be written, the next run tokenises again
    return tokens


def _fingerprint(folder: Path) -> Mapping[str, str]:
    """What a tokenizer's folder holds."""
    weights = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx")
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.suffix not in weights)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def decode_tokens(tokens: torch.Tensor, tokenizer: str) -> list[str]:
    """The texts of token ids (n, longest), as far as the tokenizer keeps them."""
    convert = load_tokenizer(tokenizer)
    return [convert.decode([i for i in row if i >= 0], skip_special_tokens=True) for row in tokens.tolist()]


def load_tokenizer(tokenizer: str) -> Any:
    """A tokenizer of Hugging Face's, from a folder or by its name on the hub."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise TrustmixError('Texts need transformers: pip install "trustmix[text]".') from error
    transformers.utils.logging.disable_progress_bar()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # set, so that later worker processes do not warn
    try:
        return transformers.AutoTokenizer.from_pretrained(
            str(paths.find_path(tokenizer) or tokenizer), trust_remote_code=False
        )
    except Exception as error:  # whatever the network or the library says is the reason
        raise TrustmixError(
            f'The tokenizer "{tokenizer}" (data.tokenizer) is neither a folder that was found nor to be had from the '
            f"hub ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})."
        ) from error


def _tokenise(texts: Sequence[str], tokenizer: str, length: int) -> torch.Tensor:
    convert = load_tokenizer(tokenizer)
    ids = convert(list(texts), truncation=True, max_length=length, add_special_tokens=True)["input_ids"]
    small = len(convert) < 2**15
    longest = max(map(len, ids))
    tokens = torch.full((len(ids), longest), -1, dtype=torch.int16 if small else torch.int32)
    for row, own in enumerate(ids):
        tokens[row, : len(own)] = torch.tensor(own, dtype=tokens.dtype)
    return tokens

"""Texts with labels as token ids or as hashed words: Yahoo Answers, AG News and tables of the user.

Ids come from a tokenizer of Hugging Face (the extra `text`), at most `length` per text, padded with -1 to the longest.
Token ids are stored in the cache folder under a hash of the texts and the tokenizer, so that tokenizing is done once.
"""

import hashlib
import inspect
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
from trustmix.data.labels import read_labels, select_classes, split_off_test
from trustmix.data.loading import DATASETS
from trustmix.data.tables import Table, column, read_table, table_format
from trustmix.data.words import WORDS, hash_words
from trustmix.errors import StorageError, TrustmixError
from trustmix.huggingface import download_snapshot
from trustmix.imports import require_extra

DEFAULT_TOKENIZER = "google/bert_uncased_L-2_H-128_A-2"
"""Name of BERT-tiny on the hub."""
TOKENIZER_FILES = ("*.json", "*.txt", "*.model")
"""Files of a repository on the hub that are downloaded."""
PROBES = (
    "The quick brown fox jumps over 13 lazy dogs.",
    "Fièvre à 39,5 °C; patient no. 7",
    "naïve  CAFÉ\tdon't (re-)run",
)
"""Texts on which tokenizers of different versions differ: cases, accents, numbers, marks and spaces."""
MAX_LENGTH = 2**16
"""Largest value of data.length, in tokens."""

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
def yahoo(path: Path | None = None, *, tokenizer: str = DEFAULT_TOKENIZER, length: int = 128) -> Dataset:
    """Read Yahoo Answers topics (Zhang et al. 2015): question title, content and best answer in one text, ten topics.

    Parameters
    ----------
    path
        Folder of the authors' csv files, or of tables with the hub's columns or the columns `text` and `label`; None
        uses the search paths and the hub.
    tokenizer
        Folder of a tokenizer, or its name on the hub.
    length
        Number of tokens to which a text is cut.

    Returns
    -------
    Dataset
        The data set; inputs are token ids (length,), padded with -1.

    Raises
    ------
    TrustmixError
        If the data set or the tokenizer is not found or damaged.
    """
    homepage = "the authors of 'Character-level Convolutional Networks' (yahoo_answers_csv)"
    folder = locate_dataset("yahoo", path, "community-datasets/yahoo_answers_topics", homepage)
    header = ("class", "question_title", "question_content", "best_answer")
    return _read_zhang("yahoo", folder, header, "topic", YAHOO_NAMES, tokenizer, length)


@DATASETS.register("agnews")
def agnews(path: Path | None = None, *, tokenizer: str = DEFAULT_TOKENIZER, length: int = 128) -> Dataset:
    """Read AG News (Zhang et al. 2015): title and description of news in four topics.

    Parameters
    ----------
    path
        Folder of the authors' csv files, or of tables with the hub's columns; None uses the search paths and the hub.
    tokenizer
        Folder of a tokenizer, or its name on the hub.
    length
        Number of tokens to which a text is cut.

    Returns
    -------
    Dataset
        The data set; inputs are token ids (length,), padded with -1.

    Raises
    ------
    TrustmixError
        If the data set or the tokenizer is not found or damaged.
    """
    homepage = "the authors of 'Character-level Convolutional Networks' (ag_news_csv)"
    folder = locate_dataset("agnews", path, "fancyzhx/ag_news", homepage)
    return _read_zhang("agnews", folder, ("class", "title", "description"), "label", AGNEWS_NAMES, tokenizer, length)


def _read_zhang(
    name: str, folder: Path, header: Sequence[str], label: str, names: Sequence[str], tokenizer: str, length: int
) -> Dataset:
    """Read a data set of Zhang et al.: their csv (no header, classes from 1), or tables with columns (from 0)."""
    texts: list[list[str]] = []
    labels: list[list[int]] = []
    for part, files in _find_tables(folder).items():
        if not files:
            raise TrustmixError(f"{folder} has no {part}.csv, {part}.jsonl or {part}.parquet.")
        texts.append([])
        labels.append([])
        for file in files:
            table = read_table(file, header if table_format(file) == ".csv" else None)
            present = {*table, *table.incomplete}
            columns = [key for key in header[1:] if key in present] or ["text"]
            rows = join_columns(table, columns, file, "the texts")
            texts[-1] += [text.replace("\\n", " ") for text in rows]  # how the authors write line breaks
            known = next((key for key in ("class", label) if key in present), "label")
            labels[-1] += _parse_labels(table, known, file)
    tokens = torch.split(tokenize([*texts[0], *texts[1]], tokenizer, length), [len(part) for part in texts])
    train, test = (Labelled(ids, torch.tensor(known)) for ids, known in zip(tokens, labels, strict=True))
    return Dataset(name, train, test, tuple(names))


def _parse_labels(table: Table, name: str, file: Path) -> list[int]:
    """Return the labels as class indices from 0; the column "class" counts from 1."""
    first = 1 if name == "class" else 0
    indices = []
    for row, value in enumerate(read_labels(table, name, file, "the labels"), 1):
        try:
            indices.append(int(value) - first)
        except ValueError as error:
            raise TrustmixError(f'{file}, row {row}: the label "{value}" in column "{name}" is no number.') from error
    return indices


@DATASETS.register("text")
def text(
    path: Path | None = None,
    *,
    text: str | Sequence[str] = "text",
    label: str = "label",
    classes: Sequence[str] | None = None,
    test: float = 0.2,
    tokenizer: str = WORDS,
    length: int = 128,
) -> Dataset:
    """Read a table with a column of text, or several, and a column of labels.

    Parameters
    ----------
    path
        A csv, jsonl or parquet file, or a folder with train.* and optionally test.*. Labels that are numbers get the
        names in classes.json or classes.txt beside the tables, if there is such a file.
    text
        Name of the column of the text, or names of several columns that are joined.
    label
        Name of the column of labels.
    classes
        The classes to keep, in this order; "a+b" makes one class of two. None keeps all.
    test
        Fraction of each class kept for tests, if there is no test.*.
    tokenizer
        "words", which hashes words and needs no files, the folder of a tokenizer, or its name on the hub.
    length
        Number of tokens to which a text is cut; hashed words are not cut.

    Returns
    -------
    Dataset
        The data set; inputs are hashed words (`WORD_FEATURES`,) of float32, or token ids (length,), padded with -1.

    Raises
    ------
    TrustmixError
        If a table cannot be read, a column is missing, or the tokenizer is not found.
    """
    place = resolve_user_path(path, "text", "a csv, jsonl or parquet file or a folder of them")
    if not text:
        raise TrustmixError("data.text names no column; name the one that holds the text.")
    parts = _find_tables(place) if place.is_dir() else {"train": [place], "test": []}
    if not parts["train"]:
        raise TrustmixError(f"{place} has no train.csv, train.jsonl or train.parquet.")
    texts: list[str] = []
    labels: list[Any] = []
    rows: dict[str, int] = {}
    for part, files in parts.items():
        for file in files:
            table = read_table(file)
            texts += join_columns(table, [text] if isinstance(text, str) else text, file, "data.text")
            labels += read_labels(table, label, file, "data.label")
        rows[part] = len(labels)
    names, indices = select_classes(labels, classes)
    kept = [row for row, index in enumerate(indices) if index >= 0]
    tokens = tokenize([texts[row] for row in kept], tokenizer, length)
    samples = Labelled(tokens, torch.tensor([indices[row] for row in kept]))
    if parts["test"]:
        count = sum(row < rows["train"] for row in kept)
        train, held_out = samples[torch.arange(count)], samples[torch.arange(count, len(kept))]
    else:
        train, held_out = split_off_test(samples, len(names), test, place.name)
    return Dataset(place.name, train, held_out, _read_class_names(place, names))


def _find_tables(folder: Path) -> dict[str, list[Path]]:
    """Return the tables of training and of test samples in a folder; each may consist of several files."""
    if not folder.is_dir():
        raise TrustmixError(f"{folder} is a file; a folder with train and test tables was expected.")
    tables = sorted(file for file in folder.rglob("*") if table_format(file))
    parts = {part: [file for file in tables if file.name.startswith(part)] for part in ("train", "test")}
    for files in parts.values():
        stems = [file.name.partition(".")[0] for file in files]
        twice = [str(file) for file, stem in zip(files, stems, strict=True) if stems.count(stem) > 1]
        if twice:
            raise TrustmixError(f"{' and '.join(twice)} may be the same table twice; leave one.")
    return parts


def join_columns(table: Table, columns: Sequence[str], path: Path, setting: str) -> list[str]:
    """Join the text columns of each row.

    Parameters
    ----------
    table
        The table.
    columns
        Names of the columns.
    path
        The file of the table, for messages.
    setting
        The setting that names the columns, for messages.

    Returns
    -------
    list of str
        The text of each row; missing values are left out.

    Raises
    ------
    TrustmixError
        If a column is missing, or a text is not valid Unicode.

    Examples
    --------
    >>> join_columns(Table({"title": ["Tea"], "body": ["is hot"]}), ["title", "body"], Path("t.csv"), "data.text")
    ['Tea is hot']
    """
    values = [column(table, name, path, setting) for name in columns]
    texts = [" ".join(str(part) for part in row if part is not None) for row in zip(*values, strict=True)]
    for row, text in enumerate(texts, 1):
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise TrustmixError(f"{path}, row {row}: the text holds half a character (a lone surrogate); mend it.")
    return texts


def _read_class_names(place: Path, labels: Sequence[str]) -> tuple[str, ...]:
    """Return the names of labels that are numbers from classes.json or classes.txt, or the labels themselves."""
    folder = place if place.is_dir() else place.parent
    names: list[str] = []
    if (folder / "classes.json").is_file():
        found = storage.read_json(folder / "classes.json")
        names = [str(name) for name in found] if isinstance(found, list) else []
    elif (folder / "classes.txt").is_file():
        names = (folder / "classes.txt").read_text("utf-8", "replace").splitlines()
    if all(label.isdecimal() and int(label) < len(names) for label in labels):
        return tuple(names[int(label)] for label in labels)
    return tuple(labels)


def tokenize(texts: Sequence[str], tokenizer: str, length: int) -> torch.Tensor:
    """Convert texts to hashed words, or to token ids, which are read from the cache if they are there.

    Parameters
    ----------
    texts
        The texts (n).
    tokenizer
        "words", the folder of a tokenizer, or its name on the hub.
    length
        Number of tokens to which a text is cut, from 3 to `MAX_LENGTH`.

    Returns
    -------
    torch.Tensor
        Hashed words (n, `WORD_FEATURES`) of float32, or token ids (n, longest), padded with -1; int16 if the vocabulary
        allows it, else int32.

    Raises
    ------
    TrustmixError
        If the length is out of range, or the tokenizer is not found.
    """
    if not 3 <= length <= MAX_LENGTH:
        raise TrustmixError(f"data.length is {length}; a text is cut to 3 to {MAX_LENGTH} tokens.")
    if tokenizer == WORDS:
        return hash_words(texts)
    folder = paths.find_path(tokenizer)
    if folder is not None and not folder.is_dir():
        raise TrustmixError(f"data.tokenizer is {folder}, a file; name the folder that it lies in.")
    key = hashlib.sha256(json.dumps([tokenizer if folder is None else _hash_files(folder), length]).encode())
    for text in texts:
        key.update(text.encode("utf-8", "surrogatepass") + b"\0")
    cached = paths.cache_dir() / "tokens" / f"{key.hexdigest()[:32]}.safetensors"
    with suppress(StorageError, KeyError):  # a missing or damaged file is written again
        return storage.read_tensors(cached)[0]["tokens"]
    tokens = _run_tokenizer(texts, tokenizer, length)
    with suppress(StorageError):  # without a cache, the next run tokenizes again
        storage.write_tensors(cached, {"tokens": tokens})
    return tokens


def tokenizer_fingerprint(tokenizer: str) -> str:
    """A text by which two machines find out whether their tokenizers turn texts into the same numbers.

    Parameters
    ----------
    tokenizer
        "words", the folder of a tokenizer, or its name on the hub.

    Returns
    -------
    str
        A hash of the vocabulary and of the numbers that some texts become.

    Raises
    ------
    TrustmixError
        If the tokenizer is not found.

    Examples
    --------
    >>> len(tokenizer_fingerprint("words"))
    16
    """
    vocabulary = [] if tokenizer == WORDS else sorted(load_tokenizer(tokenizer).get_vocab().items())
    numbers = (hash_words if tokenizer == WORDS else lambda texts: _run_tokenizer(texts, tokenizer, 128))(PROBES)
    return hashlib.sha256(json.dumps([vocabulary, numbers.tolist()]).encode()).hexdigest()[:16]


def default_tokenizer(name: str | None) -> str | None:
    """Return the tokenizer of a data set whose recipe names none.

    Parameters
    ----------
    name
        The data set's name.

    Returns
    -------
    str or None
        None for a data set without texts.

    Examples
    --------
    >>> default_tokenizer("text"), default_tokenizer("digits")
    ('words', None)
    """
    if name is None or name not in DATASETS:
        return None
    parameter = inspect.signature(DATASETS.get(name)).parameters.get("tokenizer")
    return None if parameter is None else str(parameter.default)


def _hash_files(folder: Path) -> Mapping[str, str]:
    """Return a hash of each file of a tokenizer's folder, weights left out."""
    weights = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx")
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.suffix not in weights)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _run_tokenizer(texts: Sequence[str], tokenizer: str, length: int) -> torch.Tensor:
    convert = load_tokenizer(tokenizer)
    ids = convert(list(texts), truncation=True, max_length=length, add_special_tokens=True)["input_ids"]
    small = len(convert) < 2**15
    longest = max(map(len, ids))
    tokens = torch.full((len(ids), longest), -1, dtype=torch.int16 if small else torch.int32)
    for row, own in enumerate(ids):
        tokens[row, : len(own)] = torch.tensor(own, dtype=tokens.dtype)
    return tokens


def decode_tokens(tokens: torch.Tensor, tokenizer: str) -> list[str]:
    """Convert token ids to texts, as far as the tokenizer keeps them.

    Parameters
    ----------
    tokens
        Token ids (n, longest), padded with -1.
    tokenizer
        Folder of the tokenizer, or its name on the hub.

    Returns
    -------
    list of str
        The text of each row, without special tokens.

    Raises
    ------
    TrustmixError
        If the tokenizer is not found.
    """
    convert = load_tokenizer(tokenizer)
    return [convert.decode([i for i in row if i >= 0], skip_special_tokens=True) for row in tokens.tolist()]


def load_tokenizer(tokenizer: str) -> Any:
    """Load a tokenizer of Hugging Face.

    Parameters
    ----------
    tokenizer
        Folder of the tokenizer, or its name on the hub.

    Returns
    -------
    transformers.PreTrainedTokenizerBase
        The tokenizer.

    Raises
    ------
    TrustmixError
        If transformers is not installed, or the tokenizer is not found or damaged.
    """
    transformers = require_extra("transformers", "The tokenizer of texts", "text")
    transformers.utils.logging.disable_progress_bar()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # set, so that later worker processes do not warn
    folder = paths.find_path(tokenizer) or _download_tokenizer(tokenizer)
    try:
        return transformers.AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # a folder that is no tokenizer may raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TrustmixError(f"{folder} (data.tokenizer) holds no tokenizer of transformers ({reason}).") from error


def _download_tokenizer(tokenizer: str) -> Path:
    """Return the folder of a tokenizer on the hub."""
    try:
        return download_snapshot(tokenizer, TOKENIZER_FILES, required=("tokenizer*.json", "vocab.*", "*.model"))
    except TrustmixError as error:
        searched = ", ".join(map(str, paths.search_paths(tokenizer)))
        raise TrustmixError(
            f'data.tokenizer is "{tokenizer}": nothing of that name in {searched}, and it could not be fetched from '
            f"the hub ({error})."
        ) from error

"""Files from the hub: the cache is used without any request, and without a network the first request is the last."""

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import huggingface_hub.errors
import pytest

from trustmix import TrustmixError
from trustmix.data import load
from trustmix.data.text import load_tokenizer
from trustmix.huggingface import download_snapshot
from trustmix.models import bert_tiny, encoder, resnet18

NAME = "an-owner/a-model"


@pytest.fixture
def lookups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A machine without a network and with an empty cache: the hosts that were looked up; waiting is an error."""
    found: list[Any] = []

    def no_network(host: Any, *_: Any, **__: Any) -> None:
        found.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def no_waiting(seconds: float) -> None:
        raise AssertionError(f"a request is repeated after {seconds} s")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(time, "sleep", no_waiting)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TRUSTMIX_DATA", raising=False)
    return found


def cache_file(cache: Path, name: str, text: str, owner_and_name: str = NAME) -> None:
    """Put a file of the repository into the cache as huggingface_hub does."""
    repository = cache / f"models--{owner_and_name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text("0" * 40)
    (repository / "snapshots" / ("0" * 40)).mkdir(parents=True, exist_ok=True)
    (repository / "snapshots" / ("0" * 40) / name).write_text(text)


WEIGHTS = f'model.weights is "{NAME}": nothing of that name in'


@pytest.mark.parametrize(
    ("get", "sentence"),
    [
        (lambda: load_tokenizer(NAME), f'data.tokenizer is "{NAME}": nothing of that name in'),
        (lambda: resnet18((3, 32, 32), 10, weights=NAME), WEIGHTS),
        (lambda: bert_tiny((8,), 3, weights=NAME), WEIGHTS),
        (lambda: encoder((8,), 3, weights=NAME), WEIGHTS),
        (lambda: load("cifar10"), 'The data set "cifar10" was not found in'),
        (lambda: load("agnews"), 'The data set "agnews" was not found in'),
    ],
)
def test_without_a_network_the_first_request_fails_and_is_not_repeated(
    lookups: list[Any], get: Callable[[], Any], sentence: str
) -> None:
    with pytest.raises(TrustmixError, match=rf"{sentence}.*\(the hub cannot be reached: .*Name or service not known\)"):
        get()
    assert len(lookups) in (1, 2)  # once in a process, huggingface_hub asks for something of its own


def test_offline_mode_makes_no_request_and_is_named(lookups: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(TrustmixError, match=r"could not be fetched from the hub \(HF_HUB_OFFLINE is set\)"):
        load_tokenizer(NAME)
    assert lookups == []


def test_cached_files_are_used_without_any_request(lookups: list[Any], tmp_path: Path) -> None:
    cache_file(tmp_path / "hub", "config.json", json.dumps({"model_type": "bert", "vocab_size": 6}))
    cache_file(tmp_path / "hub", "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nsong\n")
    assert load_tokenizer(NAME)("song")["input_ids"] == [2, 5, 3]
    assert lookups == []


def test_the_name_that_recipes_have_for_bert_tiny_is_its_repository(lookups: list[Any], tmp_path: Path) -> None:
    google = "google/bert_uncased_L-2_H-128_A-2"
    cache_file(tmp_path / "hub", "config.json", json.dumps({"model_type": "bert", "vocab_size": 6}), google)
    cache_file(tmp_path / "hub", "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nsong\n", google)
    assert load_tokenizer("bert_tiny")("song")["input_ids"] == [2, 5, 3]
    assert lookups == []


def test_a_cache_without_the_files_that_are_needed_is_not_used(lookups: list[Any], tmp_path: Path) -> None:
    cache_file(tmp_path / "hub", "config.json", "{}")
    with pytest.raises(TrustmixError, match="the hub cannot be reached"):
        resnet18((3, 32, 32), 10, weights=NAME)
    assert lookups


@pytest.mark.parametrize(("names", "error"), [(["vocab.txt"], None), ([], "the repository has none of the files")])
def test_files_that_are_not_cached_are_downloaded(
    lookups: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], error: str | None
) -> None:
    def snapshot_download(_: str, *, local_files_only: bool = False, **__: Any) -> str:
        if local_files_only:
            raise huggingface_hub.errors.LocalEntryNotFoundError("nothing is cached")
        for name in names:
            (tmp_path / name).touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", lambda *_, **__: None)
    if error is None:
        assert download_snapshot(NAME, ["*.txt"], required=["vocab.*"]) == tmp_path
    else:
        with pytest.raises(TrustmixError, match=error):
            download_snapshot(NAME, ["*.txt"], required=["vocab.*"])


@pytest.mark.parametrize("name", ["/an/absolute/path", "a/b/c", "spaces in it"])
def test_a_name_that_cannot_be_on_the_hub_makes_no_request(lookups: list[Any], name: str) -> None:
    with pytest.raises(TrustmixError, match="no repository of that name"):
        download_snapshot(name, ["*"], required=["*"])
    assert lookups == []

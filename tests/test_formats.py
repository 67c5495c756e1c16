"""Every record has a version: additions are tolerated, a newer format is refused, old files without one are read."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import trustmix as tm
from trustmix import Checkpoint, Round, StorageError, storage
from trustmix.callbacks.trust_log import RoundTrust
from trustmix.experiment.run_directory import RunDirectory
from trustmix.experiment.saved_models import read_inputs
from trustmix.federation.state import ServerState
from trustmix.report.load import load_study
from trustmix.report.trust_map import build_trust_data
from trustmix.sweeps.sweep import read_sweep_recipes
from trustmix.theory.measurement import read_measurements

SMALL = ["clients=5", "rounds=1", "split.samples_per_client=40", "public.samples=100", "theory.every=1"]
RUN = Path("rule=suwa", "seed-0")
FIRST = RUN / "trust" / "000001.safetensors"
READERS: dict[Path, Callable[[Path], object]] = {
    RUN / "rounds.jsonl": lambda folder: RunDirectory(folder / RUN).rounds(),
    RUN / "summary.json": lambda folder: RunDirectory(folder / RUN).summary(),
    RUN / "checkpoint" / "server.json": lambda folder: RunDirectory(folder / RUN).checkpoint.load(),
    RUN / "theory.jsonl": lambda folder: read_measurements(folder / RUN),
    RUN / "models" / "inputs.json": lambda folder: read_inputs(folder / RUN),
    FIRST: lambda folder: str(RoundTrust.load(folder / FIRST)),  # as text, since tensors do not compare as a whole
    RUN / "trust" / "samples.safetensors": lambda folder: build_trust_data(load_study([folder / RUN])),
    Path("sweep.json"): read_sweep_recipes,
}

of_every_format = pytest.mark.parametrize("file", READERS, ids=lambda file: file.name)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of one run, which writes a file of every format."""
    folder = tmp_path_factory.mktemp("formats") / "sweep"
    sequential = ["engine.mode=sequential", "engine.precision=float32"]
    assert not tm.sweep("demo", {"rule": ["suwa"]}, 1, folder, [*SMALL, *sequential]).failed
    return folder


@pytest.fixture
def folder(swept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(swept, tmp_path / "sweep"))


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change every record in the file in place."""
    if file.suffix == ".safetensors":
        tensors, record = storage.read_tensors(file)
        change(record)
        storage.write_tensors(file, tensors, record)
        return
    texts = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    records = [json.loads(text) for text in texts]
    for record in records:
        change(record)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


@of_every_format
def test_what_is_written_has_a_version(folder: Path, file: Path) -> None:
    def check(record: dict[str, Any]) -> None:
        assert record["format"] == 1

    edit(folder / file, check)


@of_every_format
def test_a_record_without_a_version_is_read_as_version_1(folder: Path, file: Path) -> None:
    before = READERS[file](folder)
    edit(folder / file, lambda record: record.pop("format"))
    assert READERS[file](folder) == before


@of_every_format
def test_a_field_that_a_newer_trustmix_has_added_is_tolerated(folder: Path, file: Path) -> None:
    before = READERS[file](folder)
    edit(folder / file, lambda record: record.update(temperature={"unit": "kelvin"}))
    after = READERS[file](folder)
    assert after == (before if file.name != "summary.json" else {**before, "temperature": {"unit": "kelvin"}})  # type: ignore[dict-item]


@of_every_format
@pytest.mark.parametrize("version", [2, 0, "1", None, True])
def test_another_format_is_refused_in_a_sentence_that_names_file_and_versions(
    folder: Path, file: Path, version: object
) -> None:
    edit(folder / file, lambda record: record.update(format=version))
    with pytest.raises(StorageError) as refused:
        READERS[file](folder)
    line = ", line 1" if file.suffix == ".jsonl" else ""
    assert str(refused.value) == (
        f"{folder / file}{line} has format {version!r}; this version of trustmix reads format 1: upgrade it."
    )


@pytest.mark.parametrize("name", ["rounds.jsonl", "theory.jsonl", "trust/000001.safetensors"])
def test_a_record_that_lacks_what_it_needs_is_refused(folder: Path, name: str) -> None:
    edit(folder / RUN / name, lambda record: record.pop("round"))
    with pytest.raises(StorageError, match=r"is no record of a \w+; it lacks round\."):
        READERS[RUN / name](folder)


@pytest.mark.parametrize("name", ["rounds.jsonl", "theory.jsonl", "summary.json", "models/inputs.json"])
def test_a_record_that_is_no_object_is_refused(folder: Path, name: str) -> None:
    (folder / RUN / name).write_text("[1, 2]\n")
    with pytest.raises(StorageError, match=r"holds \[1, 2\] where an object with named fields belongs"):
        READERS[RUN / name](folder)


def test_a_round_that_a_newer_trustmix_left_half_done_can_be_completed(tmp_path: Path) -> None:
    half = Round(3, "suwa", bytes_up=7)
    Checkpoint(tmp_path).commit(ServerState(3, b"teacher", asdict(half)))
    edit(tmp_path / "server.json", lambda record: record["pending"].update(temperature=300))
    assert Round(**(Checkpoint(tmp_path).load().pending or {})) == half


def test_a_round_of_an_older_trustmix_has_no_agreement(folder: Path) -> None:
    edit(folder / RUN / "rounds.jsonl", lambda record: [record.pop(name) for name in ("agreement", "agreement_mean")])
    (line,) = RunDirectory(folder / RUN).rounds()
    assert (line.agreement, line.agreement_mean) == ({}, None)
    assert load_study([folder / RUN]).runs[0].last_round == line

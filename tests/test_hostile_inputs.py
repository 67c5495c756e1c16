"""Whatever a user or an attacker puts into a file or a command line ends in exit code 0 or 2, with one sentence."""

import gzip
import json
import os
import shutil
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from benchmarks.fuzz import QUICK, ROOMS, TEXTS, VALUES, case_names, fuzz, run_command

import trustmix as tm
from trustmix.data.unpacking import memory_limit, read_unpacked

LONG = "9" * 5000
SETS = [part for setting in QUICK for part in ("--set", setting)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "run"
    tm.run(tm.Recipe.load("demo", [*QUICK, "rounds=2"]), out=folder)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a finished run, in the working directory."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished, tmp_path / "run")).relative_to(tmp_path)


def end(*command: str, codes: Sequence[int] = (2,), reason: str = "") -> None:
    code, text = run_command(command)
    assert code in codes, (command, code, text)
    assert reason in text, (command, text)


@pytest.mark.parametrize(
    "setting",
    [
        *(f"{name}={LONG}" for name in ("rounds", "seed", "train.lr", "train.batch", "data.path", "format")),
        *(f"{name}={'9' * 4000}" for name in ("rounds", "seed", "split.seed", "train.batch", "train.lr")),
        *(f"model.hidden=[{number}]" for number in (LONG, "9" * 4000, "9" * 15, "-1", "0", "nan")),
        *("rounds=0x" + "f" * 5000, "seed=0x" + "f" * 5000, "clients=1000001", "clients=999999999"),
        *("rule=" + "[" * 5000, "rule=" + "{a=" * 3000, "a" * 100_000 + "=1", "a." * 2000 + "b=1"),
        *("data.path=/dev/null", "data.name=npz", ".=1", "..=1", "=", "rule=\x00", "rule=\ud800", "rule=\udce9"),
        *("rule.tau=nan", "train.lr=inf", "split=3", "split.kind.deeper=3", "model=[]", "model=3"),
    ],
    ids=lambda text: ascii(text[:24]),
)
def test_a_setting_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.chdir(tmp_path)
    end("run", "demo", "--set", setting, "--out", "out")


@pytest.mark.parametrize(
    "text",
    [
        *(f"rounds = {LONG}", "rounds = 0x" + "f" * 5000, "a = " + "[" * 5000, "a." * 3000 + "b = 1"),
        *("seed = 1e400", "\x00", "rounds = 2026-01-01", "rounds = 99999-01-01", "seed = 00:00:61", ""),
    ],
    ids=lambda text: ascii(text[:16]),
)
def test_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(text)
    end("run", "mine.toml")
    end("check", "mine.toml")


@pytest.mark.parametrize(
    "name",
    ["/dev/null", "/dev/zero", "pipe", "folder", "loop", "a" * 5000, "~nobody-here/x", "/proc/self/mem"],
    ids=lambda text: ascii(text[:16]),
)
def test_a_name_of_something_that_is_no_file(run: Path, name: str) -> None:
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    for command in ("run", "plan", "check", "report", "theory", "audit", "mix"):
        end(command, name)
    end("predict", str(run), name)
    end("predict", name, "digits")


@pytest.mark.parametrize("suffix", ["csv", "npz", "jsonl", "parquet", "csv.gz", "png"])
@pytest.mark.parametrize("kind", ["null", "pipe", "folder", "empty"])
def test_a_data_file_that_is_no_regular_file(run: Path, kind: str, suffix: str) -> None:
    file = Path(f"x.{suffix}")
    if kind == "null":
        file.symlink_to("/dev/null")
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.touch()
    name = {"npz": "npz", "png": "images"}.get(suffix, "table")
    end("run", "demo", "--set", f"data.name={name}", "--set", f"data.path={file}")
    end("mix", str(file))
    end("predict", str(run), str(file))
    Path("node.toml").write_text(f'id = "north"\ndata = "{file}"\n')
    end("check", "node.toml")


def test_a_field_of_a_round_is_of_its_type_or_the_line_is_refused(run: Path) -> None:
    line = json.loads((run / "rounds.jsonl").read_text().splitlines()[0])
    numbers = [name for name, value in line.items() if isinstance(value, float)]
    for field in line:
        for value in VALUES:
            with suppress(tm.StorageError):
                tm.Round.from_json(json.dumps(line | {field: "HERE"}).replace('"HERE"', value))
    for field in numbers:
        for value in ("NaN", "Infinity", "1e400", '"text"', "true", "[]"):
            with pytest.raises(tm.StorageError, match=field):
                tm.Round.from_json(json.dumps(line | {field: "HERE"}).replace('"HERE"', value), "rounds.jsonl, line 1")


@pytest.mark.parametrize("name", ["rounds.jsonl", "models/inputs.json", "summary.json", "checkpoint/server.json"])
@pytest.mark.parametrize("value", ["NaN", '"text"', "[]", LONG], ids=lambda text: text[:8])
def test_a_record_with_hostile_values(run: Path, name: str, value: str) -> None:
    if name.startswith("checkpoint"):
        (run / "summary.json").unlink()
    fields = json.loads((run / name).read_text().splitlines()[0]) if name.endswith("l") else read(run / name)
    for field in fields:
        (run / name).write_text(json.dumps(fields | {field: "HERE"}).replace('"HERE"', value) + "\n")
        end("report", str(run), codes=(0, 2))
        end("predict", str(run), "digits", codes=(0, 2))
        end("run", f"{run}/recipe.toml", "--out", str(run), "--resume", "--quiet", codes=(0, 2))


def read(file: Path) -> dict[str, object]:
    fields: dict[str, object] = json.loads(file.read_text())
    return fields


@pytest.mark.parametrize(
    "client", ["../x", "../../x", "", ".", "-1", "99", "\x00", "0/../1", "student", "\u0663", "00", "x"]
)
def test_a_name_of_a_client_is_no_path(run: Path, client: str) -> None:
    for place in (run / "x.safetensors", Path("x.safetensors")):
        shutil.copy(run / "models" / "0.safetensors", place)
    end("predict", str(run), "digits", f"--client={client}", reason="has no model of client")


def test_two_hundred_thousand_columns_are_read_in_seconds(run: Path) -> None:
    names = ",".join(f"c{i}" for i in range(200_000))
    Path("wide.csv").write_text(names + "\n" + ",".join(["0.000005"] * 200_000) + "\n")
    end("mix", "wide.csv", codes=(0,))
    end("run", "demo", "--set", "data.name=table", "--set", "data.path=wide.csv", reason='no column "label"')
    Path("twice.csv").write_text(f"{names},c7\n")
    end("mix", "twice.csv", reason='has the column "c7" twice')


@pytest.mark.parametrize("suffix", ["csv.gz", "jsonl.gz"])
def test_a_bomb_in_a_compressed_table_is_not_unpacked(run: Path, suffix: str) -> None:
    with gzip.open(f"bomb.{suffix}", "wb", 1) as packed:
        for _ in range(80):
            packed.write(bytes(2**20))
    end("run", "demo", "--set", "data.name=table", "--set", f"data.path=bomb.{suffix}", reason="would unpack to more")


def test_a_table_that_is_honestly_compressed_is_read(tmp_path: Path) -> None:
    content = b"a,b\n" + b"1,2\n" * 10_000_000
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(content[:30_000_000], 1))
    assert len(read_unpacked(tmp_path / "a.csv.gz")) == 30_000_000
    assert memory_limit() > 0


def write_zeros(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], megabytes: int) -> None:
    """An array of float64 that claims a shape, whatever it holds."""
    header = repr({"descr": "<f8", "fortran_order": False, "shape": shape}).encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    with archive.open(name, "w", force_zip64=True) as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        for _ in range(megabytes):
            file.write(bytes(2**20))


@pytest.mark.parametrize("shape", [(2**45, 1), (2**62, 4), (-1,), (2**27,), (2**70,)])
def test_an_array_that_claims_more_than_it_holds(run: Path, shape: tuple[int, ...]) -> None:
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("predictions.npy", "x.npy", "x_train.npy"):
            write_zeros(archive, name, shape, 0)
    end("mix", "bomb.npz")
    end("predict", str(run), "bomb.npz")


def test_a_bomb_in_an_npz_file_is_refused_before_it_is_unpacked(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        write_zeros(archive, "predictions.npy", (2**22, 2), 64)
    monkeypatch.setattr("trustmix.data.unpacking.memory_limit", lambda: 2**25)
    end("mix", "bomb.npz", reason="would unpack to")


def test_nothing_is_written_through_a_link_that_has_the_name_of_a_temporary_file(run: Path) -> None:
    Path("mine.txt").write_text("mine")
    Path("new").mkdir()
    for name in ("run/recipe.toml", "run/report.html", "teacher.npz", "new/recipe.toml", "new/report.html"):
        Path(f"{name}.tmp").symlink_to(Path("mine.txt").absolute())
    np.savez("a.npz", predictions=np.array([[0.5, 0.5]]))
    end("mix", "a.npz", codes=(0,))
    end("run", "demo", *SETS, "--out", "new", codes=(0,))
    end("report", str(run), "--out", "run/report.html", codes=(0,))
    assert Path("mine.txt").read_text() == "mine"
    assert not Path("new", "recipe.toml").is_symlink()


def test_stray_files_and_folders_in_a_run_directory(run: Path) -> None:
    states = run / "checkpoint" / "clients"
    (run / "summary.json").unlink()
    (states / "notes.txt").write_text("mine")
    shutil.copytree(states / "0", states / "stranger")
    (states / "0" / "folder.safetensors").mkdir()
    (run / "models" / "stranger").mkdir()
    (run / "models" / "x.safetensors").write_text("")
    end("run", f"{run}/recipe.toml", "--out", str(run), "--resume", codes=(0,))
    assert not (run / "models" / "stranger.safetensors").exists(), "what is not of the run becomes no model of it"
    assert (states / "notes.txt").read_text() == "mine"
    end("report", str(run), codes=(0,))
    end("audit", str(run), codes=(0,))


def test_a_small_seeded_run_of_the_fuzzer_finds_no_fault(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")
    found = fuzz(case_names(2026, None, 6), tmp_path)
    assert found.faults == {}
    assert set(found.cases.values()) == {6}
    assert set(found.cases) == set(ROOMS)
    assert len(TEXTS) > 50


def test_a_part_of_an_npz_file_that_is_no_array(run: Path) -> None:
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.writestr("predictions.npy", b"no array")
        archive.writestr("notes.txt", b"no array")
    end("mix", "a.npz", reason="is no array")


def test_a_recipe_of_a_run_that_is_a_pipe(run: Path) -> None:
    (run / "recipe.toml").unlink()
    os.mkfifo(run / "recipe.toml")
    end("report", str(run), reason="is not a TOML file")

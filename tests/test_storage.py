"""Files: whole or not at all, and never executed."""

import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from trustmix import Checkpoint, StorageError, TrustmixError
from trustmix.storage import (
    lock_directory,
    make_private_directory,
    read_bytes,
    read_json,
    read_tensors,
    write_bytes,
    write_json,
    write_tensors,
)


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file where a folder should be")
    with pytest.raises(StorageError, match=r"Could not write .*/folder/x: (File exists|Not a directory)"):
        write_bytes(tmp_path / "folder" / "x", b"data")
    (tmp_path / "taken").mkdir()
    with pytest.raises(StorageError, match="Is a directory"):
        write_bytes(tmp_path / "taken", b"data")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "taken"]


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"Could not read .*missing: No such file"):
        read_bytes(tmp_path / "missing")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(StorageError, match=r"bad\.json is not valid JSON"):
        read_json(tmp_path / "bad.json")
    write_tensors(tmp_path / "good.safetensors", {"a": torch.arange(9.0)})
    whole = (tmp_path / "good.safetensors").read_bytes()
    for cut in (0, 5, 30, len(whole) - 1):
        (tmp_path / "cut.safetensors").write_bytes(whole[:cut])
        with pytest.raises(StorageError, match=r"cut\.safetensors is not a whole safetensors file"):
            read_tensors(tmp_path / "cut.safetensors")


def test_tied_weights_are_saved_like_any_others(tmp_path: Path) -> None:
    weight = torch.arange(4.0)
    write_tensors(tmp_path / "tied.safetensors", {"in": weight, "out": weight})
    tensors, _ = read_tensors(tmp_path / "tied.safetensors")
    assert tensors["in"].tolist() == tensors["out"].tolist() == [0, 1, 2, 3]


def test_a_foreign_file_in_the_checkpoints_place_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "server.json", {"something": "else"})
    with pytest.raises(StorageError, match="not a checkpoint of trustmix"):
        Checkpoint(tmp_path).load()


def test_a_folder_is_held_by_one_and_others_are_refused_or_wait(tmp_path: Path) -> None:
    folder, order = tmp_path / "new", list[str]()

    def later() -> None:
        with lock_directory(folder, wait=True):
            order.append("second")

    with lock_directory(folder):
        with pytest.raises(TrustmixError, match="Another process is running in"), lock_directory(folder):
            order.append("never")
        second = threading.Thread(target=later)
        second.start()
        second.join(0.1)
        order.append("first")
    second.join()
    assert order == ["first", "second"]


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    hold = (
        "import sys, time\nfrom pathlib import Path\nfrom trustmix.storage import lock_directory\n"
        "with lock_directory(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(TrustmixError, match="Another process is running in"), lock_directory(tmp_path):
            pass
        holder.kill()
    with lock_directory(tmp_path):
        pass


def test_a_directory_that_cannot_be_made_or_locked_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file where a folder should be")
    with pytest.raises(StorageError, match=r"Could not make the directory .*file"), lock_directory(tmp_path / "file"):
        pass
    (tmp_path / "folder" / ".lock").mkdir(parents=True)
    with (
        pytest.raises(StorageError, match="Could not lock the directory"),
        lock_directory(tmp_path / "folder"),
    ):
        pass


def test_a_private_directory_is_closed_to_others_even_if_it_was_open_before(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "state"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    make_private_directory(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Could not make the directory"):
        make_private_directory(tmp_path / "file")

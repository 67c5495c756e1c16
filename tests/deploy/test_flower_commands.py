"""`flwr run` of the app folder, in a simulation and in a deployment, gives the numbers of `trustmix run`."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from benchmarks.deployment import FlowerCommands

import trustmix as tm
from trustmix.deploy.superlink import app_folder
from trustmix.experiment.run_directory import RunDirectory
from trustmix.transport.flower_processes import flower_env

pytestmark = pytest.mark.slow

TIMEOUT = 600
SETTINGS = ["clients=2", "rounds=2", "split.classes_per_client=5"]


def assert_numbers_of_one_machine(out: Path, printed: str) -> None:
    assert (out / "summary.json").exists(), printed
    local = tm.run(tm.Recipe.load("demo", [*SETTINGS, "engine.mode=sequential"]))
    ours = RunDirectory(out).rounds()
    assert [line.accuracy for line in ours] == [pytest.approx(line.accuracy) for line in local.rounds]
    assert [line.teacher_accuracy for line in ours] == pytest.approx([line.teacher_accuracy for line in local.rounds])


def namespace() -> list[str]:
    """The command that starts another one in namespaces: no network but loopback, and no process outlives it."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'trustmix[ray]'")
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("no unshare and ip on this machine: apt-get install util-linux iproute2")
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    found = ["unshare", *user, "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    made = subprocess.run([*found, "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
    return [*found, "bash", "-c", 'ip link set lo up && "$@"', "bash"]


def test_flwr_run_simulates_the_clients_by_their_partition_id(tmp_path: Path) -> None:
    config = f"""settings="{" ".join(SETTINGS)}" out="{tmp_path / "run"}" """
    command = [str(Path(sys.executable).with_name("flwr")), "run", str(app_folder()), "local", "--stream"]
    command += ["--run-config", config, "--federation-config", "num-supernodes=2 client-resources-num-cpus=1"]
    removed = ("RAY_", "PYTEST_XDIST", "PYTEST_CURRENT")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(removed)}
    environment |= {**flower_env(tmp_path), "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        [*namespace(), *command], env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=TIMEOUT
    )
    assert_numbers_of_one_machine(tmp_path / "run", done.stdout + done.stderr)
    for client in "01":
        assert (tmp_path / "run.flower" / "nodes" / f"{client}-model" / "card.json").exists()


def test_flwr_run_deploys_to_a_superlink_and_supernodes_with_keys(tmp_path: Path) -> None:
    flower = FlowerCommands(tmp_path, ["0", "1"])
    try:
        (tmp_path / "node.toml").write_text("share = 0\n")
        flower.join("0", f'node="{tmp_path / "node.toml"}"', TIMEOUT)
        flower.join("1", f'partition-id=1 num-partitions=2 folder="{tmp_path / "second"}"', TIMEOUT)
        config = f"""settings="{" ".join(SETTINGS)}" out="{tmp_path / "run"}" """
        printed = flower.run(app_folder(), config, TIMEOUT)
    finally:
        flower.close()
    assert_numbers_of_one_machine(tmp_path / "run", printed)
    assert (tmp_path / "0-model" / "card.json").exists()
    assert (tmp_path / "second" / "1-model" / "card.json").exists()

"""Ray: tests that need no running Ray, and the others in a network namespace that has nothing but loopback.

Ray listens on the host's address and has no setting for it; inside the namespace no other machine can reach it.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trustmix import Recipe, TrustmixError
from trustmix.experiment.build import build_federation

INSIDE = Path(__file__).with_name("ray_in_a_namespace.py")


def test_without_ray_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(TrustmixError, match=r'needs Ray: pip install "trustmix\[ray\]"'):
        build_federation(Recipe.load("demo", ["engine.name=ray"]))


def test_an_actor_is_a_process_already() -> None:
    with pytest.raises(TrustmixError, match=r'set engine.mode to "sequential" or "stacked"'):
        build_federation(Recipe.load("demo", ["engine.name=ray", "engine.mode=processes"]))


@pytest.mark.slow
def test_the_engine_in_a_network_namespace_of_its_own(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'trustmix[ray]'")
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("no unshare and ip on this machine: apt-get install util-linux iproute2")
    namespace = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    loopback = subprocess.run([*namespace, "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
    if loopback.returncode:
        reason = f"no network namespace can be made here ({loopback.stderr.strip()})"
        pytest.skip(f"{reason}: run the tests as root, in a container with --cap-add SYS_ADMIN")
    script = 'ip link set lo up && exec "$@"'
    # Ray leaves files and processes to the garbage collector
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-W",
        "ignore::ResourceWarning",
        "--basetemp",
        str(tmp_path / "t"),
        str(INSIDE),
    ]
    # The folder for temporary files stays: below another one the paths of Ray's sockets would be too long
    removed = ("RAY_", "PYTEST_XDIST", "PYTEST_CURRENT")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(removed)}
    result = subprocess.run(
        [*namespace, "bash", "-c", script, "bash", *command],
        # Ray's workers are nice, and beside other tests would wait for minutes
        env={**environment, "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr

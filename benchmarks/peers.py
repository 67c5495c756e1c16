"""FedAvg by trustmix, by pfl-research and by Flower on the same federations, each a process, start-up included.

The contenders take turns, and medians are compared. Those that are not installed are left out. CPU seconds are those of
all processes of a contender; they tell more than the wall clock where the machine is shared.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from statistics import median
from typing import Any

MODELS = ("mlp", "cnn")
REPEATS = 3
LOOPBACK = ["unshare", "--net", "bash", "-c", 'ip link set lo up && exec "$@"', "bash"]
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}


def commands(model: str) -> dict[str, list[str]]:
    """The command of each contender; "again" is trustmix with its engine's choice remembered."""
    python = [sys.executable, "-m"]
    found = {"ours": [*python, "benchmarks.fedavg", model], "again": [*python, "benchmarks.fedavg", model]}
    if shutil.which("unshare") is not None:
        found["flower"] = [*LOOPBACK, *python, "benchmarks.flower_fedavg", model]
    if "PFL_PATH" in os.environ:
        found["pfl"] = [*python, "benchmarks.pfl_app", model]
        workers = [*python, "torch.distributed.run", "--nproc-per-node", "2", "-m", "benchmarks.pfl_app", model]
        found["pfl_workers"] = [*LOOPBACK, *workers] if shutil.which("unshare") else workers
    return found


def run() -> list[dict[str, Any]]:
    """A row for each model: seconds, CPU seconds and accuracy of each contender."""
    rows = []
    for model in MODELS:
        row: dict[str, Any] = {"method": "fedavg", "model": model, "accuracy": {}}
        for _ in range(REPEATS):
            with tempfile.TemporaryDirectory() as cache:
                for who, command in commands(model).items():
                    _measure(row, who, command, cache)
        for kind in ("seconds", "cpu_seconds"):
            base = median(row[f"ours_{kind}"])
            for who in commands(model):
                if taken := row.get(f"{who}_{kind}"):
                    row[f"times_{who}_{kind}"] = round(median(taken) / base, 2)
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def _measure(row: dict[str, Any], who: str, command: list[str], cache: str) -> None:
    """Add one run of a contender to the row."""
    begin, used = time.perf_counter(), _cpu()
    environment = {**os.environ, **QUIET, "XDG_CACHE_HOME": cache, "FLWR_HOME": f"{cache}/flower"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds, cpu = time.perf_counter() - begin, _cpu() - used
    last = [line for line in result.stdout.splitlines() if line.startswith("accuracy ")]
    if result.returncode or not last:
        print(json.dumps({who: row["model"], "failed": result.stderr.strip().splitlines()[-1:]}), flush=True)
        return
    row["accuracy"][who] = float(last[-1].split()[1])
    row.setdefault(f"{who}_seconds", []).append(round(seconds, 2))
    row.setdefault(f"{who}_cpu_seconds", []).append(round(cpu, 2))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(rows: list[dict[str, Any]]) -> str:
    """Median seconds and CPU seconds, and how many times those of trustmix the others take, in Markdown."""
    lines = ["| model | who | seconds | CPU seconds | times ours | CPU, times ours | accuracy |", "|---" * 7 + "|"]
    for row in rows:
        for who, accuracy in row["accuracy"].items():
            wall, cpu = median(row[f"{who}_seconds"]), median(row[f"{who}_cpu_seconds"])
            times = [row[f"times_{who}_{kind}"] for kind in ("seconds", "cpu_seconds")]
            cells = [row["model"], who, f"{wall:.1f}", f"{cpu:.1f}", f"{times[0]:.1f}", f"{times[1]:.1f}"]
            lines.append("| " + " | ".join([*cells, f"{100 * accuracy:.1f}"]) + " |")
    return "\n".join(lines)

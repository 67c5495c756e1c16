"""What a round of the demo costs by each engine: `python -m benchmarks.engines` writes results/engines.json.

The engines take turns round by round, in one process that sees no network but loopback, since Ray listens on the host's
address. The first round, with everything that is started for it, is measured by
itself.
"""

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.run import RESULTS, machine
from trustmix import Recipe, Round
from trustmix.experiment.build import build_federation
from trustmix.experiment.run_directory import RunDirectory

ENGINES = {  # in this order: worker processes are forked before Ray starts its threads
    "sequential": ["engine.mode=sequential"],
    "processes": ["engine.mode=processes"],
    "ray": ["engine.name=ray", "engine.mode=sequential"],
}
ROUNDS = 10


def rounds(recipe: str = "demo") -> list[dict[str, Any]]:
    """Seconds of a round by each engine, and how many times those of the local engine's processes."""
    torch.set_num_threads(1)
    taken: dict[str, list[float]] = {name: [] for name in ENGINES}
    accuracy: dict[str, list[float | None]] = {name: [] for name in ENGINES}
    running: dict[str, Iterator[Round]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, settings in ENGINES.items():
            begin = time.perf_counter()
            wanted = Recipe.load(recipe, [*settings, "engine.precision=float32", f"rounds={ROUNDS}"])
            experiment = stack.enter_context(build_federation(wanted, RunDirectory(folder / name)))
            running[name] = experiment.federation.iter_rounds(ROUNDS)
            accuracy[name].append(next(running[name]).accuracy_mean)
            taken[name].append(time.perf_counter() - begin)
        for _ in range(ROUNDS - 1):
            for name, lines in running.items():
                begin = time.perf_counter()
                accuracy[name].append(next(lines).accuracy_mean)
                taken[name].append(time.perf_counter() - begin)
    usual = {name: median(seconds[1:]) for name, seconds in taken.items()}
    return [
        {
            "engine": name,
            "first_round_seconds": round(taken[name][0], 2),
            "round_ms": round(1e3 * usual[name], 1),
            "times_processes": round(usual[name] / usual["processes"], 2),
            "same_accuracy": accuracy[name] == accuracy["sequential"],
        }
        for name in ENGINES
    ]


def main() -> None:
    """Measure, in a network namespace of its own if this is not one already."""
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        script = 'ip link set lo up && exec "$@"'
        command = ["unshare", "--net", "bash", "-c", script, "bash", sys.executable, "-m", "benchmarks.engines"]
        os.execvp(command[0], command)
    found = {"machine": machine(), "command": "python -m benchmarks.engines", "results": rounds()}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "engines.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found["results"], indent=2))


if __name__ == "__main__":
    main()

"""What the way over the network costs a round: `python -m benchmarks.overhead`, under three minutes on two free cores.

Real processes on loopback, TLS and keys, four nodes with the demo's data. The overhead of a round is its wall time less
the time that its slowest client computed, both of the same round. Flower's SuperNodes ask for messages every 3 seconds;
the second run shortens that one pause inside them, which Flower has no setting for.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, median

from benchmarks.deployment import Deployment

NODES = ["0", "1", "2", "3"]
ROUNDS = 10
FLOWERS_PAUSE = 3
"""Seconds between two questions of a SuperNode for messages."""
PATIENCE = 900
SHORTER_PAUSE = """
import time
real = time.sleep
time.sleep = lambda seconds: real({pause} if seconds == {flowers} else seconds)
"""


def measure(folder: Path, pause: float) -> list[tuple[float, float]]:
    """The wall time of each round and the time that its slowest client computed."""
    place = folder / "pause"
    place.mkdir()
    (place / "sitecustomize.py").write_text(SHORTER_PAUSE.format(pause=pause, flowers=FLOWERS_PAUSE))
    path = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    settings = [f"clients={len(NODES)}", f"rounds={ROUNDS}", "split.classes_per_client=4"]
    deployment = Deployment(folder, "demo", settings, NODES)
    try:
        deployment.serve()
        for node in NODES:
            deployment.join(node, environment=environment, options=["--log-level", "debug"])
        assert deployment.finish(PATIENCE) == 0, deployment.log("serve")
    finally:
        deployment.close()
    computed = [parse_seconds(deployment.log(node)) for node in NODES]
    # a round is recorded when its teacher has been learnt from, which is the exchange of the next round
    lines = [line for line in deployment.rounds() if 1 < line["round"] < ROUNDS]
    assert all(sorted(line["participants"]) == NODES for line in lines), lines
    return [(line["seconds"]["wall"], max(of[line["round"] + 1] for of in computed)) for line in lines]


def parse_seconds(log: str) -> Mapping[int, float]:
    """How long a node took for each request, from its log."""
    text = " ".join(log.split())  # lines may be wrapped
    return {int(number): float(much) for number, much in re.findall(r"request (\d+) took ([\d.]+) s", text)}


def main() -> None:
    """Print the table."""
    row = "| {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |"
    print("| a SuperNode asks every | round, s | slowest client computes, s | overhead, median s | mean | largest |")
    print("|---|---|---|---|---|---|", flush=True)
    for pause in [float(text) for text in sys.argv[1:]] or [3.0, 0.5]:
        folder = Path(tempfile.mkdtemp(prefix="trustmix-overhead-"))
        walls, computed = zip(*measure(folder, pause), strict=True)
        over = [wall - much for wall, much in zip(walls, computed, strict=True)]
        print(
            row.format(f"{pause:g} s", median(walls), median(computed), median(over), mean(over), max(over)), flush=True
        )
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

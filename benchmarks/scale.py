"""How aggregation grows with clients and classes: time, peak memory and disk, each case in a process of its own.

    python -m benchmarks.run scale

Uploads are made ahead, a few different ones that come again under other names, so that only aggregation is timed.
Times are CPU seconds of all threads: other jobs on the machine do not count. Ratios are of one run.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from trustmix import Accumulator, Trust, Upload
from trustmix.aggregation import Aggregator, GuardedAggregator, RobustTrust

RULES: dict[str, Callable[[], Aggregator]] = {
    "trust": Trust,
    "trust, guarded": RobustTrust,
    "suwa": lambda: Accumulator(0.25),
    "suwa, guarded": lambda: GuardedAggregator(Accumulator(0.25)),
}
DIFFERENT = 16
"""How many different uploads there are."""


def fold(rule: str, clients: int, samples: int, classes: int, held: int, liars: float = 0.1) -> dict[str, Any]:
    """Fold uploads of clients that hold some classes, of which a part name wrong ones, and compute the teacher."""
    made = min(clients, DIFFERENT)
    uploads = [make_upload(i, samples, classes, held, lie=i < liars * made) for i in range(made)]
    aggregator = RULES[rule]()
    for index in range(clients):
        aggregator.update(replace(uploads[index % made], client=str(index)))
    teacher = aggregator.compute()
    truth = torch.arange(samples) % classes
    return {"accuracy": round(float((teacher.probabilities.argmax(1) == truth).double().mean()), 4)}


def make_upload(index: int, samples: int, classes: int, held: int, *, lie: bool) -> Upload:
    """An upload of a client that knows some classes and takes every sample for one of them."""
    luck = torch.Generator().manual_seed(index)
    truth, own = torch.arange(samples) % classes, torch.randperm(classes, generator=luck)[:held]
    known = torch.isin(truth, own)
    label = torch.where(known, truth, own[torch.randint(held, (samples,), generator=luck)])
    q = torch.rand(samples, classes, generator=luck).mul_(0.2 / classes)
    q.scatter_(1, ((label + lie) % classes).unsqueeze(1), 0.9)
    scores = torch.where(known, 2.0, -3.0) + torch.randn(samples, generator=luck)
    return Upload.from_arrays(str(index), q / q.sum(1, keepdim=True), scores)


def in_a_process(call: str) -> dict[str, Any]:
    """What a call of a function of this file returns, its CPU seconds, wall seconds and peak memory."""
    code = (
        "import json, resource, time\nfrom benchmarks import scale\n"
        "base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "begin, cpu = time.perf_counter(), time.process_time()\n"
        f"found = scale.{call}\nseconds, cpu = time.perf_counter() - begin, time.process_time() - cpu\n"
        "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(json.dumps({**found, 'cpu_seconds': round(cpu, 2), 'seconds': round(seconds, 2),"
        " 'peak_mb': round(peak / 1024), 'before_mb': round(base / 1024)}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(result.stderr)
    return dict(json.loads(result.stdout.splitlines()[-1]))

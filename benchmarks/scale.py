"""How aggregation grows with clients and classes: time, peak memory and disk, each case in a process of its own.

    python -m benchmarks.run scale

Uploads are made ahead, a few different ones that come again under other names, so that only aggregation is timed.
Times are CPU seconds on one thread, so that other jobs on the machine count little. Ratios are of one run.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import torch

from trustmix import Accumulator, Trust, Upload
from trustmix.aggregation import Aggregator, GuardedAggregator, RobustTrust
from trustmix.wire import MessageHeader, decode_upload, encode_upload

RULES: dict[str, Callable[[], Aggregator]] = {
    "trust": Trust,
    "trust, guarded": RobustTrust,
    "suwa": lambda: Accumulator(0.25),
    "suwa, guarded": lambda: GuardedAggregator(Accumulator(0.25)),
}
DIFFERENT = 16
"""How many different small uploads there are; large ones, above 2^20 numbers, are all different."""


def fold(rule: str, clients: int, samples: int, classes: int, held: int, liars: float = 0.1) -> dict[str, Any]:
    """Fold uploads of clients that hold some classes, of which a part name wrong ones, and compute the teacher."""
    different = DIFFERENT if samples * classes < 2**20 else clients
    make = lru_cache(DIFFERENT if different == DIFFERENT else 1)(make_upload)
    aggregator, cpu, seconds = RULES[rule](), 0.0, 0.0
    for index in range(clients):
        number = index % different
        upload = replace(make(number, samples, classes, held, number < liars * different), client=str(index))
        begin, cpu_begin = time.perf_counter(), time.process_time()
        aggregator.update(upload)
        seconds, cpu = seconds + time.perf_counter() - begin, cpu + time.process_time() - cpu_begin
    begin, cpu_begin = time.perf_counter(), time.process_time()
    teacher = aggregator.compute()
    seconds, cpu = seconds + time.perf_counter() - begin, cpu + time.process_time() - cpu_begin
    right = teacher.probabilities.argmax(1) == torch.arange(samples) % classes
    return {"accuracy": round(float(right.double().mean()), 4), "cpu_seconds": cpu, "seconds": seconds}


def make_upload(index: int, samples: int, classes: int, held: int, lie: bool, margin: float | None = None) -> Upload:
    """An upload of a client that knows some classes and takes every sample for one of them.

    With a margin, its logits are noise of variance 1 with that much more for the class; without, it is nearly sure.
    """
    luck = torch.Generator().manual_seed(index)
    truth, own = torch.arange(samples) % classes, torch.randperm(classes, generator=luck)[:held]
    known = torch.isin(truth, own)
    label = torch.where(known, truth, own[torch.randint(held, (samples,), generator=luck)])
    named = ((label + lie) % classes).unsqueeze(1)
    if margin is None:
        q = torch.rand(samples, classes, generator=luck).mul_(0.2 / classes).scatter_(1, named, 0.9)
    else:
        logits = torch.randn(samples, classes, generator=luck)
        q = torch.softmax(logits.scatter_add_(1, named, torch.full(named.shape, margin)), 1)
    scores = torch.where(known, 2.0, -3.0) + torch.randn(samples, generator=luck)
    return Upload.from_arrays(str(index), q / q.sum(1, keepdim=True), scores)


def fold_rate() -> dict[str, float]:
    """CPU time to decode, validate and fold an upload of N = 5,000, C = 100, against reading it from memory once."""
    uploads = [make_upload(i, 5000, 100, 20, lie=False) for i in range(DIFFERENT)]
    large, accumulator = torch.ones(2**27), Accumulator(0.25)
    part = uploads[0].predictions.numel() / large.numel()

    def fold_all() -> None:
        for one in uploads:
            accumulator.update(one)

    header = MessageHeader("", 1, "0" * 16, 5000, 100)
    messages = [encode_upload(one, header, "float32") for one in uploads]
    actions: dict[str, Callable[[], Any]] = {
        "folding": fold_all,
        "validating": lambda: [Upload.from_arrays("", one.predictions, one.scores) for one in uploads],
        "decoding": lambda: [decode_upload(message, header) for message in messages],
    }
    taken: dict[str, list[float]] = {"reading": [], **{name: [] for name in actions}}
    for _ in range(9):
        taken["reading"].append(_cpu_seconds(large.sum) * part)
        for name, action in actions.items():
            taken[name].append(_cpu_seconds(action) / DIFFERENT)
    medians = {name: 1e3 * median(times) for name, times in taken.items()}
    both = medians["folding"] + medians["validating"]
    return {
        **{f"{name}_ms": much for name, much in medians.items()},
        "folding_against_reading": medians["folding"] / medians["reading"],
        "validating_and_folding_against_reading": both / medians["reading"],
    }


def sparse_fold(rule: str, samples: int, classes: int, codec: str) -> dict[str, float]:
    """CPU time to fold a decoded upload as it came, sparse, and made dense, and how far the two teachers are apart."""
    header = MessageHeader("", 1, "0" * 16, samples, classes)
    uploads = []
    for index in range(DIFFERENT // 4):
        upload = make_upload(index, samples, classes, classes // 5, lie=False, margin=4.0)
        uploads.append(decode_upload(encode_upload(upload, header, codec), header))
    forms = {"sparse": uploads, "dense": [replace(one) for one in uploads]}
    taken: dict[str, list[float]] = {name: [] for name in forms}
    teachers = {}
    for _ in range(5):
        for name, given in forms.items():
            aggregator = RULES[rule]()

            def fold_all(aggregator: Aggregator = aggregator, given: list[Upload] = given) -> None:
                for index, one in enumerate(given * 4):
                    aggregator.update(one.replace(client=str(index)))

            taken[name].append(_cpu_seconds(fold_all) / len(given) / 4)
            teachers[name] = aggregator.compute().probabilities
    found = {f"{name}_ms": 1e3 * median(times) for name, times in taken.items()}
    apart = float((teachers["sparse"] - teachers["dense"]).abs().max())
    return {**found, "dense_against_sparse": found["dense_ms"] / found["sparse_ms"], "apart_e9": 1e9 * apart}


def _cpu_seconds(action: Callable[[], Any]) -> float:
    begin = time.process_time()
    action()
    return time.process_time() - begin


def codec(name: str, clients: int, samples: int, classes: int, held: int) -> dict[str, Any]:
    """Bytes of an upload, the mean total variation that the codec costs a row, and the accuracy of the teacher."""
    rule, size, variation = Trust(), 0, 0.0
    for index in range(clients):
        upload = make_upload(index, samples, classes, held, lie=False, margin=4.0)
        header = MessageHeader(str(index), 1, "0" * 16, samples, classes)
        message = encode_upload(upload, header, name)
        decoded = decode_upload(message, header)
        size += len(message)
        variation += float((decoded.predictions - upload.predictions).abs().sum(1).mean()) / 2
        rule.update(decoded)
    right = rule.compute().probabilities.argmax(1) == torch.arange(samples) % classes
    accuracy = round(float(right.double().mean()), 4)
    return {"bytes": size // clients, "variation": variation / clients, "accuracy": accuracy}


def peak_mb() -> int:
    """The largest memory of this process so far; ru_maxrss would begin with that of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def in_a_process(call: str) -> dict[str, Any]:
    """What a call of a function of this file returns, and the peak memory of a fresh process on one thread."""
    code = (
        "import json, torch\nfrom benchmarks import scale\ntorch.set_num_threads(1)\nbase = scale.peak_mb()\n"
        f"found = scale.{call}\nprint(json.dumps({{**found, 'peak_mb': scale.peak_mb(), 'before_mb': base}}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # threads that wait for each other would count as work
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(result.stderr)
    found = dict(json.loads(result.stdout.splitlines()[-1]))
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in found.items()}


def run(largest: int = 100_000) -> list[dict[str, Any]]:
    """All cases, smallest first; `largest` is the largest number of clients."""
    cases = [
        (rule, clients, 2000, 10, 3) for clients in (100, 1000, 10_000, 100_000) if clients <= largest for rule in RULES
    ]
    cases += [(rule, 20, 5000, 100, 20) for rule in RULES] + [("trust, guarded", 100, 50_000, 1000, 100)]
    rows = []
    for rule, clients, samples, classes, held in cases:
        case = {"rule": rule, "clients": clients, "samples": samples, "classes": classes, "held": held}
        rows.append({**case, **in_a_process(f"fold({rule!r}, {clients}, {samples}, {classes}, {held})")})
        print(json.dumps(rows[-1]), flush=True)
    for classes in (100, 1000):
        for name in ("float32", "float16", "uint8", "uint4", "top-10", "top-5", "argmax"):
            case = {"codec": name, "clients": 20, "samples": 1000, "classes": classes, "held": classes // 5}
            rows.append({**case, **in_a_process(f"codec({name!r}, 20, 1000, {classes}, {classes // 5})")})
            print(json.dumps(rows[-1]), flush=True)
    for rule in ("suwa", "trust", "trust, guarded"):
        case = {"rule": rule, "codec": "top-10", "samples": 5000, "classes": 1000}
        rows.append({**case, **in_a_process(f"sparse_fold({rule!r}, 5000, 1000, 'top-10')")})
        print(json.dumps(rows[-1]), flush=True)
    rows.append({"rule": "suwa, one upload", **in_a_process("fold_rate()")})
    print(json.dumps(rows[-1]), flush=True)
    return rows

"""Run the benchmarks and write benchmarks/results/: `python -m benchmarks.run [speed] [fedavg] [kernels] [growth] ...`.

Speed is given as a ratio within one run: the contenders take turns on the same work, and medians are compared.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch
from sklearn.mixture import GaussianMixture

from benchmarks import ours, peers, plain, scale
from benchmarks.workloads import WORKLOADS, digits_mlp
from trustmix import Accumulator, ClassGaussians, Trust, Upload, mix
from trustmix.engines.local import cores

RESULTS = Path(__file__).parent / "results"
REPEATS = 3
WHO = ("plain", "ours", "again", "flower")
"""Who is timed: the plain loop, trustmix for the first time on a machine, the second time, and Flower."""


def speed() -> list[dict[str, Any]]:
    """(a) Client-epochs a minute, end to end, against the plain loop and Flower's simulation, start-up included."""
    rows = []
    for name, build in WORKLOADS.items():
        work = build()
        times: dict[str, list[float]] = {who: [] for who in WHO}
        found = ""
        accuracy: dict[str, float] = {}
        for repeat in range(REPEATS):
            begin = time.perf_counter()
            accuracy["plain"] = plain.run(work)
            times["plain"].append(time.perf_counter() - begin)
            with tempfile.TemporaryDirectory() as cache:
                os.environ["XDG_CACHE_HOME"] = cache  # each time as if for the first time
                begin = time.perf_counter()
                accuracy["ours"], found = ours.run(work)
                times["ours"].append(time.perf_counter() - begin)
                begin = time.perf_counter()
                ours.run(work)  # now the engine remembers what it found
                times["again"].append(time.perf_counter() - begin)
            if repeat == 0 and (seconds := _flower(name)):
                times["flower"].append(seconds)
        row: dict[str, Any] = {
            "model": name,
            "client_epochs": work.client_epochs,
            "engine": found,
            "accuracy": accuracy,
        }
        for who, taken in times.items():
            if taken:
                row[f"{who}_seconds"] = [round(t, 2) for t in taken]
                row[f"{who}_epochs_a_minute"] = round(60 * work.client_epochs / median(taken), 1)
                row[f"times_{who}"] = round(median(taken) / median(times["ours"]), 2)
        _print_line(row)
        rows.append(row)
    return rows


def _flower(name: str) -> float | None:
    """Seconds of Flower's simulation, in a process of its own that sees no network but loopback."""
    if shutil.which("unshare") is None:
        return None
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with tempfile.TemporaryDirectory() as home:
        command = f"ip link set lo up && exec {sys.executable} -m benchmarks.flower_app {name}"
        begin = time.perf_counter()
        result = subprocess.run(
            ["unshare", "--net", "bash", "-c", command],
            env={**os.environ, **quiet, "FLWR_HOME": home},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - begin
    if result.returncode:
        _print_line({"flower": name, "failed": result.stderr.strip().splitlines()[-1:]})
        return None
    return seconds


def kernels() -> list[dict[str, Any]]:
    """(b) Density and mixing at M = 20, N = 5,000 against scikit-learn and against reading the logits once."""
    rows = []
    clients, samples = 20, 5000
    bandwidth = _bandwidth()
    for classes, held in ((10, 2), (10, 5), (100, 20)):
        generator = torch.Generator().manual_seed(0)
        calibration = 3 * torch.randn(clients, 200, classes, generator=generator)
        logits = 3 * torch.randn(clients, samples, classes, generator=generator)
        density = ClassGaussians.fit(calibration, (torch.arange(200) % held).expand(clients, 200))
        references = [_reference(density, i) for i in range(clients)]
        doubles = logits.double().numpy()
        scores, predictions = density.log_prob(logits), torch.softmax(logits, -1)
        taken = _take_turns(
            {
                "density": lambda: density.log_prob(logits),  # noqa: B023
                "sklearn": lambda: [r.score_samples(z) for r, z in zip(references, doubles, strict=True)],  # noqa: B023
                "mixing": lambda: mix(predictions, scores),  # noqa: B023
            }
        )
        reading = logits.numel() * 4 / bandwidth
        rows.append(
            {
                "classes": classes,
                "held": held,
                **{f"{key}_ms": round(1e3 * value, 2) for key, value in taken.items()},
                "reading_ms": round(1e3 * reading, 2),
                "density_against_sklearn": round(taken["sklearn"] / taken["density"], 1),
                "density_against_reading": round(taken["density"] / reading, 1),
                "mixing_against_reading": round(taken["mixing"] / reading, 1),
            }
        )
        _print_line(rows[-1])
    return rows


def _reference(density: ClassGaussians, client: int) -> GaussianMixture:
    mixture = GaussianMixture(density.means.shape[1], covariance_type="diag")
    mixture.means_, mixture.covariances_ = density.means[client].numpy(), density.variances[client].numpy()
    mixture.precisions_cholesky_ = 1 / np.sqrt(mixture.covariances_)
    mixture.weights_ = density.log_weights[client].exp().numpy()
    return mixture


def _bandwidth() -> float:
    """Bytes a second that can be read from memory, by summing an array far larger than any cache."""
    large = torch.ones(2**27)
    return large.numel() * 4 / _take_turns({"read": lambda: large.sum()})["read"]


def growth() -> dict[str, list[dict[str, Any]]]:
    """(c) Time and peak memory as clients, and uploads to one accumulator, grow."""
    found: dict[str, list[dict[str, Any]]] = {"clients": [], "uploads": [], "trust": []}
    for clients in (10, 100, 1000):
        found["clients"].append({"clients": clients, **_in_a_process(f"_federation({clients})")})
        _print_line(found["clients"][-1])
    for uploads in (10, 1000, 100_000):
        found["uploads"].append({"uploads": uploads, **_in_a_process(f"_uploads({uploads})")})
        _print_line(found["uploads"][-1])
        found["trust"].append({"uploads": uploads, **_in_a_process(f"_trust({uploads})")})
        _print_line(found["trust"][-1])
    return found


def _federation(clients: int) -> dict[str, Any]:
    work = digits_mlp(clients, rounds=5, public_epochs=1)
    accuracy, found = ours.run(work)
    return {"accuracy": round(accuracy, 4), "engine": found}


def _uploads(uploads: int) -> dict[str, Any]:
    """Stream uploads of N = 5,000, C = 100 into one accumulator; a few different ones, again and again."""
    generator = torch.Generator().manual_seed(0)
    some = [torch.softmax(torch.randn(5000, 100, generator=generator), 1) for _ in range(4)]
    scores = torch.randn(64, 5000, generator=generator)
    accumulator = Accumulator(0.25)
    for i in range(uploads):
        accumulator.update(some[i % 4], scores[i % 64])
    return {"effective_clients": round(float(accumulator.compute().effective_clients.mean()), 1)}


def _trust(uploads: int) -> dict[str, Any]:
    """Stream uploads of N = 1,000, C = 10, three classes each, into one trust."""
    generator = torch.Generator().manual_seed(0)
    some = [torch.softmax(torch.randn(1000, 10, generator=generator), 1) for _ in range(4)]
    sets = [torch.bincount(torch.randperm(10, generator=generator)[:3], minlength=10) for _ in range(64)]
    trust = Trust()
    scores = torch.randn(64, 1000, generator=generator)
    for i in range(uploads):
        trust.update(Upload.from_arrays(str(i), some[i % 4], scores[i % 64], class_counts=sets[i % 64]))
    return {"largest": round(float(trust.compute().probabilities.max(1).values.mean()), 3)}


def _in_a_process(call: str) -> dict[str, Any]:
    """Seconds, and the peak memory of a fresh process and its workers, of a call to a function of this file."""
    code = (
        "import json, resource, time\nfrom benchmarks import run\n"
        "base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\nbegin = time.perf_counter()\n"
        f"found = run.{call}\nseconds = time.perf_counter() - begin\n"
        "own, workers = (resource.getrusage(w).ru_maxrss for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))\n"
        "print(json.dumps({**found, 'seconds': round(seconds, 2), 'peak_mb': round(own / 1024),"
        " 'largest_worker_mb': round(workers / 1024), 'before_mb': round(base / 1024)}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(result.stdout.splitlines()[-1]))


def _seconds(action: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def _take_turns(actions: dict[str, Callable[[], Any]], turns: int = 15) -> dict[str, float]:
    """Median seconds of each action, one after another, again and again."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(turns):
        for name, action in actions.items():
            taken[name].append(_seconds(action))
    return {name: median(times) for name, times in taken.items()}


def _print_line(row: Any) -> None:
    print(json.dumps(row), flush=True)


def machine() -> dict[str, Any]:
    """What it was measured on."""
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        if info.exists()
        else []
    )
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpu": names[0] if names else platform.processor(),
        "cores": cores(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The speed of all in Markdown: median seconds, and how many times those of trustmix the others take."""
    lines = [
        "| model | plain loop | trustmix, first | again | Flower | plain / first | plain / again | Flower / first |"
    ]
    lines += ["|---" * 8 + "|"]
    for row in rows:
        seconds = {who: median(row[f"{who}_seconds"]) for who in WHO if f"{who}_seconds" in row}
        cells = [f"{seconds[who]:.1f} s" if who in seconds else "" for who in WHO]
        pairs = (("plain", "ours"), ("plain", "again"), ("flower", "ours"))
        cells += [f"{seconds[slow] / seconds[fast]:.1f}x" if slow in seconds else "" for slow, fast in pairs]
        lines.append(f"| {row['model']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def bars(rows: list[dict[str, Any]]) -> str:
    """The speed table as an SVG: how many times the time of trustmix the others take."""
    pairs = [
        (row["model"], who, row[f"times_{who}"]) for row in rows for who in ("plain", "flower") if f"times_{who}" in row
    ]
    widest = max(value for _, _, value in pairs)
    lines = []
    for index, (model, who, value) in enumerate(pairs):
        y, width = 40 + 26 * index, 420 * value / widest
        colour = "#4477aa" if who == "plain" else "#ee6677"
        lines.append(f'<text x="150" y="{y + 13}" text-anchor="end">{model}, {who}</text>')
        lines.append(f'<rect x="160" y="{y}" width="{width:.0f}" height="18" fill="{colour}"/>')
        lines.append(f'<text x="{165 + width:.0f}" y="{y + 13}">{value:.1f}</text>')
    height = 60 + 26 * len(pairs)
    title = '<text x="10" y="22" font-weight="bold">Time of the plain loop and of Flower, trustmix = 1</text>'
    style = 'font-family="sans-serif" font-size="13"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{height}" {style}>{title}{"".join(lines)}</svg>\n'
    )


def main() -> None:
    """Run the named sections, or all, and write what was found."""
    RESULTS.mkdir(exist_ok=True)
    sections: dict[str, Callable[[], Any]] = {
        "speed": speed,
        "fedavg": peers.run,
        "kernels": kernels,
        "growth": growth,
        "scale": scale.run,
    }
    for name in sys.argv[1:] or sections:
        found = {"machine": machine(), "command": f"python -m benchmarks.run {name}", "results": sections[name]()}
        (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")
        if name == "fedavg":
            print(peers.table(found["results"]))
        if name == "speed":
            print(table(found["results"]))
            (RESULTS / "speed.svg").write_text(bars(found["results"]))


if __name__ == "__main__":
    main()

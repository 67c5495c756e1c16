"""A sweep over five rules that play their first private stage once, against five separate sweeps of one rule each.

python -m benchmarks.shared_stage       `cifar10-thin` at a tenth of its samples, five clients, four rounds

Times are CPU seconds of all processes, which another program on the machine changes little, and wall-clock seconds.
"""

import resource
import tempfile
import time
from pathlib import Path

from trustmix import storage, sweep

RULES = ["avg", "uwa", "suwa", "trust", "alone"]
SETTINGS = [
    "clients=5",
    "rounds=4",
    "split.classes_per_client=2",
    "split.samples_per_client=500",
    "split.test_samples=200",
    "public.samples=500",
    "model.width=8",
    "engine.mode=sequential",
]


def timed_sweep(rules: list[str], out: Path) -> tuple[float, float, list[float]]:
    """CPU seconds, seconds, and the best accuracy of every rule."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    found = sweep("cifar10-thin", {"rule": rules}, seeds=1, out=out, overrides=SETTINGS, jobs=1)
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - begin
    assert not found.failed, found.failed
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    best = [storage.read_json(out / f"rule={rule}" / "seed-0" / "summary.json")["best_accuracy"] for rule in rules]
    return cpu, seconds, best


def main() -> None:
    """Run both and print the ratios."""
    with tempfile.TemporaryDirectory() as folder:
        apart = [timed_sweep([rule], Path(folder) / rule) for rule in RULES]
        cpu, seconds, best = timed_sweep(RULES, Path(folder) / "shared")
    assert best == [accuracy for _, _, [accuracy] in apart]
    separate = [sum(values) for values in list(zip(*apart, strict=True))[:2]]
    print(f"separate: {separate[0]:.0f} s of CPU, {separate[1]:.0f} s; shared: {cpu:.0f} s of CPU, {seconds:.0f} s")
    print(f"{separate[0] / cpu:.2f} times less CPU, {separate[1] / seconds:.2f} times as fast")


if __name__ == "__main__":
    main()

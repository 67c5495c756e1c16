"""Run a command again and again beside processes that keep the cores busy, and count how often it passes.

    python -m benchmarks.busy --times 10 make test
    python -m benchmarks.busy --times 10 make test WORKERS=8
    python -m benchmarks.busy --processes 8 make test-all

Prints one line a run, with its minutes and its minutes of CPU time. Of a run that failed the end of its output is
printed too: what failed, and the slowest tests. The exit code is 1 if one of them failed.
"""

import argparse
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time

LINES = 200
"""Of the output of a run that failed."""


def main() -> None:
    """Start the busy processes, run the command, and count."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=8, help="processes that do nothing but compute")
    parser.add_argument("--times", type=int, default=1, help="how often the command is run")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    chosen = parser.parse_args()
    if not chosen.command:
        parser.error("give a command, such as: make test")
    others = [
        multiprocessing.Process(target=_compute, args=(os.getpid(),), daemon=True) for _ in range(chosen.processes)
    ]
    for process in others:
        process.start()
    failed = 0
    try:
        for number in range(1, chosen.times + 1):
            begin, computed = time.monotonic(), _cpu_seconds()
            code, output = _run(chosen.command)
            failed += code != 0
            minutes, cpu = (time.monotonic() - begin) / 60, (_cpu_seconds() - computed) / 60
            times = f"after {minutes:.1f} min, {cpu:.1f} min of CPU time"
            print(f"run {number} of {chosen.times}: exit code {code} {times}", flush=True)
            if code != 0:
                print("\n".join(output.splitlines()[-LINES:]), flush=True)
    finally:
        for process in others:
            process.kill()
    print(f"{chosen.times - failed} of {chosen.times} passed beside {chosen.processes} busy processes.")
    sys.exit(1 if failed else 0)


def _run(command: list[str]) -> tuple[int, str]:
    """The exit code and the output of a command, in which pytest is asked to name its slowest tests."""
    options = f"{os.environ.get('PYTEST_ADDOPTS', '')} --durations=20".strip()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        environment = {**os.environ, "PYTEST_ADDOPTS": options}
        done = subprocess.run(command, check=False, stdout=output, stderr=subprocess.STDOUT, env=environment)
        output.seek(0)
        return done.returncode, output.read()


def _cpu_seconds() -> float:
    """The CPU time of all commands so far; the busy processes do not count before they end."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _compute(parent: int) -> None:
    """Compute until the parent is gone."""
    while os.getppid() == parent:
        sum(range(100_000))


if __name__ == "__main__":
    main()

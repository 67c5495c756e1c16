"""Run a command again and again beside processes that keep the cores busy, and count how often it passes.

    python -m benchmarks.busy --times 10 make test
    python -m benchmarks.busy --processes 8 make test-all

Prints one line a run and ends with exit code 1 if one of them failed.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import time


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
            begin = time.monotonic()
            code = subprocess.run(chosen.command, check=False).returncode
            failed += code != 0
            minutes = (time.monotonic() - begin) / 60
            print(f"run {number} of {chosen.times}: exit code {code} after {minutes:.1f} min", flush=True)
    finally:
        for process in others:
            process.kill()
    print(f"{chosen.times - failed} of {chosen.times} passed beside {chosen.processes} busy processes.")
    sys.exit(1 if failed else 0)


def _compute(parent: int) -> None:
    """Compute until the parent is gone."""
    while os.getppid() == parent:
        sum(range(100_000))


if __name__ == "__main__":
    main()

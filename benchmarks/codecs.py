"""What each codec costs in accuracy and saves in bytes: `python -m benchmarks.codecs`.

Prints the table of RESULTS.md and writes benchmarks/results/codecs.json. The same codec goes up and down; bytes are
those really sent by one client in one run, and the factor compares them with float32's, which are compressed as well.
"""

import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from trustmix import Recipe, run

SETTINGS = {"demo, k = 2": ("demo", 2), "fashion, k = 2": ("fashion", 2), "fashion, k = 5": ("fashion", 5)}
WIRES = ["float32", "float16", "uint8", "uint4", "uint4 delta", "top-5", "top-3", "top-2", "argmax"]
SEEDS = (0, 1, 2)


def measure(recipe: str, classes: int, wire: str) -> dict[str, Any]:
    """Accuracy in per cent by seed, and the mean bytes of one client in one run."""
    codec, *delta = wire.split()
    settings = [f"split.classes_per_client={classes}", f"wire.up={codec}", f"wire.down={codec}", "engine.mode=stacked"]
    settings.append(f"wire.delta={str(bool(delta)).lower()}")
    summaries = [run(Recipe.load(recipe, [*settings, f"seed={seed}"])).summary() for seed in SEEDS]
    return {
        "accuracy": [100 * s["best_accuracy"] for s in summaries],
        "up": fmean(b for s in summaries for b in s["client_bytes_up"].values()),
        "down": fmean(b for s in summaries for b in s["client_bytes_down"].values()),
    }


def row(found: dict[str, Any], whole: dict[str, Any]) -> str:
    """One row of the table, compared with float32's figures."""
    accuracy, change = found["accuracy"], fmean(found["accuracy"]) - fmean(whole["accuracy"])
    return (
        f"| {found['setting']} | {found['wire']} | {fmean(accuracy):.1f} ± {stdev(accuracy):.1f} | {change:+.1f} "
        f"| {found['up'] / 1e3:,.1f} kB | {whole['up'] / found['up']:.1f}x "
        f"| {found['down'] / 1e3:,.1f} kB | {whole['down'] / found['down']:.1f}x |"
    )


def main() -> None:
    """Run everything; about twenty minutes on two cores."""
    print("| setting | codec | accuracy | change | up | factor | down | factor |\n|---|---|---|---|---|---|---|---|")
    rows = []
    for setting, (recipe, classes) in SETTINGS.items():
        for wire in WIRES:
            found = {"setting": setting, "wire": wire, **measure(recipe, classes, wire)}
            rows.append(found)
            whole = next(r for r in rows if r["setting"] == setting)
            print(row(found, whole), flush=True)
    results = Path(__file__).parent / "results" / "codecs.json"
    results.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

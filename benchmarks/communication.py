"""Accuracy against bytes: every codec, FedAvg and SCAFFOLD on one federation: `python -m benchmarks.communication`.

Prints the table of RESULTS.md and writes benchmarks/results/communication.json and .svg. Bytes are those that one
client really sent until its best round; weight sharing sends the model instead of predictions.
"""

import json
import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from trustmix import Recipe, run

RECIPE, CLASSES, SEEDS = "fashion", 5, (0, 1, 2)
SGD = ["train.optimizer=sgd", "train.lr=0.1"]
CONTENDERS: dict[str, list[str]] = {
    **{codec: [f"wire.up={codec}", f"wire.down={codec}"] for codec in ("float32", "float16", "uint8", "uint4")},
    "uint4 delta": ["wire.up=uint4", "wire.down=uint4", "wire.delta=true"],
    "argmax": ["wire.up=argmax", "wire.down=argmax"],
    "FedAvg": ["rule=fedavg"],
    "SCAFFOLD": ["rule=scaffold", *SGD],
}


def measure(settings: list[str], seed: int) -> list[tuple[float, float]]:
    """(bytes sent so far by one client, accuracy in per cent) of each round."""
    changes = [f"split.classes_per_client={CLASSES}", f"seed={seed}", *settings]
    history = run(Recipe.load(RECIPE, changes))
    sent, points = 0.0, []
    for line in history.rounds:
        sent += line.bytes_up / len(line.participants)
        points.append((sent, 100 * (line.accuracy_mean or 0.0)))
    return points


def summary(curves: list[list[tuple[float, float]]]) -> dict[str, Any]:
    """Best accuracy by seed and the mean bytes until then."""
    best = [max(curve, key=lambda point: point[1]) for curve in curves]
    return {
        "accuracy": [accuracy for _, accuracy in best],
        "bytes": fmean(sent for sent, _ in best),
        "curve": curves[0],
    }


def drawing(found: dict[str, dict[str, Any]]) -> str:
    """The curves of the first seed as an SVG, bytes on a logarithmic axis."""
    points = [point for entry in found.values() for point in entry["curve"]]
    left, right = (f(math.log10(sent) for sent, _ in points) for f in (min, max))
    low, high = min(a for _, a in points) - 2, max(a for _, a in points) + 2
    width, height, margin = 720, 420, 60

    def place(sent: float, accuracy: float) -> tuple[float, float]:
        x = margin + (math.log10(sent) - left) / (right - left) * (width - 3 * margin)
        return round(x, 1), round(height - margin - (accuracy - low) / (high - low) * (height - 2 * margin), 1)

    parts = [f'<rect width="{width}" height="{height}" fill="white"/>']
    for exponent in range(math.ceil(left), math.floor(right) + 1):
        x, _ = place(10**exponent, low)
        name = {3: "1 kB", 4: "10 kB", 5: "100 kB", 6: "1 MB", 7: "10 MB"}.get(exponent, f"1e{exponent} B")
        parts.append(f'<text x="{x}" y="{height - margin + 20}" text-anchor="middle">{name}</text>')
        parts.append(f'<line x1="{x}" x2="{x}" y1="{margin}" y2="{height - margin}" stroke="#ddd"/>')
    for accuracy in range(math.ceil(low / 10) * 10, math.floor(high) + 1, 10):
        _, y = place(10**left, accuracy)
        parts.append(f'<text x="{margin - 8}" y="{y + 4}" text-anchor="end">{accuracy} %</text>')
        parts.append(f'<line x1="{margin}" x2="{width - 2 * margin}" y1="{y}" y2="{y}" stroke="#ddd"/>')
    colours = ["#1f77b4", "#17becf", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#7f7f7f", "#000000"]
    for (name, entry), colour in zip(found.items(), colours, strict=False):
        path = " ".join(f"{x},{y}" for x, y in (place(*point) for point in entry["curve"]))
        x, y = place(*entry["curve"][-1])
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 5}" y="{y + 4}" fill="{colour}">{name}</text>')
    title = "Accuracy against bytes sent by one client, round by round"
    parts.append(f'<text x="{width / 2}" y="28" text-anchor="middle" font-size="15">{title}</text>')
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n{body}\n</svg>\n'


def main() -> None:
    """Run everything; some minutes on two cores."""
    found: dict[str, dict[str, Any]] = {}
    print("| | accuracy | bytes of one client until then | against float32 |\n|---|---|---|---|")
    for name, settings in CONTENDERS.items():
        found[name] = entry = summary([measure(settings, seed) for seed in SEEDS])
        factor = entry["bytes"] / found["float32"]["bytes"]
        spread = f"{fmean(entry['accuracy']):.1f} ± {stdev(entry['accuracy']):.1f}"
        print(f"| {name} | {spread} | {entry['bytes'] / 1e3:,.1f} kB | {factor:.2f}x |", flush=True)
    results = Path(__file__).parent / "results"
    (results / "communication.json").write_text(json.dumps(found, indent=1) + "\n")
    (results / "communication.svg").write_text(drawing(found))


if __name__ == "__main__":
    main()

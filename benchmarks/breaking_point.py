"""Where rules break: the first teacher under the worst of some attacks, by the share of attackers, as a figure.

    python -m benchmarks.breaking_point                  draws docs/images/breaking_point.svg from the stored figures
    python -m benchmarks.breaking_point attacks.jsonl    from runs of benchmarks.attacks --first, which it stores before

The stored figures are benchmarks/results/breaking_point.json: by classes a client and rule, for every share of
attackers (per cent) the accuracy (per cent, the mean of seeds) and the attack.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

from benchmarks.attacks import Figures, read
from trustmix.report.palette import PALETTE

STORED = Path(__file__).parent / "results" / "breaking_point.json"
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "breaking_point.svg"
COLOURS = {"trust": 5, "expguard": 4, "geometric-median": 2, "cronus": 3, "median": 0}
"""The rules in the order of the legend, and their colours in the palette of reports."""
SHARES = (0, 10, 20, 30, 40)
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, PANEL = 780, 400, 62, 92, 346, 310
"""Of the figure; where the first panel begins and all end; the width of a panel."""

Points: TypeAlias = dict[str, dict[str, list[tuple[int, float, str]]]]
"""By classes a client and rule: share of attackers, accuracy, and the worst attack, empty without attackers."""


def worst_attacks(done: Figures) -> Points:
    """The worst attack on each rule, for every share of attackers that was run."""
    seeds: dict[tuple[str, str, int, str], list[float]] = {}
    for cell, line in done.items():
        key = (str(cell.classes), cell.rule, round(100 * cell.share), cell.attack)
        seeds.setdefault(key, []).append(100 * line["accuracy"])
    found: Points = {}
    for (classes, rule, share, attack), values in seeds.items():
        curve = found.setdefault(classes, {}).setdefault(rule, [])
        curve.append((share, round(fmean(values), 1), attack))
    for curves in found.values():
        for rule, every in curves.items():
            shares = sorted({share for share, _, _ in every})
            curves[rule] = [min((p for p in every if p[0] == share), key=lambda p: p[1]) for share in shares]
    return found


def drawing(points: Points) -> str:
    """A panel for each number of classes a client, a line for each rule."""
    title = "Accuracy of the first teacher under the worst of five attacks"
    axis = "share of attackers (Fashion-MNIST, 20 clients, mean of two seeds)"
    parts = ["<style>", *stylesheet(), "</style>", '<rect class="page" width="100%" height="100%"/>']
    parts.append(f'<text class="title" x="{WIDTH / 2}" y="24" text-anchor="middle">{title}</text>')
    across = LEFT + 18
    for rule in COLOURS:
        parts.append(f'<line class="{rule} curve" x1="{across}" x2="{across + 24}" y1="46" y2="46"/>')
        parts.append(f'<text x="{across + 30}" y="50">{rule}</text>')
        across += 66 + 7 * len(rule)
    for number, (classes, curves) in enumerate(points.items()):
        begin = LEFT + number * (PANEL + 60)
        parts.append(f'<text x="{begin + PANEL / 2}" y="78" text-anchor="middle">{classes} classes a client</text>')
        parts += panel(begin, curves)
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">{axis}</text>')
    head = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {head} font-family="sans-serif" font-size="12">\n{body}\n</svg>\n'


def panel(begin: int, curves: dict[str, list[tuple[int, float, str]]]) -> Iterator[str]:
    """The axes and the lines of a panel that begins so far from the left."""

    def place(share: float, accuracy: float) -> tuple[float, float]:
        return round(begin + PANEL * share / SHARES[-1], 1), round(BOTTOM - (BOTTOM - TOP) * accuracy / 100, 1)

    for accuracy in range(0, 101, 20):
        x, y = place(0, accuracy)
        yield f'<line class="grid" x1="{x}" x2="{x + PANEL}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{x - 8}" y="{y + 4:.1f}" text-anchor="end">{accuracy} %</text>'
    for share in SHARES:
        x, y = place(share, 0)
        yield f'<text x="{x}" y="{y + 18}" text-anchor="middle">{share} %</text>'
    for rule in reversed(COLOURS):  # the first of the legend lies above
        places = [place(share, accuracy) for share, accuracy, _ in curves[rule]]
        yield f'<polyline class="{rule} curve" points="{" ".join(f"{x},{y}" for x, y in places)}"/>'
        yield from (f'<circle class="{rule}" cx="{x}" cy="{y}" r="3.5"/>' for x, y in places)


def stylesheet() -> Iterator[str]:
    """Colours on light and on dark pages; the figure brings its own ground for both."""
    grounds = (("#1f2933", "#ffffff", "#d8dde3"), ("#e4e7eb", "#1e2129", "#454d59"))
    for dark, (text, page, grid) in enumerate(grounds):
        yield "@media (prefers-color-scheme: dark) {" if dark else "@media all {"
        yield f"text {{ fill: {text}; }} .page {{ fill: {page}; }} .grid {{ stroke: {grid}; }}"
        for rule, index in COLOURS.items():
            yield f".{rule} {{ stroke: {PALETTE[index][dark]}; fill: {PALETTE[index][dark]}; }}"
        yield "}"
    yield ".title { font-size: 15px; font-weight: 600; } .curve { fill: none; stroke-width: 2.5; }"


def main() -> None:
    """Store the figures of runs, if there are any, and draw."""
    if sys.argv[1:]:
        found = worst_attacks(read(Path(sys.argv[1])))
        STORED.write_text(to_json(found))
    FIGURE.write_text(drawing(json.loads(STORED.read_text())))


def to_json(points: Points) -> str:
    """The figures, a line for each rule."""
    panels = [
        f'"{classes}": {{\n' + ",\n".join(f'  "{rule}": {json.dumps(curve)}' for rule, curve in curves.items()) + "\n }"
        for classes, curves in points.items()
    ]
    return "{\n " + ",\n ".join(panels) + "\n}\n"


if __name__ == "__main__":
    main()

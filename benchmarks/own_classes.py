"""How well a client knows its own classes, and how well its scores then tell own from foreign samples.

python -m benchmarks.own_classes        single clients of `cifar10-thin` with two classes each; 15 minutes of one core

One client after another is trained alone on its private samples. After some epochs its accuracy on its own classes is
measured, and the AUC of three scores of the public samples. Lines go to benchmarks/results/own_classes.jsonl; clients
that are in it are not trained again. The figure is docs/images/own_classes.svg.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from trustmix import Recipe
from trustmix.density import roc_auc
from trustmix.experiment.build import build_federation
from trustmix.federation import Client
from trustmix.learners.scoring import density_samples, score_inputs
from trustmix.learners.training import accuracy

RESULTS = Path(__file__).parent / "results" / "own_classes.jsonl"
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "own_classes.svg"
SCORES = {
    "gaussians": ("the paper's density of logits", "#1f77b4"),
    "max-probability": ("the largest probability", "#ff7f0e"),
    "ratio": ("the density ratio", "#2ca02c"),
}
EPOCHS = (1, 2, 5, 10, 20)
CELLS = [(16, samples, seed) for seed in (0, 1) for samples in (5000, 250, 1000, 500, 2500)]
CELLS += [(width, 5000, seed) for seed in (0, 1) for width in (8,)]
"""Width of the ResNet-18, private samples with the fifth that is held out, seed."""


def make_client(width: int, samples: int, seed: int) -> tuple[Client, torch.Tensor]:
    """The first client of a federation with two classes each, and the labels of its public samples."""
    changes = ["clients=5", "split.classes_per_client=2", f"split.samples_per_client={samples}", f"seed={seed}"]
    changes += [f"model.width={width}", "public.samples=2000", "engine.mode=sequential", "engine.store=memory"]
    with build_federation(Recipe.load("cifar10-thin", changes)) as experiment:
        labels = experiment.federation.context.public_labels
        assert labels is not None
        return experiment.clients[0], labels


def measure(width: int, samples: int, seed: int) -> Iterator[dict[str, Any]]:
    """Train a client and yield its figures after each of `EPOCHS`."""
    client, labels = make_client(width, samples, seed)
    state = client._resume(1)
    classes = torch.unique(client.private.labels)
    assert client.test is not None
    test = client.test[torch.isin(client.test.labels, classes)]
    own = torch.isin(labels, classes)
    for epoch, job in enumerate(client.private_job(state, 1).split_epochs(), 1):
        job.run()
        if epoch in EPOCHS:
            line: dict[str, Any] = {"width": width, "samples": samples, "seed": seed, "epochs": epoch}
            line["own_accuracy"] = accuracy(state.model, test.inputs, test.labels, client.hardware)
            for kind in SCORES:
                known = density_samples(kind, client.private, client.calibration)
                scored = score_inputs(state.model, known, client.public.inputs, client.hardware, kind)
                line[kind] = roc_auc(scored.scores, own)
            yield line


def drawing(lines: list[dict[str, Any]]) -> str:
    """AUC against accuracy on own classes, a dot for each client and epoch, larger for more samples."""
    width, height, margin = 720, 430, 60
    low = 0.5  # a coin between two classes; a client that does not even predict them is drawn at the edge

    def place(x: float, y: float) -> tuple[float, float]:
        across = margin + (max(x, low) - low) / (1 - low) * (width - 2 * margin)
        return round(across, 1), round(height - margin - (y - 0.4) / 0.6 * (height - 2 * margin - 30), 1)

    parts = [f'<rect width="{width}" height="{height}" fill="white"/>']
    for step in range(round(low * 20), 21):
        x, y = place(step / 20, 0.4)
        parts.append(f'<text x="{x}" y="{y + 20}" text-anchor="middle">{5 * step} %</text>')
    for step in range(4, 11):
        left, y = place(low, step / 10)
        colour = "#888" if step == 5 else "#ddd"
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{step / 10}</text>')
        parts.append(f'<line x1="{left}" x2="{width - margin}" y1="{y}" y2="{y}" stroke="{colour}"/>')
    for row, (kind, (name, colour)) in enumerate(SCORES.items()):
        parts.append(f'<circle cx="{margin + 6 + 220 * row}" cy="52" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{margin + 16 + 220 * row}" y="56">{name}</text>')
        for line in lines:
            x, y = place(line["own_accuracy"], line[kind])
            size = 2 + (line["samples"] / 5000) ** 0.5 * 4
            parts.append(f'<circle cx="{x}" cy="{y}" r="{size:.1f}" fill="{colour}" fill-opacity="0.6"/>')
    parts.append(
        f'<text x="{width / 2}" y="26" text-anchor="middle" font-size="15">AUC of own against foreign samples, by the '
        "accuracy on own classes</text>"
    )
    parts.append(
        f'<text x="{width / 2}" y="{height - 14}" text-anchor="middle">accuracy on own classes; one dot: a client '
        "after 1 to 20 epochs, larger with more samples (250 to 5,000)</text>"
    )
    size_ = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size_} font-family="sans-serif" font-size="12">\n{body}\n</svg>\n'


def main() -> None:
    """Train the clients that are missing, then draw."""
    RESULTS.touch()
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    done = {(line["width"], line["samples"], line["seed"]) for line in lines}
    for cell in CELLS:
        if cell not in done:
            found = list(measure(*cell))
            lines += found
            with open(RESULTS, "a") as file:
                file.writelines(json.dumps(line) + "\n" for line in found)
            print(found[-1], flush=True)
    FIGURE.write_text(drawing(lines))


if __name__ == "__main__":
    main()

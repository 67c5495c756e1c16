"""Every density on the same models: 20 Fashion clients after their first private stage, and the teachers they make.

python -m benchmarks.densities [SEEDS]      a line of JSON for each seed, number of classes and density
"""

import json
import sys
from typing import Any

import torch
from trustmix.aggregation.rules import TAU_BY_RULE, Aggregator

from trustmix import Client, Federation
from trustmix.aggregation import Accumulator
from trustmix.aggregation.trust import Trust
from trustmix.density import DENSITIES, percentile_ranks, roc_auc, standardize_scores
from trustmix.engines import LocalEngine
from trustmix.experiment.build import build_federation
from trustmix.experiment.recipe import Recipe
from trustmix.federation import train
from trustmix.federation.scoring import score_inputs


def first_stage(recipe: Recipe) -> tuple[Federation, list[tuple[Client, Any]]]:
    """A federation, and each client with its live state after it has trained on its private data."""
    experiment = build_federation(recipe)
    assert isinstance(federation.engine, LocalEngine)
    lives = [(client, client._resume(1)) for client in federation.engine.members]
    for client, live in lives:
        train(client._train(live, 1))
    return federation, lives


def main(seeds: int = 3) -> None:
    """Train, then score and mix by each density in turn."""
    for seed in range(seeds):
        for held in (2, 3, 5):
            settings = [f"seed={seed}", f"split.classes_per_client={held}", "engine.mode=sequential"]
            federation, lives = first_stage(Recipe.load("fashion", [*settings, "engine.precision=float32"]))
            public, truth = federation.public, federation.public_labels
            assert truth is not None
            for kind in DENSITIES.names():
                mixers: dict[str, Aggregator] = {name: Accumulator(tau) for name, tau in TAU_BY_RULE.items()}
                mixers |= {"uwa, standardised": Accumulator(1.0), "trust": Trust()}
                areas = []
                for client, live in lives:
                    said = score_inputs(live.model, client.calibration, public.inputs, client.hardware, kind)
                    areas.append(roc_auc(said.scores, torch.isin(truth, client.private.labels)))
                    classes = torch.bincount(client.private.labels, minlength=public.classes).clamp(max=1)
                    ranks = percentile_ranks(said.known, said.scores)
                    own = standardize_scores(said.known, said.scores)
                    for name, mixer in mixers.items():
                        scores = own if name.endswith("standardised") else said.scores
                        mixer.add(torch.softmax(said.logits.double(), 1), scores, classes=classes, ranks=ranks)
                right = {name: mixer.finish().probabilities.argmax(1) == truth for name, mixer in mixers.items()}
                line = {"seed": seed, "classes": held, "density": kind, "auc": round(sum(areas) / len(areas), 3)}
                print(
                    json.dumps(line | {n: round(100 * float(r.double().mean()), 1) for n, r in right.items()}),
                    flush=True,
                )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

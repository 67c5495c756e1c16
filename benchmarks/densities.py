"""Every density on the same models: 20 Fashion clients after their first private stage, and the teachers they make.

python -m benchmarks.densities [SEEDS]      a line of JSON for each seed, number of classes and density
"""

import json
import sys
from statistics import fmean

import torch

from trustmix import Accumulator, Aggregator, Client, Recipe, Upload
from trustmix.density import DENSITIES, roc_auc, standardize_scores
from trustmix.experiment.build import build_federation
from trustmix.federation import METHODS, Distillation, ServerContext
from trustmix.federation.client import ModelState
from trustmix.learners.scoring import score_inputs

STANDARDISED = "uwa, standardised"
"""UWA on scores in standard deviations of the client's own calibration scores."""

TrainedClients = list[tuple[Client, ModelState]]


def first_stage(recipe: Recipe) -> tuple[ServerContext, TrainedClients]:
    """What the server has, and each client with its state after it has trained on its private data."""
    with build_federation(recipe) as experiment:
        algorithm = experiment.federation.algorithm
        assert isinstance(algorithm, Distillation)
        clients = [(client, client._resume(1)) for client in experiment.clients]
        for client, state in clients:
            client.private_job(state, 1).run()
    return algorithm.context, clients


def make_aggregators() -> dict[str, Aggregator]:
    """An empty aggregator of every rule that is compared."""
    averages = [name for name in METHODS.names() if METHODS.get(name).tau is not None]
    rules = {name: METHODS.get(name).make_aggregator() for name in [*averages, "trust"]}
    return {**rules, STANDARDISED: Accumulator(1.0)}


def evaluate_density(kind: str, server: ServerContext, clients: TrainedClients) -> dict[str, float]:
    """The mean AUC of own against foreign samples, and the accuracy of each rule's teacher in per cent."""
    public, truth = server.public, server.public_labels
    assert truth is not None
    aggregators, areas = make_aggregators(), []
    for client, state in clients:
        found = score_inputs(state.model, client.calibration, public.inputs, client.hardware, kind)
        areas.append(roc_auc(found.scores, torch.isin(truth, client.private.labels)))
        predictions = torch.softmax(found.logits.double(), 1)
        counts = torch.bincount(client.private.labels, minlength=public.classes).clamp(max=1)
        for name, aggregator in aggregators.items():
            scores = (
                standardize_scores(found.calibration_scores, found.scores) if name == STANDARDISED else found.scores
            )
            aggregator.update(Upload.from_arrays(client.id, predictions, scores, class_counts=counts))
    correct = {name: rule.compute().probabilities.argmax(1) == truth for name, rule in aggregators.items()}
    accuracy = {name: round(100 * float(right.double().mean()), 1) for name, right in correct.items()}
    return {"auc": round(fmean(areas), 3), **accuracy}


def main(seeds: int = 3) -> None:
    """Train, then score and aggregate by each density in turn."""
    for seed in range(seeds):
        for held in (2, 3, 5):
            settings = [f"seed={seed}", f"split.classes_per_client={held}", "engine.mode=sequential"]
            server, clients = first_stage(Recipe.load("fashion", [*settings, "engine.precision=float32"]))
            for kind in DENSITIES.names():
                line = {"seed": seed, "classes": held, "density": kind}
                print(json.dumps({**line, **evaluate_density(kind, server, clients)}), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""Every density on the same models: clients after their first private stage, and the teachers they make.

    python -m benchmarks.densities fashion --classes 2 3 5 --seeds 0 1 2
    python -m benchmarks.densities mixed --classes 3 --seeds 0 1 2 --densities gaussians ratio
    python -m benchmarks.densities --run RUN --densities gaussians ratio    # the models of a run's last uploads instead

Prints a line of JSON for each seed, number of classes and density: the mean AUC of own against foreign samples, the
accuracy (per cent) and NLL (nats) of each rule's teacher on the public set, the largest share of UWA's weights that one
client has, and the shares of the clients of each architecture. With `--out` the lines are appended to a file, and those
that it has are left out.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from trustmix import Accumulator, Aggregator, Client, Recipe, Upload
from trustmix.density import DENSITIES, DISCRIMINATOR, roc_auc, standardize_scores
from trustmix.experiment.build import build_federation
from trustmix.federation import METHODS, DiskStore, Distillation, ServerContext
from trustmix.federation.client import ModelState, _run_jobs
from trustmix.learners.scoring import density_samples, score_inputs
from trustmix.learners.training import predict
from trustmix.metrics import negative_log_likelihood

STANDARDISED = "uwa, standardised"
"""UWA on scores in standard deviations of the client's own calibration scores."""
LABEL_SETS = "trust, sets"
"""Trust with the label sets that clients share."""

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


def last_uploads(run: Path) -> tuple[ServerContext, TrainedClients]:
    """What the server of a finished run has, and each client with the state that its last upload was made by."""
    recipe = Recipe.load(run / "recipe.toml")
    with build_federation(recipe) as experiment:
        algorithm = experiment.federation.algorithm
        assert isinstance(algorithm, Distillation)
        for client in experiment.clients:
            client.store = DiskStore(run / "checkpoint" / "clients" / client.id)
        clients = [(client, client._resume(recipe.rounds + 1)) for client in experiment.clients]
    return algorithm.context, clients


def make_aggregators() -> dict[str, Aggregator]:
    """An empty aggregator of every rule that is compared."""
    averages = [name for name in METHODS.names() if METHODS.get(name).tau is not None]
    rules = {name: METHODS.get(name).make_aggregator() for name in [*averages, "trust"]}
    return {**rules, LABEL_SETS: METHODS.get("trust").make_aggregator(), STANDARDISED: Accumulator(1.0)}


def score_public(kind: str, client: Client, state: ModelState) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The client's predictions (N, C) of the public set, its scores (N,), and those in its own units."""
    public = client.public.inputs
    if kind == DISCRIMINATOR:
        logits = predict(state.model, public, client.hardware)
        scores = standardised = _run_jobs(client._discriminate(1, {})).scores.double()
    else:
        samples = density_samples(kind, client.private, client.calibration)
        found = score_inputs(state.model, samples, public, client.hardware, kind)
        logits, scores = found.logits, found.scores
        standardised = standardize_scores(found.calibration_scores, scores)
    return torch.softmax(logits.double(), 1), scores, standardised


def evaluate_density(kind: str, server: ServerContext, clients: TrainedClients) -> dict[str, Any]:
    """The figures of one density."""
    truth = server.public_labels
    assert truth is not None
    aggregators, areas = make_aggregators(), []
    weights = []
    for client, state in clients:
        predictions, scores, standardised = score_public(kind, client, state)
        own = torch.isin(truth, client.private.labels)
        areas += [] if own.all() else [roc_auc(scores, own)]
        weights.append(scores.double())
        held = torch.bincount(client.private.labels, minlength=server.public.classes).clamp(max=1)
        for name, aggregator in aggregators.items():
            used = standardised if name == STANDARDISED else scores
            counts = held if name == LABEL_SETS else None
            aggregator.update(Upload.from_arrays(client.id, predictions, used, class_counts=counts))
    teachers = {name: rule.compute().probabilities for name, rule in aggregators.items()}
    right = {name: 100 * float((teacher.argmax(1) == truth).double().mean()) for name, teacher in teachers.items()}
    losses = {name: negative_log_likelihood(teacher, truth) for name, teacher in teachers.items()}
    trusted = torch.softmax(torch.stack(weights), 0).mean(1)
    shares: defaultdict[str, float] = defaultdict(float)
    for (client, _), share in zip(clients, trusted, strict=True):
        shares[str(client.architecture)] += float(share)
    return {
        "auc": round(fmean(areas), 3) if areas else None,
        "accuracy": {name: round(value, 1) for name, value in right.items()},
        "nll": {name: round(value, 3) for name, value in losses.items()},
        "largest": round(float(trusted.max()), 3),
        "share": {name: round(value, 3) for name, value in shares.items()},
    }


def main() -> None:
    """Train, then score and aggregate by each density in turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="fashion")
    parser.add_argument("--run", type=Path, help="the directory of a finished run, whose recipe it is then")
    parser.add_argument("--classes", type=int, nargs="+", default=[2, 3, 5], help="classes a client")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--densities", nargs="+", default=[*DENSITIES.names(), DISCRIMINATOR])
    parser.add_argument("--set", dest="changes", action="append", default=[], help="key=value")
    parser.add_argument("--out", type=Path, help="a file of lines that are there already")
    wanted = parser.parse_args()
    if wanted.run:
        server, clients = last_uploads(wanted.run)
        for kind in wanted.densities:
            print(json.dumps({"density": kind, **evaluate_density(kind, server, clients)}), flush=True)
        return
    done = [json.loads(line) for line in wanted.out.read_text().splitlines()] if _exists(wanted.out) else []
    for seed in wanted.seeds:
        for held in wanted.classes:
            cells = [
                {"recipe": wanted.recipe, "set": wanted.changes, "seed": seed, "classes": held, "density": kind}
                for kind in wanted.densities
            ]
            missing = [cell for cell in cells if not any(cell.items() <= line.items() for line in done)]
            if not missing:
                continue
            settings = [f"seed={seed}", f"split.classes_per_client={held}", "engine.mode=sequential"]
            changes = [*wanted.changes, *settings, "engine.precision=float32"]
            server, clients = first_stage(Recipe.load(wanted.recipe, changes))
            for cell in missing:
                line = json.dumps({**cell, **evaluate_density(str(cell["density"]), server, clients)})
                print(line, flush=True)
                if wanted.out:
                    with wanted.out.open("a") as file:
                        file.write(line + "\n")


def _exists(path: Path | None) -> bool:
    return path is not None and path.exists()


if __name__ == "__main__":
    main()

"""Lemma 1 on teachers of the first round: bias, concentration and error by rule and density, on the same models.

    python -m benchmarks.teachers fashion --classes 2 5 --seeds 5
    python -m benchmarks.teachers digits --classes 2 5 --seeds 5

The split is fixed (split.seed = 0) and models are trained anew for each seed: the lemma's draws of the clients'
predictions. A teacher's squared bias and variance are over these draws, against p*: a model trained on all private data
together. B_w^2 is the lemma's, of the weights of each draw; rules that are no weighted averages have none. Uploads are
those that clients send. The oracle weighs clients by how frequent the true class is among their samples; it knows the
labels, which p* does not, so its error against labels is the one to read: what is left of it is in the clients'
predictions, and no better score removes it. One Markdown table is printed per number of classes.
"""

import argparse
from dataclasses import dataclass, field, replace

import torch
from torch.nn.functional import one_hot

from benchmarks.densities import first_stage
from trustmix import Recipe, Teacher, Upload
from trustmix.experiment.run import build_probe
from trustmix.federation import METHODS, Request
from trustmix.theory import bias_variance, teacher_error, teacher_error_decomposition
from trustmix.theory.teacher import weights
from trustmix.wire import decode_upload

ORACLE = "oracle"
LABEL_SETS = "ratio, label sets"
TEACHERS = (
    ("avg", "gaussians"),
    ("uwa", "gaussians"),
    ("suwa", "gaussians"),
    ("uwa", "ratio"),
    ("suwa", "ratio"),
    ("trust", "ratio"),
    ("trust", LABEL_SETS),
    ("uwa", ORACLE),
)
"""Rules, the densities that score the public samples, and whether clients share their label sets."""
HEAD = "| rule | density | chi | B_w² | bias² | variance | error | error, labels | accuracy |"


@dataclass
class Draws:
    """What one rule and density gave in every draw."""

    teachers: list[Teacher[torch.Tensor]] = field(default_factory=list)
    predictions: list[torch.Tensor] = field(default_factory=list)
    scores: list[torch.Tensor] = field(default_factory=list)

    def add(self, rule: str, uploads: list[Upload]) -> None:
        """Aggregate the uploads of a draw."""
        aggregator = METHODS.get(rule).make_aggregator()
        for upload in uploads:
            aggregator.update(upload)
        self.teachers.append(aggregator.compute())
        self.predictions.append(torch.stack([upload.predictions.double() for upload in uploads]))
        self.scores.append(torch.stack([upload.scores for upload in uploads if upload.scores is not None]))

    def row(self, rule: str, density: str, reference: torch.Tensor, labels: torch.Tensor) -> str:
        """The line of the table."""
        found = torch.stack([teacher.probabilities.double() for teacher in self.teachers])
        bias, variance = bias_variance(found, reference)
        tau = METHODS.get(rule).tau
        lemma = "-"
        if tau is not None:
            trust = torch.stack([weights(scores, tau) for scores in self.scores])
            lemma = f"{teacher_error_decomposition(torch.stack(self.predictions), trust, reference).bias:.3f}"
        chi = float(torch.stack([teacher.concentration for teacher in self.teachers]).mean())
        right = float((found.argmax(2) == labels).double().mean())
        errors = [teacher_error(found, truth) for truth in (reference, one_hot(labels, found.shape[2]))]
        figures = f"{chi:.3f} | {lemma} | {bias:.3f} | {variance:.3f} | {errors[0]:.3f} | {errors[1]:.3f}"
        return f"| {rule} | {density if rule != 'avg' else ''} | {figures} | {100 * right:.1f} |"


def uploads_by_density(recipe: Recipe) -> tuple[dict[str, list[Upload]], torch.Tensor]:
    """The uploads of all clients after their first private stage, for each density, and the public labels."""
    server, clients = first_stage(recipe)
    assert server.public_labels is not None
    found: dict[str, list[Upload]] = {density: [] for _, density in TEACHERS}
    for client, state in clients:
        client.labels = "set"
        for density in ("gaussians", "ratio"):
            client.density = density
            upload = decode_upload(client.make_upload(state, Request(1)), server.public.header(client.id, 1))
            found[density].append(replace(upload, class_counts=None))
        found[LABEL_SETS].append(upload)
        frequency = torch.bincount(client.private.labels, minlength=server.public.classes) / len(client.private)
        scores = frequency[server.public_labels].double().clamp_min(1e-12).log()
        found[ORACLE].append(replace(upload, scores=scores))
    return found, server.public_labels


def main() -> None:
    """Train the clients of every seed, then print a table for each number of classes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--classes", type=int, nargs="+", default=[2, 5], help="classes a client")
    parser.add_argument("--seeds", type=int, default=5, help="draws, two or more")
    parser.add_argument("--set", dest="changes", action="append", default=[], help="key=value")
    wanted = parser.parse_args()
    fixed = [*wanted.changes, "rounds=1", "split.seed=0", "engine.mode=sequential", "engine.precision=float32"]
    for held in wanted.classes:
        draws = {teacher: Draws() for teacher in TEACHERS}
        settings = [*fixed, f"split.classes_per_client={held}"]
        for seed in range(wanted.seeds):
            uploads, labels = uploads_by_density(Recipe.load(wanted.recipe, [*settings, f"seed={seed}"]))
            for (rule, density), found in draws.items():
                found.add(rule, uploads[density])
        probe = build_probe(Recipe.load(wanted.recipe, [*settings, "seed=0"]))
        reference = probe.reference_predictions(probe.public)
        right = float((reference.argmax(1) == labels).double().mean())
        print(f"\n{wanted.recipe}, {held} classes a client, {wanted.seeds} seeds; p* is right on {100 * right:.1f} %\n")
        print(HEAD + "\n" + "|---" * 9 + "|")
        for (rule, density), found in draws.items():
            print(found.row(rule, density, reference, labels), flush=True)


if __name__ == "__main__":
    main()

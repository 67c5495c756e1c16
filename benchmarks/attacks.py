"""Attacks against rules: whole runs, accuracy of the clients, and recall of each class by them and by the last teacher.

    python -m benchmarks.attacks --rules trust,median --attacks shift,takeover --shares 0.2 --classes 5,3 --seeds 0,1

Every run is a line of JSON in --out. What is there already is kept, so that the study can be stopped, resumed and
extended. A rule's name with "!" is that rule without the guard. Tables are printed in Markdown: final accuracy, what it
lost against a run without attackers, and the largest loss of recall of a class, in the mean of clients and of the last
teacher. Accuracy is the mean of all clients' models on all classes; attackers train honestly and upload something else.
With --first clients are trained for the first round alone, once, and accuracy and recall are those of the teacher which
a rule makes of honest and false uploads: all attacks on all rules take minutes.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from trustmix import Callback, Recipe, TrustmixError
from trustmix.aggregation import Upload
from trustmix.aggregation.guard import guarded
from trustmix.attacks import POISONING_ATTACKS, AttackContext
from trustmix.experiment.build import build_federation
from trustmix.federation import METHODS
from trustmix.seeds import numpy_generator, torch_generator


@dataclass(frozen=True)
class Cell:
    """One run."""

    rule: str
    classes: int
    attack: str
    """Empty where there is none."""
    share: float
    sees: str
    seed: int

    @property
    def shares_label_sets(self) -> bool:
        """Whether clients share which classes they hold, as the rule needs it."""
        rule = self.rule.removesuffix("!")
        return rule in METHODS and METHODS.get(rule).needs_label_sets

    def recipe(self, base: str, changes: Sequence[str]) -> Recipe:
        """What is run."""
        rule = self.rule.removesuffix("!")
        settings = [f"rule={rule}", f"split.classes_per_client={self.classes}", f"seed={self.seed}", *changes]
        settings += ["guard.on=false"] if self.rule.endswith("!") else []
        settings += ["wire.labels=set"] if self.shares_label_sets else []
        attack = [f"attack.kind={self.attack}", f"attack.share={self.share}", f"attack.sees={self.sees}"]
        return Recipe.load(base, settings + (attack if self.attack else []))


class TeacherRecall(Callback):
    """Keeps the recall of each class by the teacher of the last round."""

    def __init__(self, labels: torch.Tensor | None = None) -> None:
        self.labels = torch.zeros(0, dtype=torch.int64) if labels is None else labels
        self.recalls: Sequence[float] = ()

    def on_teacher(self, *found: Any) -> None:
        """Measure it; it comes last."""
        right = (found[-1].argmax(1) == self.labels).double()
        self.recalls = [round(float(right[self.labels == c].mean()), 4) for c in range(int(self.labels.max()) + 1)]


class Uploads(Callback):
    """Keeps the uploads of a run."""

    def __init__(self) -> None:
        self.found: list[Upload] = []

    def on_upload(self, *found: Any) -> None:
        """Keep it; it comes last."""
        upload: Upload = found[-1]
        self.found.append(replace(upload, predictions=upload.predictions.clone()))


@cache
def honest_uploads(base: str, changes: tuple[str, ...]) -> tuple[Sequence[Upload], torch.Tensor]:
    """The uploads of the first round, by client, and the labels of the public set."""
    watch = Uploads()
    with build_federation(Recipe.load(base, [*changes, "rounds=1"]), callbacks=[watch]) as experiment:
        labels = experiment.federation.context.public_labels
        experiment.federation.run(rounds=1)
    assert labels is not None
    return sorted(watch.found, key=lambda upload: int(upload.client)), labels


def first_teacher(recipe: Recipe, base: str, changes: Sequence[str]) -> dict[str, Any]:
    """The figures of the first teacher, made of honest uploads and of those of attackers."""
    settings = [*changes, f"split.classes_per_client={recipe.split.classes_per_client}", f"seed={recipe.seed}"]
    scored = "trust" if recipe.density.kind == "ratio" else "suwa"  # the models are the same, whatever the rule
    uploads, labels = honest_uploads(base, (*settings, f"rule={scored}"))
    count = round(recipe.attack.share * len(uploads)) if recipe.attack.kind else 0
    order = numpy_generator(recipe.seed, "liars").permutation(len(uploads)).tolist()
    attackers, honest = ([uploads[index] for index in part] for part in (order[:count], order[count:]))
    seen, rule = honest if recipe.attack.sees == "uploads" else attackers, recipe.method.make_aggregator()
    aggregator = guarded(rule) if recipe.guard.on and recipe.method.guardable else rule
    for upload in honest:
        aggregator.update(upload)
    for upload in attackers:
        generator = torch_generator(recipe.seed, "lies", upload.client, 1)
        context = AttackContext(upload, seen, generator, len(attackers))
        aggregator.update(POISONING_ATTACKS.get(recipe.attack.kind or "")(context))
    watch = TeacherRecall(labels)
    teacher = aggregator.estimate()[0]
    watch.on_teacher(teacher)
    return {"accuracy": float((teacher.argmax(1) == labels).double().mean()), "recalls": watch.recalls, "lowered": []}


def play(recipe: Recipe) -> dict[str, Any]:
    """The figures of one run."""
    watch = TeacherRecall()
    with build_federation(recipe, callbacks=[watch]) as experiment:
        labels = experiment.federation.context.public_labels
        assert labels is not None
        watch.labels = labels
        last = experiment.federation.run(rounds=recipe.rounds).rounds[-1]
    silenced = sorted(client for client, found in last.guard.items() if found.get("weight", 1) < 0.5)
    by_clients = {"accuracy": last.accuracy_mean, "client recalls": last.recall_mean}
    return {**by_clients, "recalls": watch.recalls, "lowered": silenced}


def cells(wanted: argparse.Namespace) -> Iterator[Cell]:
    """All runs, one seed of everything before the second seed of anything, the clean ones first."""
    for seed in wanted.seeds:
        for classes in wanted.classes:
            for rule in wanted.rules:
                yield Cell(rule, classes, "", 0.0, "uploads", seed)
        for share in wanted.shares:
            for attack in wanted.attacks:
                for classes in wanted.classes:
                    found = [Cell(rule, classes, attack, share, wanted.sees, seed) for rule in wanted.rules]
                    yield from (cell for cell in found if attack != "labels" or cell.shares_label_sets)


Figures = dict[Cell, dict[str, Any]]


def read(out: Path) -> Figures:
    """The runs that are finished."""
    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()] if out.exists() else []
    return {Cell(**line["cell"]): line for line in lines}


def losses(wanted: argparse.Namespace, done: Figures, cell: Cell) -> tuple[float, float, str] | None:
    """In per cent: accuracy and points lost, means over seeds; the largest loss of recall of a class.

    The latter of the clients in the mean and of the last teacher, where both are known.
    """
    found = []
    worst: dict[str, list[float]] = {"client recalls": [], "recalls": []}
    for seed in wanted.seeds:
        clean = done.get(Cell(cell.rule, cell.classes, "", 0.0, "uploads", seed))
        line = done.get(Cell(cell.rule, cell.classes, cell.attack, cell.share, cell.sees, seed))
        if clean and line:
            found.append((100 * line["accuracy"], 100 * (clean["accuracy"] - line["accuracy"])))
            for key in worst.keys() & clean.keys() & line.keys():
                pairs = zip(clean[key], line[key], strict=True)
                worst[key].append(100 * max(before - after for before, after in pairs))
    if not found:
        return None
    classes = ", ".join(f"{max(values):.0f}" for values in worst.values() if values)
    return fmean(f[0] for f in found), fmean(f[1] for f in found), classes


def table(wanted: argparse.Namespace, done: Figures, classes: int, across: Sequence[tuple[str, float]]) -> str:
    """Attacks down; across, rules with shares of attackers."""
    heads = [f"{rule}, {share:.0%}" for rule, share in across]
    lines = [f"| k = {classes} | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    clean = [losses(wanted, done, Cell(rule, classes, "", 0.0, "uploads", 0)) for rule, _ in across]
    lines.append("| no attack | " + " | ".join("" if one is None else f"{one[0]:.1f}" for one in clean) + " |")
    for attack in wanted.attacks:
        row = [losses(wanted, done, Cell(rule, classes, attack, share, wanted.sees, 0)) for rule, share in across]
        texts = ["" if one is None else f"{one[0]:.1f} ({-one[1]:+.1f}; {one[2]})" for one in row]
        lines.append(f"| `{attack}` | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what is not finished yet, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", type=lambda text: text.split(","), default=["trust"])
    parser.add_argument("--attacks", type=lambda text: text.split(","), default=list(POISONING_ATTACKS.names()))
    parser.add_argument("--shares", type=lambda text: [float(n) for n in text.split(",")], default=[0.2])
    parser.add_argument("--classes", type=lambda text: [int(n) for n in text.split(",")], default=[5, 3])
    parser.add_argument("--seeds", type=lambda text: [int(n) for n in text.split(",")], default=[0])
    parser.add_argument("--sees", choices=["uploads", "teacher"], default="uploads", help="what attackers know")
    parser.add_argument("--first", action="store_true", help="the first teacher alone")
    parser.add_argument("--recipe", default="fashion")
    parser.add_argument("--set", dest="changes", action="append", default=["engine.mode=stacked"], help="key=value")
    parser.add_argument("--out", type=Path, default=Path("attacks.jsonl"))
    wanted = parser.parse_args()
    for cell in cells(wanted):
        if cell not in read(wanted.out):
            try:
                recipe = cell.recipe(wanted.recipe, wanted.changes)
                found = first_teacher(recipe, wanted.recipe, wanted.changes) if wanted.first else play(recipe)
                line = {"cell": asdict(cell), **found}
            except TrustmixError as error:
                print(f"{cell}: {error}", flush=True)
                continue
            print(json.dumps(line), flush=True)
            with wanted.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    done = read(wanted.out)
    for classes in wanted.classes:
        print("\n" + table(wanted, done, classes, [(rule, share) for rule in wanted.rules for share in wanted.shares]))


if __name__ == "__main__":
    main()

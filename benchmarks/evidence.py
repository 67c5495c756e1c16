"""Whole runs of the rules with the paper's density and with the density ratio, beside a teacher of true labels.

    python -m benchmarks.evidence --recipe fashion --classes 2,3,5,9,10 --seeds 0,1,2
    python -m benchmarks.evidence --classes 5,3 --rules "trust, guard" --set attack.kind=margin --set attack.share=0.2

Prints a line of JSON a run, appends it to `--out`, and leaves out runs that are there already. One seed of everything
comes before the second seed of anything.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import trustmix as tm
from trustmix.aggregation import SumAggregator, Upload
from trustmix.aggregation.base import StateDict
from trustmix.experiment.build import build_federation
from trustmix.federation.method import METHODS, Method

RULES: dict[str, list[str]] = {
    "true labels": ["rule=truth"],
    "trust": ["rule=trust", "guard.on=false"],
    "trust, guard": ["rule=trust"],
    "trust, discriminator": ["rule=trust", "density.kind=discriminator", "guard.on=false"],
    "uwa, discriminator": ["rule=uwa", "density.kind=discriminator", "guard.on=false"],
    "uwa, guard": ["rule=uwa"],
    "suwa, guard": ["rule=suwa"],
    "trust, sets": ["rule=trust", "wire.labels=set", "guard.on=false"],
    "uwa, ratio": ["rule=uwa", "density.kind=ratio", "guard.on=false"],
    "suwa, ratio": ["rule=suwa", "density.kind=ratio", "guard.on=false"],
    "uwa": ["rule=uwa", "guard.on=false"],
    "suwa": ["rule=suwa", "guard.on=false"],
    "avg": ["rule=avg", "guard.on=false"],
}
BY_ROUND = {
    "accuracies": "accuracy_mean",
    "teachers": "teacher_accuracy",
    "aucs": "density_auc",
    "agreements": "agreement_mean",
}


class LastTeacher(tm.Callback):
    """Keeps the recall of each class by the teacher of the last round."""

    def __init__(self) -> None:
        self.labels = torch.zeros(0, dtype=torch.int64)
        self.recalls: list[float] = []

    def on_teacher(self, *found: Any) -> None:
        """Measure it; it comes last."""
        right = found[-1].argmax(1) == self.labels
        classes = range(int(self.labels.max()) + 1)
        self.recalls = [round(float(right[self.labels == c].double().mean()), 3) for c in classes]


class Truth(SumAggregator):
    """A teacher that knows the labels of the public set, whatever the clients send."""

    labels = torch.zeros(0, dtype=torch.int64)

    def terms(self, upload: Upload) -> dict[str, torch.Tensor]:
        """How many classes there are."""
        return {"classes": torch.zeros(upload.predictions.shape[1])}

    def from_sums(self, sums: StateDict) -> tuple[torch.Tensor, torch.Tensor]:
        """The labels, one-hot."""
        one_hot = torch.nn.functional.one_hot(self.labels, len(sums["classes"])).double()
        return one_hot, torch.ones(len(one_hot), dtype=torch.float64)


METHODS.register("truth")(Method("truth", "true labels", Truth, guardable=False))


def play(recipe: str, rule: str, classes: str, seed: int, settings: list[str]) -> dict[str, Any]:
    """The figures of one run."""
    changes = [*RULES[rule], f"split.classes_per_client={classes}", f"seed={seed}", *settings]
    chosen = tm.Recipe.load(recipe, changes)
    watch = LastTeacher()
    with build_federation(chosen, callbacks=[watch]) as experiment:
        labels = experiment.federation.context.public_labels
        assert labels is not None
        Truth.labels = watch.labels = labels
        history = experiment.federation.run(rounds=chosen.rounds)
    rounds = history.rounds
    last = rounds[-1]
    figures = {
        "best": max(line.accuracy_mean or 0 for line in rounds),
        "own": last.local_accuracy_mean,
        "first teacher": rounds[0].teacher_accuracy,
        "last teacher": last.teacher_accuracy,
        "first auc": rounds[0].density_auc,
        "last auc": last.density_auc,
        "nll": last.nll_mean,
        "ece": last.ece_mean,
        "agreement": last.agreement_mean,
    }
    rounded = {key: None if value is None else round(value, 4) for key, value in figures.items()}
    series = {key: [getattr(line, field) for line in rounds] for key, field in BY_ROUND.items()}
    by_round = {key: [None if value is None else round(value, 3) for value in row] for key, row in series.items()}
    return {**rounded, **by_round, "recalls": watch.recalls}


def main() -> None:
    """Play what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", default="fashion")
    parser.add_argument("--classes", default="2,5")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rules", default=";".join(RULES), help="names, divided by semicolons")
    parser.add_argument("--set", action="append", default=[], help="further settings of the recipe")
    parser.add_argument("--out", type=Path, default=Path("evidence.jsonl"))
    chosen = parser.parse_args()
    done = [json.loads(line) for line in chosen.out.read_text().splitlines()] if chosen.out.exists() else []
    for seed in map(int, chosen.seeds.split(",")):
        for classes in chosen.classes.split(","):
            for rule in chosen.rules.split(";"):
                cell = {"recipe": chosen.recipe, "set": chosen.set, "classes": classes, "seed": seed, "rule": rule}
                if any(cell.items() <= line.items() for line in done):
                    continue
                line = {**cell, **play(chosen.recipe, rule, classes, seed, chosen.set)}
                print(json.dumps(line), flush=True)
                with chosen.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()

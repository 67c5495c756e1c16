"""Attacks against rules: `python -m benchmarks.attacks --rules avg,suwa,uwa,median --out runs/attacks`.

Every attack, share of attackers, rule and number of classes a client is a run directory in --out. What is finished
there is kept, so that the study can be stopped, resumed and extended. A rule's name with "!" is that rule without the
guard. Tables are printed in Markdown: final accuracy, and what it lost against a run without attackers. Accuracy is the
mean of all clients' models on all classes; attackers train honestly and upload something else.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from trustmix import Recipe, TrustmixError, run, storage
from trustmix.attacks.byzantine_engine import ATTACKS
from trustmix.federation import METHODS


@dataclass(frozen=True)
class Cell:
    """One run."""

    rule: str
    classes: int
    attack: str
    """Empty where there is none."""
    share: float
    seed: int

    @property
    def name(self) -> str:
        """Its directory."""
        attack = f"{self.attack}-{self.share:g}" if self.attack else "clean"
        return f"{self.rule.replace('!', '-unguarded')}/k{self.classes}/{attack}/seed-{self.seed}"

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
        settings += [f"attack.kind={self.attack}", f"attack.share={self.share}"] if self.attack else []
        return Recipe.load(base, settings)

    def accuracy(self, out: Path) -> float | None:
        """In per cent, after the last round, if the run is finished."""
        file = out / self.name / "summary.json"
        return 100 * storage.read_json(file)["final_accuracy"] if file.exists() else None


def cells(wanted: argparse.Namespace) -> Iterator[Cell]:
    """All runs, the clean ones first."""
    for seed in range(wanted.seeds):
        for classes in wanted.classes:
            for rule in wanted.rules:
                yield Cell(rule, classes, "", 0.0, seed)
        for attack in wanted.attacks:
            for share in wanted.shares:
                for classes in wanted.classes:
                    found = [Cell(rule, classes, attack, share, seed) for rule in wanted.rules]
                    yield from (cell for cell in found if attack != "labels" or cell.shares_label_sets)


def table(wanted: argparse.Namespace, classes: int, share: float) -> str:
    """Attacks down, rules across: accuracy and, in brackets, the points lost against no attack."""
    lines = [f"| {classes} classes a client, {share:.0%} attackers | " + " | ".join(wanted.rules) + " |"]
    lines += ["|---" * (len(wanted.rules) + 1) + "|"]
    worst = dict.fromkeys(wanted.rules, 0.0)
    for attack in ["", *wanted.attacks]:
        row = [attack or "no attack"]
        for rule in wanted.rules:
            clean, found = _mean(wanted, rule, classes, "", 0.0), _mean(wanted, rule, classes, attack, share)
            lost = None if clean is None or found is None else clean - found
            worst[rule] = max(worst[rule], lost or 0.0)
            row.append("" if found is None else f"{found:.1f}" if not attack else f"{found:.1f} ({-(lost or 0):+.1f})")
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join([*lines, "| largest loss | " + " | ".join(f"{worst[rule]:.1f}" for rule in wanted.rules) + " |"])


def _mean(wanted: argparse.Namespace, rule: str, classes: int, attack: str, share: float) -> float | None:
    found = [Cell(rule, classes, attack, share, seed).accuracy(wanted.out) for seed in range(wanted.seeds)]
    known = [accuracy for accuracy in found if accuracy is not None]
    return fmean(known) if known else None


def main() -> None:
    """Run what is not finished yet, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", type=lambda text: text.split(","), default=["avg", "suwa", "uwa", "median"])
    parser.add_argument("--attacks", type=lambda text: text.split(","), default=list(ATTACKS))
    parser.add_argument(
        "--shares", type=lambda text: [float(n) for n in text.split(",")], default=[0.05, 0.1, 0.2, 0.3]
    )
    parser.add_argument("--classes", type=lambda text: [int(n) for n in text.split(",")], default=[3, 5])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--recipe", default="fashion")
    parser.add_argument("--set", dest="changes", action="append", default=["engine.mode=stacked"], help="key=value")
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    runs = list(cells(wanted))
    for number, cell in enumerate(runs, 1):
        if cell.accuracy(wanted.out) is None:
            try:
                run(cell.recipe(wanted.recipe, wanted.changes), out=wanted.out / cell.name, resume=True)
                print(f"{number}/{len(runs)} {cell.name}: {cell.accuracy(wanted.out):.1f}", flush=True)
            except TrustmixError as error:
                print(f"{number}/{len(runs)} {cell.name}: {error}", flush=True)
    for classes in wanted.classes:
        for share in wanted.shares:
            print("\n" + table(wanted, classes, share))


if __name__ == "__main__":
    main()

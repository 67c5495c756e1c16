"""Do runs still give the same numbers? Compares the demo, recipes and small runs of every method with a record.

    python -m benchmarks.same_numbers            compare with benchmarks/results/numbers.json
    python -m benchmarks.same_numbers --record   write that file anew

Every figure of rounds.jsonl counts to its last digit, times aside; a field that one side does not have is left out of
the comparison and named. All runs are sequential in float32 on one thread, so that a machine repeats itself.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import trustmix as tm

RECORD = Path(__file__).parent / "results" / "numbers.json"
ENGINE = ["engine.mode=sequential", "engine.precision=float32", "engine.device=cpu"]
SMALL = ["clients=8", "rounds=3", "split.samples_per_client=60", "split.classes_per_client=3", "public.samples=150"]
PAPER = [*SMALL, "rule=suwa"]
ONLY_IN_TIME = ("seconds",)

RUNS: dict[str, tuple[str, list[str]]] = {
    "demo alone": ("demo", ["rule=alone"]),
    "demo avg": ("demo", ["rule=avg"]),
    "demo uwa": ("demo", ["rule=uwa"]),
    "demo suwa": ("demo", ["rule=suwa"]),
    "demo trust": ("demo", ["rule=trust"]),
    "recipe digits": ("digits", []),
    "recipe fashion": ("fashion", []),
    "recipe mixed": ("mixed", ["rounds=2", "clients=6"]),
    **{
        f"small {rule}": ("digits", [*SMALL, f"rule={rule}"])
        for rule in [
            "alone",
            "reference",
            "avg",
            "uwa",
            "suwa",
            "most-confident",
            "fedmd",
            "ds-fl",
            "scarlet",
            "fed-et",
            "selective-fd",
            "edgefd",
            "fedaux",
            "fedgo",
            "median",
            "geometric-median",
            "cronus",
            "expguard",
            "fedavg",
            "feddf",
        ]
    },
    "small scaffold": ("digits", [*SMALL, "rule=scaffold", "train.optimizer=sgd"]),
    "small tau": ("digits", [*SMALL, "rule={ tau = 0.4 }"]),
    "small trust": ("digits", [*SMALL, "rule=trust"]),
    "small trust counts": (
        "digits",
        [*SMALL, "rule=trust", "wire.labels=counts", "split.kind=dirichlet", "guard.on=false"],
    ),
    "small unguarded": ("digits", [*PAPER, "guard.on=false"]),
    "small capped": ("digits", [*SMALL, "guard.cap=0.6", "rule=uwa"]),
    "small inflate": ("digits", [*SMALL, "attack.kind=inflate", "rule=uwa"]),
    "small flip": ("digits", [*SMALL, "rule=trust", "attack.kind=flip", "attack.share=0.25"]),
    "small nan": ("digits", [*PAPER, "attack.kind=nan"]),
    "small faults": ("digits", [*PAPER, "faults.crash=0.2", "faults.late=0.1", "participation.fraction=0.8"]),
    "small features": ("digits", [*PAPER, "density.kind=features"]),
    "small duq": ("digits", [*SMALL, "rule=suwa", "density.kind=duq"]),
    "small kernel": ("digits", [*PAPER, "density.kind=kernel", "density.standardise=true"]),
    "small density form": ("digits", [*PAPER, "wire.form=density"]),
    "small uint4 delta": ("digits", [*PAPER, "wire.up=uint4", "wire.down=uint8", "wire.delta=true"]),
    "small private training": ("digits", [*PAPER, "privacy.epsilon=8", "wire.labels=set"]),
    "small private uploads": ("digits", [*PAPER, "privacy.epsilon=50", "privacy.mechanism=uploads"]),
    "small homogeneous": ("digits", [*PAPER, "split.kind=homogeneous", "train.keep_optimizer=false"]),
    "small student": ("digits", [*PAPER, "student.name=mlp", "student.hidden=[32]"]),
}


def main() -> None:
    """Run everything, then record it or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write the record anew")
    parser.add_argument("names", nargs="*", help="runs whose names begin so; all if none is given")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    wanted = [name for name in RUNS if not chosen.names or name.startswith(tuple(chosen.names))]
    known: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    different = 0
    for name in wanted:
        found = rounds_of(*RUNS[name])
        if chosen.record:
            known[name] = found
            print(f"{name}: recorded")
            continue
        differences = list(compare(known[name], found))
        different += bool(differences)
        print(f"{name}: {'; '.join(differences[:5]) or 'the same'}", flush=True)
    if chosen.record:
        RECORD.write_text(json.dumps(known) + "\n")
    elif different:
        raise SystemExit(f"{different} of {len(wanted)} runs differ.")
    else:
        print(f"All {len(wanted)} runs give the same numbers.")


def rounds_of(recipe: str, overrides: list[str]) -> list[dict[str, Any]]:
    """The lines of rounds.jsonl of a run, times left out."""
    with tempfile.TemporaryDirectory() as folder:
        tm.run(tm.Recipe.load(recipe, [*overrides, *ENGINE]), out=Path(folder) / "run")
        lines = (Path(folder) / "run" / "rounds.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in ONLY_IN_TIME} for line in lines]


def compare(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Every difference in a sentence of its own."""
    if len(before) != len(after):
        yield f"{len(before)} rounds before, {len(after)} now"
    for old, new in zip(before, after, strict=False):
        for key in old:
            if key not in new:
                yield f"round {old['round']}: {key} is gone"
            elif json.dumps(old[key], sort_keys=True) != json.dumps(new[key], sort_keys=True):
                yield f"round {old['round']}: {key} was {old[key]}, is {new[key]}"[:300]


if __name__ == "__main__":
    main()

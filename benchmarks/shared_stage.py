"""Five rules that play their first private stage once, as in a sweep, against five separate runs.

python -m benchmarks.shared_stage       `cifar10-thin` at a fortieth of its samples, five clients, four rounds; a minute

Times are CPU seconds of one process, which other programs on the machine change little. The start of processes and the
loading of data, which both ways have, are left out.
"""

import tempfile
import time
from pathlib import Path

from trustmix import History, Recipe
from trustmix.data import Dataset
from trustmix.experiment.build import build_federation
from trustmix.experiment.data import load_data

RULES = ("avg", "uwa", "suwa", "trust", "alone")
SETTINGS = [
    "clients=5",
    "rounds=4",
    "split.classes_per_client=2",
    "split.samples_per_client=125",
    "split.test_samples=50",
    "public.samples=125",
    "model.width=4",
    "engine.mode=sequential",
    "engine.precision=float32",
]


def timed_run(rule: str, data: Dataset, first_stages: Path | None = None) -> tuple[float, History]:
    """CPU seconds of a run, and its rounds."""
    recipe = Recipe.load("cifar10-thin", [*SETTINGS, f"rule={rule}"])
    begin = time.process_time()
    with build_federation(recipe, data=data, first_stages=first_stages) as experiment:
        history = experiment.federation.run(recipe.rounds)
    return time.process_time() - begin, history


def main() -> None:
    """Run both ways, compare every accuracy, and print the times and their ratio."""
    data = load_data(Recipe.load("cifar10-thin"))
    totals = [0.0, 0.0]
    with tempfile.TemporaryDirectory() as folder:
        for rule in RULES:
            (separate, one), (shared, two) = timed_run(rule, data), timed_run(rule, data, Path(folder))
            assert [line.accuracy for line in one.rounds] == [line.accuracy for line in two.rounds]
            totals = [totals[0] + separate, totals[1] + shared]
            print(f"{rule}: {separate:.1f} s, {shared:.1f} s", flush=True)
    print(f"five rules: {totals[0]:.1f} s, {totals[1]:.1f} s, ratio {totals[0] / totals[1]:.2f}")


if __name__ == "__main__":
    main()

"""The demo: the same clients train alone, and learn from averaged, density-weighted and coupled teachers."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from trustmix.aggregation.rules import NEED_LABELS
from trustmix.experiment.recipe import Recipe
from trustmix.experiment.run import run
from trustmix.federation import History, ProgressCallback

METHODS = {"alone": "alone", "avg": "AVG", "uwa": "UWA", "suwa": "sUWA", "trust": "trust"}


def demo(
    recipe: Recipe, out: Path, show: Callable[[str], AbstractContextManager[ProgressCallback | None]]
) -> dict[str, History]:
    """Run every method on the same split and initial models; `show` opens a display for each."""
    histories = {}
    for method in METHODS:
        with show(method) as watch:
            labels = "set" if method in NEED_LABELS else "none"
            changed = recipe.model_copy(
                update={"rule": method, "wire": recipe.wire.model_copy(update={"labels": labels})}
            )
            histories[method] = run(changed, out=out / method, overwrite=True, watch=watch)
    return histories


def verdict(histories: dict[str, History], recipe: Recipe, classes: int) -> str:
    """What the figures show, in a sentence made from them."""
    best = {method: 100 * (history.best_accuracy or 0) for method, history in histories.items()}
    gain = max(best["uwa"], best["suwa"]) - best["avg"]
    held = recipe.split.classes_per_client
    figures = f"AVG reaches {best['avg']:.1f} %, UWA {best['uwa']:.1f} % and sUWA {best['suwa']:.1f} %"
    if gain > 1:
        why = f"weighing each prediction by density is worth {gain:.1f} points over averaging"
    else:
        why = "weighing predictions by density does not beat averaging here"
    return (
        f"With {held} of {classes} classes at each client, {figures}; alone they reach {best['alone']:.1f} %: {why}. "
        f"Where clients share which classes they hold, trust reaches {best['trust']:.1f} %."
    )

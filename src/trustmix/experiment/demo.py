"""The demo: the same clients train alone, and learn from averaged, density-weighted and coupled teachers."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from trustmix.experiment.recipe import Recipe
from trustmix.experiment.run import run
from trustmix.federation import METHODS, Callback, History

RULES = ("alone", "avg", "uwa", "suwa", "trust")


def demo(
    recipe: Recipe, out: Path, show: Callable[[str], AbstractContextManager[Sequence[Callback]]]
) -> dict[str, History]:
    """Run every method on the same split and initial models.

    Parameters
    ----------
    recipe
        What all have in common.
    out
        Each method gets a run directory in it.
    show
        Opens a display for a method and gives the callbacks that feed it.

    Returns
    -------
    dict
        The rounds by rule.
    """
    histories = {}
    for rule in RULES:
        with show(rule) as callbacks:
            labels = "set" if METHODS.get(rule).needs_label_sets else "none"
            changed = Recipe.load(recipe, [f"rule={rule}", *([f"wire.labels={labels}"] if labels != "none" else [])])
            histories[rule] = run(changed, out=out / rule, overwrite=True, callbacks=callbacks)
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

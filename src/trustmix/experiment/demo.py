"""The demo: five methods on the same clients: alone, the average, the paper's density, and the density ratio."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from trustmix.experiment.run import run
from trustmix.federation import Callback, History
from trustmix.settings.recipe import Recipe

RULES = ("alone", "avg", "uwa", "suwa", "trust")


def demo(
    recipe: Recipe, out: Path, show: Callable[[str], AbstractContextManager[Sequence[Callback]]]
) -> dict[str, History]:
    """Run every method on the same split and initial models.

    Parameters
    ----------
    recipe : Recipe
        The settings that all methods share.
    out : Path
        The directory that gets one run directory per method.
    show : callable
        Takes the name of a method and returns a context manager, whose value is the callbacks of the run.

    Returns
    -------
    dict of str to History
        The rounds of every method, by the name of its rule.
    """
    histories = {}
    for rule in RULES:
        with show(rule) as callbacks:
            changed = Recipe.load(recipe, [f"rule={rule}"])
            histories[rule] = run(changed, out=out / rule, overwrite=True, callbacks=callbacks)
    return histories


def verdict(histories: dict[str, History], recipe: Recipe, classes: int) -> str:
    """Describe the result of the demo in sentences made from its figures.

    Parameters
    ----------
    histories : dict of str to History
        The rounds of every method, as `demo` returns them.
    recipe : Recipe
        The recipe of the demo.
    classes : int
        The number of classes of the data set.

    Returns
    -------
    str
        The best accuracies, and whether weighing by density is better than averaging.
    """
    best = {method: 100 * (history.best_accuracy or 0) for method, history in histories.items()}
    gain = max(best["uwa"], best["suwa"]) - best["avg"]
    held = recipe.split.classes_per_client
    figures = f"AVG reaches {best['avg']:.1f} %, UWA {best['uwa']:.1f} % and sUWA {best['suwa']:.1f} %"
    if gain > 1:
        why = f"weighing each prediction by the paper's density is worth {gain:.1f} points over averaging"
    else:
        why = "weighing predictions by the paper's density does not beat averaging here"
    return (
        f"With {held} of {classes} classes at each client, {figures}; alone they reach {best['alone']:.1f} %: {why}. "
        f"With density ratios, by those who hold a class, trust reaches {best['trust']:.1f} %."
    )

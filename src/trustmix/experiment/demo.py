"""The demo: five methods on the same clients: alone, the average, the paper's density, and the density ratio."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from trustmix.experiment.run import run
from trustmix.federation import Callback, History, method_label
from trustmix.settings.recipe import Recipe

RULES = ("alone", "avg", "uwa", "suwa", "trust")


def demo(
    recipe: Recipe, out: Path, show: Callable[[str, int, int], AbstractContextManager[Sequence[Callback]]]
) -> dict[str, History]:
    """Run every method on the same split and initial models.

    Parameters
    ----------
    recipe : Recipe
        The settings that all methods share.
    out : Path
        The directory that gets one run directory per method.
    show : callable
        Takes the name of a method, its place and the number of methods, and returns a context manager, whose value is
        the callbacks of the run.

    Returns
    -------
    dict of str to History
        The rounds of every method, by the name of its rule.
    """
    histories = {}
    for place, rule in enumerate(RULES, 1):
        with show(rule, place, len(RULES)) as callbacks:
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
        The best accuracies, the differences to averaging, and that they are of one seed.
    """
    best = {method: 100 * (history.best_accuracy or 0) for method, history in histories.items()}
    named = [(method_label(method), best[method]) for method in ("avg", "uwa", "suwa", "trust")]
    reached = [f"{label} {value:.1f} %" for label, value in named]
    gains = [f"{label} {value - best['avg']:+.1f}" for label, value in named[1:]]
    return (
        f"With {recipe.split.classes_per_client} of {classes} classes at each client, clients reach "
        f"{best['alone']:.1f} % alone, with {', '.join(reached[:-1])} and {reached[-1]}. "
        f"Points over averaging: {', '.join(gains)}. "
        "This is one seed; `trustmix sweep demo --over rule=avg,trust --seeds 5` and its report give an interval."
    )

"""How many runs of a sweep run in parallel: at most one per core, and no more than the free memory holds.

The memory of a run is estimated from above: a process with torch, the data twice, and every client's model with what
training adds, of which a run keeps at most half the machine's memory. Data and models from the user's own code are not
built for the estimate and count as nothing; `--jobs` sets the number of runs for them.
"""

import json
from collections.abc import Iterable

import psutil

from trustmix.data import Dataset
from trustmix.engines.autotune import best_device
from trustmix.engines.local import cores
from trustmix.experiment.build import TRAINING_COPIES
from trustmix.experiment.data import load_data
from trustmix.models import ModelFactory
from trustmix.settings.recipe import Recipe

PROCESS_BYTES = 600 * 2**20
"""Bytes of a small run: the interpreter, torch, and what a training step needs."""


BUSY = 1.5
"""Times the load that the cores can serve; above it a trial takes longer than on free cores."""


def machine_load() -> float:
    """Return the processes that want to run, in the mean over the last minute, per core.

    Returns
    -------
    float
        About 1 where every core is in use; 0 where the system does not count it.
    """
    return float(psutil.getloadavg()[0]) / cores()


def max_parallel_jobs(recipes: Iterable[Recipe]) -> int:
    """Count the runs that can run in parallel; one where they would share a GPU.

    Parameters
    ----------
    recipes : iterable of Recipe
        The recipes of the runs; the one that needs the most memory decides.

    Returns
    -------
    int
        The number of runs, at least 1.

    Examples
    --------
    >>> 1 <= max_parallel_jobs([Recipe.load("demo")]) <= cores()
    True
    """
    different = {_relevant_settings(recipe): recipe for recipe in recipes}.values()
    if any(_device(recipe) != "cpu" for recipe in different):
        return 1
    needed = max(memory_needed(recipe) for recipe in different)
    return max(1, int(min(cores(), memory_available() / needed)))


def _relevant_settings(recipe: Recipe) -> str:
    """The settings that the estimate depends on."""
    return json.dumps(recipe.model_dump(mode="json", include={"clients", "data", "model", "engine"}))


def _device(recipe: Recipe) -> str:
    return best_device() if recipe.engine.device == "auto" else recipe.engine.device


def memory_needed(recipe: Recipe) -> float:
    """Estimate the memory of a run from above.

    Parameters
    ----------
    recipe : Recipe
        The recipe of the run; its data are loaded and each of its models is built once.

    Returns
    -------
    float
        Bytes.

    Examples
    --------
    >>> memory_needed(Recipe.load("demo")) - PROCESS_BYTES < 20e6  # 1,797 images and twenty small models
    True
    """
    if recipe.data.source or any(model.source for model in recipe.models):
        return PROCESS_BYTES
    data = load_data(recipe)
    parts = [part.inputs for part in (data.train, data.test, data.public) if part is not None]
    models = TRAINING_COPIES * recipe.clients * _model_bytes(recipe, data)
    machine = float(psutil.virtual_memory().total)
    return PROCESS_BYTES + 2 * sum(inputs.nbytes for inputs in parts) + min(models, machine / 2)


def _model_bytes(recipe: Recipe, data: Dataset) -> float:
    """Bytes of a model's parameters, mean over the recipe's models."""
    built = [
        ModelFactory(model.name, options=model.model_extra or {}, shape=data.shape, classes=data.classes)()
        for model in recipe.models
    ]
    return sum(p.numel() * p.element_size() for model in built for p in model.parameters()) / len(built)


def memory_available() -> int:
    """Return the bytes of memory that can be taken without swapping."""
    return int(psutil.virtual_memory().available)

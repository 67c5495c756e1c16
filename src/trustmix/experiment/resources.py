"""How many runs of a sweep go side by side: as many as cores, and no more than the free memory holds.

The memory of a run is estimated from above: a process with torch, the data twice, and every client's model with what
training adds, of which a run keeps at most half the machine's memory. Data or models of the user's own are not built
for this and count as nothing; `--jobs` is there for them.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from trustmix.data import Dataset
from trustmix.engines.autotune import best_device
from trustmix.engines.local import cores
from trustmix.experiment.build import TRAINING_COPIES
from trustmix.experiment.data import load_data
from trustmix.experiment.recipe import Recipe
from trustmix.models import ModelFactory

PROCESS = 600 * 2**20
"""Bytes of a small run: the interpreter, torch, and what a step needs."""


def max_parallel_jobs(recipes: Iterable[Recipe]) -> int:
    """Runs side by side; one where they would share a GPU.

    >>> 1 <= max_parallel_jobs([Recipe.load("demo")]) <= cores()
    True
    """
    kinds = {_kind(recipe): recipe for recipe in recipes}.values()
    if any(_device(recipe) != "cpu" for recipe in kinds):
        return 1
    needed = max(memory_needed(recipe) for recipe in kinds)
    return max(1, int(min(cores(), memory_available() / needed)))


def _kind(recipe: Recipe) -> str:
    """What the estimate depends on."""
    return json.dumps(recipe.model_dump(mode="json", include={"clients", "data", "model", "engine"}))


def _device(recipe: Recipe) -> str:
    return best_device() if recipe.engine.device == "auto" else recipe.engine.device


def memory_needed(recipe: Recipe) -> float:
    """Bytes a run of the recipe takes, estimated from above.

    >>> memory_needed(Recipe.load("demo")) - PROCESS < 20e6  # 1,797 images and twenty small models
    True
    """
    if recipe.data.source or any(model.source for model in recipe.models):
        return PROCESS
    data = load_data(recipe)
    parts = [part.inputs for part in (data.train, data.test, data.public) if part is not None]
    models = TRAINING_COPIES * recipe.clients * _model_bytes(recipe, data)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return PROCESS + 2 * sum(inputs.nbytes for inputs in parts) + min(models, machine / 2)


def _model_bytes(recipe: Recipe, data: Dataset) -> float:
    """Bytes of a model's parameters, the mean over the recipe's models."""
    built = [
        ModelFactory(model.name, options=model.model_extra or {}, shape=data.shape, classes=data.classes)()
        for model in recipe.models
    ]
    return sum(p.numel() * p.element_size() for model in built for p in model.parameters()) / len(built)


def memory_available() -> float:
    """Bytes that can be taken without swapping, or no bound where the system (other than Linux) does not tell."""
    facts = Path("/proc/meminfo")
    lines = facts.read_text("utf-8").splitlines() if facts.exists() else []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else float("inf")

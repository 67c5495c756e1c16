"""Recipes, the federations built from them, runs and their directories."""

from trustmix.experiment.build import build_federation
from trustmix.experiment.recipe import Recipe, builtin_recipes
from trustmix.experiment.run import run
from trustmix.experiment.run_directory import RunDirectory

__all__ = [
    "Recipe",
    "RunDirectory",
    "build_federation",
    "builtin_recipes",
    "run",
]

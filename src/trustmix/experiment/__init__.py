"""Federations built from recipes, runs and their directories, and what is done with finished ones."""

from trustmix.experiment.build import build_federation
from trustmix.experiment.run import run
from trustmix.experiment.run_directory import RunDirectory

__all__ = ["RunDirectory", "build_federation", "run"]

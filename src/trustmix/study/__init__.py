"""Recipes, runs, and what is shown of them."""

from trustmix.study.building import prepare
from trustmix.study.recipe import Recipe, built_in
from trustmix.study.record import RunDirectory
from trustmix.study.runs import run

__all__ = ["Recipe", "RunDirectory", "built_in", "prepare", "run"]

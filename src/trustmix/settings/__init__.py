"""Recipes: every setting of a run, read from TOML, checked before anything starts, and written back."""

from trustmix.settings.builtin import builtin_recipes
from trustmix.settings.recipe import Recipe

__all__ = ["Recipe", "builtin_recipes"]

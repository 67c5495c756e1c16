"""Recipes: every setting of a run, read from TOML, checked before anything starts, and written back."""

from trustmix.settings.recipe import Recipe, builtin_recipes

__all__ = ["Recipe", "builtin_recipes"]

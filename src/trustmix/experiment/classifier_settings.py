"""Which settings of a recipe do not go with classifiers that are fitted as a whole: refused before the first fit."""

from torch import nn

from trustmix.density import DISCRIMINATOR
from trustmix.errors import TrustmixError
from trustmix.models import ClassifierModel
from trustmix.settings.recipe import Recipe

WEIGHT_CLIENTS = ("weights", "scaffold")
"""Kinds of clients that exchange weights."""


def validate_classifier_settings(recipe: Recipe, model: nn.Module, label: str, client: str | None = None) -> None:
    """Raise if a recipe asks of a classifier what only networks can do.

    Parameters
    ----------
    recipe : Recipe
        The recipe.
    model : torch.nn.Module
        The model of a client; networks are not refused.
    label : str
        The model's name in quotes, for messages.
    client : str, optional
        The kind of client; by default that of the recipe's method.

    Raises
    ------
    TrustmixError
        With the setting and the reason.

    Examples
    --------
    >>> from trustmix.models import random_forest
    >>> recipe = Recipe.load("digits", ["train.stages=mixed"])
    >>> validate_classifier_settings(recipe, random_forest((4,), 2), '"random-forest"')
    Traceback (most recent call last):
    ...
    trustmix.errors.TrustmixError: train.stages = mixed goes with networks alone, and "random-forest" is fitted as a ...
    """
    if not isinstance(model, ClassifierModel):
        return
    client = recipe.method.client if client is None else client
    refused = {
        f"a method that exchanges weights (clients of kind {client})": client in WEIGHT_CLIENTS,
        "privacy.mechanism = training": recipe.privacy.epsilon is not None and recipe.privacy.mechanism == "training",
        "density.kind = discriminator": recipe.density.kind == DISCRIMINATOR,
        "train.stages = mixed": recipe.train.stages == "mixed",
        f"train.augment = {recipe.train.augment}": recipe.train.augment != "none",
        "theory.every": recipe.theory.every is not None,
    }
    for setting, asked in refused.items():
        if asked:
            raise TrustmixError(f"{setting} goes with networks alone, and {label} is fitted as a whole.")

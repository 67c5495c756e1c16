"""The samples of a recipe: its data set, the public set, the private samples of each client, and the test set."""

import inspect
from collections.abc import Sequence
from pathlib import Path

import torch

from trustmix import paths
from trustmix.data import DATASETS, Dataset, Labelled, load, partition
from trustmix.errors import TrustmixError
from trustmix.lazy import lazily
from trustmix.seeds import numpy_generator
from trustmix.settings.recipe import Recipe


def load_data(recipe: Recipe) -> Dataset:
    """Load the data set of a recipe.

    Parameters
    ----------
    recipe : Recipe
        The recipe; its section [data] names the data set.

    Returns
    -------
    Dataset
        The data set.

    Raises
    ------
    TrustmixError
        If the data are not found or cannot be used.

    Examples
    --------
    >>> load_data(Recipe.load("demo")).classes
    10
    """
    config = recipe.data
    return load(config.name, path=config.path, source=config.source, **(config.model_extra or {}))


def split_data(recipe: Recipe, data: Dataset) -> tuple[Labelled, Sequence[tuple[Labelled, Labelled]]]:
    """Draw the public set, and split the private data into clients.

    Parameters
    ----------
    recipe : Recipe
        The recipe; its sections [split], [public] and [density] apply.
    data : Dataset
        The data set of the recipe.

    Returns
    -------
    public : Labelled
        The public samples; a label of -1 means unknown.
    shares : sequence of pairs of Labelled
        The private and the calibration samples of every client; of many clients they are drawn on demand.

    Raises
    ------
    TrustmixError
        If the data set has too few samples, or another public data set has other inputs.

    Examples
    --------
    >>> recipe = Recipe.load("demo", ["clients=5", "public.samples=100"])
    >>> public, shares = split_data(recipe, load_data(recipe))
    >>> len(public), len(shares)
    (100, 5)
    """
    seed = recipe.seed if recipe.split.seed is None else recipe.split.seed
    pool = _public_pool(recipe, data)
    split = partition(
        data.train.labels,
        data.classes,
        clients=recipe.clients,
        kind=recipe.split.kind,
        classes_per_client=recipe.split.classes_per_client,
        samples_per_client=recipe.split.samples_per_client,
        alpha=recipe.split.alpha,
        public_samples=recipe.public.samples if pool is None else None,
        holdout=recipe.density.holdout if recipe.holds_out else 0.0,
        seed=seed,
        groups=data.groups,
    )
    public = data.train[split.public] if pool is None else _draw_public(recipe, pool)

    def share(client: int) -> tuple[Labelled, Labelled]:
        own = split.clients[client]
        return data.train[own.train], data.train[own.calibration]

    return public, lazily(recipe.clients, share)


def load_public(recipe: Recipe, data: Dataset) -> Labelled:
    """Draw the public set; the private data are split only if both come from the same pool.

    Parameters
    ----------
    recipe : Recipe
        The recipe.
    data : Dataset
        The data set of the recipe.

    Returns
    -------
    Labelled
        The public samples, the same as those of `split_data`.

    Raises
    ------
    TrustmixError
        As `split_data`.

    Examples
    --------
    >>> recipe = Recipe.load("demo", ["public.samples=100"])
    >>> len(load_public(recipe, load_data(recipe)))
    100
    """
    pool = _public_pool(recipe, data)
    return split_data(recipe, data)[0] if pool is None else _draw_public(recipe, pool)


def select_test_set(recipe: Recipe, data: Dataset) -> Labelled:
    """Select the test samples; a part of them is the same for every seed.

    Parameters
    ----------
    recipe : Recipe
        The recipe; split.test_samples is the number of samples.
    data : Dataset
        The data set of the recipe.

    Returns
    -------
    Labelled
        The test samples; all of them if the recipe sets no number.

    Examples
    --------
    >>> recipe = Recipe.load("demo", ["split.test_samples=50"])
    >>> len(select_test_set(recipe, load_data(recipe)))
    50
    """
    order = torch.from_numpy(numpy_generator(0, "test").permutation(len(data.test)))[: recipe.split.test_samples]
    return data.test if recipe.split.test_samples is None else data.test[order.sort().values]


def client_calibration(recipe: Recipe, client: int) -> Labelled:
    """Load the calibration samples of a client.

    Parameters
    ----------
    recipe : Recipe
        The recipe.
    client : int
        The number of the client, from 0.

    Returns
    -------
    Labelled
        The samples that the client's density is fitted on.

    Raises
    ------
    TrustmixError
        If the data are not found or cannot be split.

    Examples
    --------
    >>> len(client_calibration(Recipe.load("demo", ["split.samples_per_client=100"]), client=3))
    20
    """
    return split_data(recipe, load_data(recipe))[1][client][1]


def validate_augmentation(recipe: Recipe, data: Dataset) -> None:
    """Refuse augmentation of data that are not images.

    Parameters
    ----------
    recipe : Recipe
        The recipe.
    data : Dataset
        The data set of the recipe.

    Raises
    ------
    TrustmixError
        If the recipe asks for augmented images and the inputs have another shape.
    """
    augments = {
        "train.augment": recipe.train.augment != "none",
        "density.calibration": recipe.density.calibration == "augmented",
    }
    for setting in (name for name, is_set in augments.items() if is_set):
        if len(data.shape) != 3:
            raise TrustmixError(f"{setting} asks for augmented images, but the inputs of {data.name} are {data.shape}.")


def _resolve(path: str | None) -> Path | str | None:
    """The absolute path, to compare two spellings of the same file."""
    found = None if path is None else paths.find_path(path)
    return path if found is None else found.resolve()


def _draw_public(recipe: Recipe, pool: Labelled) -> Labelled:
    """Draw the public samples of the recipe from a pool."""
    if recipe.public.samples > len(pool):
        raise TrustmixError(f"public.samples is {recipe.public.samples}, but the public set has {len(pool)} samples.")
    seed = recipe.seed if recipe.split.seed is None else recipe.split.seed
    order = numpy_generator(seed, "public").permutation(len(pool))
    return pool[torch.from_numpy(order[: recipe.public.samples])]


def _public_pool(recipe: Recipe, data: Dataset) -> Labelled | None:
    """The samples of a public set that is separate from the private data: the data's own, or another data set's.

    The labels of another data set have another meaning, so they count as unknown. Shorter texts are padded.
    """
    config = recipe.public
    if config.data is None:
        return data.public
    same_path = _resolve(config.path) == _resolve(recipe.data.path)
    if config.data == recipe.data.name and same_path:
        raise TrustmixError("public.data is the private data set itself; leave it out to draw from the same pool.")
    parameters = inspect.signature(DATASETS.get(config.data)).parameters
    private = recipe.data.model_extra or {}
    as_private = {key: private[key] for key in ("tokenizer", "length", "size") if key in private and key in parameters}
    other = load(config.data, path=config.path, **as_private | (config.model_extra or {})).train.inputs
    own = data.train.inputs
    if own.ndim == other.ndim == 2 and not own.dtype.is_floating_point and not other.dtype.is_floating_point:
        other = torch.nn.functional.pad(other[:, : own.shape[1]], (0, max(0, own.shape[1] - other.shape[1])), value=-1)
        other = other.to(own.dtype)
    if other.shape[1:] != own.shape[1:] or other.dtype != own.dtype:
        raise TrustmixError(
            f'public.data "{config.data}" has inputs {tuple(other.shape[1:])} ({other.dtype}), the private data '
            f"{data.shape} ({own.dtype}); they must be alike."
        )
    return Labelled(other, torch.full((len(other),), -1))

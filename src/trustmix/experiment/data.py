"""The samples of a recipe: its data, the public set, each client's share, and what is tested on."""

import inspect
from pathlib import Path

import torch

from trustmix import paths
from trustmix.data import DATASETS, Dataset, Labelled, load, partition
from trustmix.errors import TrustmixError
from trustmix.experiment.recipe import Recipe
from trustmix.seeds import numpy_generator


def load_data(recipe: Recipe) -> Dataset:
    """The data a recipe names."""
    wanted = recipe.data
    return load(wanted.name, path=wanted.path, source=wanted.source, **(wanted.model_extra or {}))


def split_data(recipe: Recipe, data: Dataset) -> tuple[Labelled, list[tuple[Labelled, Labelled]]]:
    """The public set, and each client's private and calibration samples."""
    seed = recipe.seed if recipe.split.seed is None else recipe.split.seed
    elsewhere = _public_elsewhere(recipe, data)
    split = partition(
        data.train.labels,
        data.classes,
        clients=recipe.clients,
        kind=recipe.split.kind,
        classes_per_client=recipe.split.classes_per_client,
        samples_per_client=recipe.split.samples_per_client,
        alpha=recipe.split.alpha,
        public_samples=recipe.public.samples if elsewhere is None else None,
        holdout=recipe.density.holdout if recipe.holds_out else 0.0,
        seed=seed,
    )
    public = data.train[split.public] if elsewhere is None else _drawn(recipe, elsewhere)
    return public, [(data.train[share.train], data.train[share.calibration]) for share in split.clients]


def load_public(recipe: Recipe, data: Dataset) -> Labelled:
    """The public set alone, which the private data need not be split for where it comes from elsewhere."""
    elsewhere = _public_elsewhere(recipe, data)
    return split_data(recipe, data)[0] if elsewhere is None else _drawn(recipe, elsewhere)


def select_test_set(recipe: Recipe, data: Dataset) -> Labelled:
    """The test samples, or a part of them, the same for every seed."""
    order = torch.from_numpy(numpy_generator(0, "test").permutation(len(data.test)))[: recipe.split.test_samples]
    return data.test if recipe.split.test_samples is None else data.test[order.sort().values]


def client_calibration(recipe: Recipe, client: int) -> Labelled:
    """The samples a client's density is fitted on."""
    return split_data(recipe, load_data(recipe))[1][client][1]


def validate_augmentation(recipe: Recipe, data: Dataset) -> None:
    """Augmentation is of images."""
    wants = {"train.augment": recipe.train.augment != "none"}
    wants["density.calibration"] = recipe.density.calibration == "augmented"
    for setting in (name for name, wanted in wants.items() if wanted):
        if len(data.shape) != 3:
            raise TrustmixError(f"{setting} asks for augmented images, but the inputs of {data.name} are {data.shape}.")


def _place(path: str | None) -> Path | str | None:
    """Where a path leads, however it is written."""
    found = None if path is None else paths.find_path(path)
    return path if found is None else found.resolve()


def _drawn(recipe: Recipe, elsewhere: Labelled) -> Labelled:
    """As many public samples as the recipe wants."""
    if recipe.public.samples > len(elsewhere):
        raise TrustmixError(
            f"public.samples is {recipe.public.samples}, but the public set has {len(elsewhere)} samples."
        )
    seed = recipe.seed if recipe.split.seed is None else recipe.split.seed
    order = numpy_generator(seed, "public").permutation(len(elsewhere))
    return elsewhere[torch.from_numpy(order[: recipe.public.samples])]


def _public_elsewhere(recipe: Recipe, data: Dataset) -> Labelled | None:
    """Public samples from other data than the private ones: the data's own public set, or another data set's.

    Another data set's labels mean something else, so they count as unknown. Shorter texts are padded.
    """
    wanted = recipe.public
    if wanted.data is None:
        return data.public
    same_place = _place(wanted.path) == _place(recipe.data.path)
    if wanted.data == recipe.data.name and same_place:
        raise TrustmixError("public.data is the private data set itself; leave it out to draw from the same pool.")
    takes = inspect.signature(DATASETS.get(wanted.data)).parameters
    given = recipe.data.model_extra or {}
    as_private = {key: given[key] for key in ("tokenizer", "length", "size") if key in given and key in takes}
    other = load(wanted.data, path=wanted.path, **as_private | (wanted.model_extra or {})).train.inputs
    own = data.train.inputs
    if own.ndim == other.ndim == 2 and not own.dtype.is_floating_point and not other.dtype.is_floating_point:
        other = torch.nn.functional.pad(other[:, : own.shape[1]], (0, max(0, own.shape[1] - other.shape[1])), value=-1)
        other = other.to(own.dtype)
    if other.shape[1:] != own.shape[1:] or other.dtype != own.dtype:
        raise TrustmixError(
            f'public.data "{wanted.data}" has inputs {tuple(other.shape[1:])} ({other.dtype}), the private data '
            f"{data.shape} ({own.dtype}); they must be alike."
        )
    return Labelled(other, torch.full((len(other),), -1))

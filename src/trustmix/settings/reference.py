"""Every setting of a recipe with its default, meaning and choices, for the command line and the documentation."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trustmix.attacks.byzantine_engine import ATTACKS
from trustmix.data import DATASETS
from trustmix.density import DENSITIES, DISCRIMINATOR
from trustmix.errors import TrustmixError
from trustmix.federation import ENGINES, METHODS
from trustmix.learners import OPTIMIZERS
from trustmix.models import MODELS
from trustmix.registry import did_you_mean
from trustmix.settings.config import ModelConfig, StudentConfig
from trustmix.settings.recipe import Recipe
from trustmix.wire import CODECS

TOP = "top level"
"""What the settings outside of sections are called."""


@dataclass(frozen=True)
class Setting:
    """One setting."""

    path: str
    """section.key, as `--set` takes it."""
    default: str
    meaning: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """One section of a recipe."""

    name: str
    text: str
    settings: tuple[Setting, ...]


def describe_settings(section: str | None = None) -> list[Section]:
    """Describe the sections of a recipe.

    Parameters
    ----------
    section : str, optional
        The name of one section; all of them by default.

    Returns
    -------
    list of Section
        The settings outside of sections first.

    Raises
    ------
    TrustmixError
        If there is no such section.

    Examples
    --------
    >>> [setting.path for setting in describe_settings("public")[0].settings]
    ['public.samples', 'public.data', 'public.path']
    """
    fields = Recipe.model_fields
    top = {key: info for key, info in fields.items() if _section(key, info) is None}
    found = {TOP: Section(TOP, "Settings outside of sections.", tuple(_settings("", top)))}
    for name, info in fields.items():
        model = _section(name, info)
        if model is not None:
            text = inspect.cleandoc(model.__doc__ or "")
            found[name] = Section(name, text, tuple(_settings(f"{name}.", model.model_fields)))
    if section is None:
        return list(found.values())
    if section not in found:
        hint = did_you_mean(section, found)
        raise TrustmixError(f'A recipe has no section "{section}".{hint} There are: {", ".join(found)}.')
    return [found[section]]


def _section(name: str, info: FieldInfo) -> type[BaseModel] | None:
    known: dict[str, type[BaseModel]] = {"model": ModelConfig, "student": StudentConfig}
    found: Any = known.get(name, info.annotation)
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _settings(before: str, fields: Mapping[str, FieldInfo]) -> Iterator[Setting]:
    names = _registered_names()
    for key, info in fields.items():
        default = "none" if info.default is None else "required" if info.is_required() else str(info.default).lower()
        path = f"{before}{key}"
        listed = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
        yield Setting(path, default, info.description or "", names.get(path, tuple(map(str, listed))))


def _registered_names() -> dict[str, tuple[str, ...]]:
    """The choices of settings that are a name of something registered."""
    data, models, codecs = (tuple(registry.names()) for registry in (DATASETS, MODELS, CODECS))
    found = {"rule": tuple(METHODS.names()), "data.name": data, "public.data": data, "attack.kind": tuple(ATTACKS)}
    found |= {"model.name": models, "student.name": models, "train.optimizer": tuple(OPTIMIZERS.names())}
    found["density.kind"] = (*DENSITIES.names(), DISCRIMINATOR)
    return found | {"engine.name": tuple(ENGINES.names()), "wire.up": codecs, "wire.down": codecs}

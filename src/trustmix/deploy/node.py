"""A node's own part of a federation: its identity, its data and its model, in a small TOML file beside the data.

    id = "north"
    data = "patients.parquet"       # a table, an npz file, a folder of images; or source = "package.module:function"
    label = "diagnosis"             # and further settings of that kind of data
    model = "my_package.models:build"

What the server says decides how to train and what the classes are; what to run and what to read is the node's alone.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch.nn.functional import pad

from trustmix.data import Dataset, Labelled, from_arrays, load, stratified_holdout
from trustmix.data.labels import split_off_test
from trustmix.data.loading import read_npz
from trustmix.data.tables import kind_of
from trustmix.errors import TrustmixError
from trustmix.experiment import toml_settings as toml
from trustmix.experiment.build import build_client, model_factories, probe_inputs, validate_privacy
from trustmix.experiment.config import ModelConfig
from trustmix.experiment.data import load_data, select_test_set, split_data
from trustmix.experiment.recipe import Recipe
from trustmix.experiment.validation import format_validation_error
from trustmix.federation import Client, DeviceConfig, Public
from trustmix.models import ModelFactory, validate_model


class NodeConfig(BaseModel):
    """What a node's file says; settings that are not named here are those of the kind of data."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: str = ""
    share: int | None = Field(None, ge=0, description="for trying out: this share of the recipe's own split")
    data: str | None = Field(None, description="a table, an npz file or a folder of images, beside the node's file")
    source: str | None = Field(None, description="package.module:function of your own that returns the data")
    model: str | dict[str, Any] | None = Field(None, description="a built-in model, or package.module:function")
    test: float = Field(0.2, ge=0, lt=1, description="part of the data kept to measure accuracy; 0 measures nothing")
    device: str = Field("cpu", description="where to train: cpu, cuda or mps")
    folder: Path = Field(Path(), exclude=True, description="where the file lies")

    @model_validator(mode="after")
    def _one_of(self) -> "NodeConfig":
        given = [name for name in ("share", "data", "source") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of share, data and source (given: {', '.join(given) or 'none'})")
        if not self.id and self.share is None:
            raise ValueError('give an id, such as id = "north"')
        if self.share is not None and self.model_extra:
            raise ValueError(f"{next(iter(self.model_extra))} goes with data, and this node takes a share")
        return self

    @classmethod
    def load(cls, file: str | Path) -> "NodeConfig":
        """The node of a file."""
        path = Path(file).expanduser()
        if not path.is_file():
            raise TrustmixError(f"There is no file {path}; it must be a node's TOML file.")
        fields = toml.read(path)
        if "share" in fields:
            fields.setdefault("id", str(fields["share"]))
        try:
            return cls.model_validate({**fields, "folder": path.resolve().parent})
        except ValidationError as error:
            raise TrustmixError(f"{path}: {format_validation_error(error, list(cls.model_fields))}") from error

    @property
    def state(self) -> Path:
        """Where the node keeps what it must remember between rounds."""
        return self.folder / f"{self.id}-state"


@dataclass(frozen=True)
class NodeData:
    """A node's own data: training and test samples, and the names of its classes."""

    train: Labelled
    test: Labelled | None
    names: list[str]
    indexed: bool = False
    """Whether the names are only numbers, which count the server's classes."""

    def counts(self) -> dict[str, int]:
        """Training samples of each class."""
        found = torch.bincount(self.train.labels, minlength=len(self.names)).tolist()
        return dict(zip(self.names, found, strict=True))

    def among(self, classes: list[str]) -> "NodeData":
        """The same data with the labels that the classes of all nodes give."""
        known = {str(index) if self.indexed else name: index for index, name in enumerate(classes)}
        unknown = [name for name in self.names if name not in known]
        if unknown:
            raise TrustmixError(
                f'This node has the class "{unknown[0]}", which the server does not know; its classes are '
                f"{', '.join(classes[:30])}."
            )
        new = torch.tensor([known[name] for name in self.names])
        test = None if self.test is None else Labelled(self.test.inputs, new[self.test.labels])
        return NodeData(Labelled(self.train.inputs, new[self.train.labels]), test, classes)


def load_node_data(node: NodeConfig) -> NodeData:
    """A node's data, read and checked."""
    options = dict(node.model_extra or {})
    if node.test and node.source is None:
        options["test"] = node.test
    if node.source is not None:
        found = load(source=node.source, **options)
        return NodeData(found.train, found.test if node.test else None, list(found.class_names))
    place = node.folder / str(node.data)
    if not place.exists():
        raise TrustmixError(f"There is no {place}; data names a file or folder beside the node's file.")
    if place.suffix == ".npz":
        if node.model_extra:
            raise TrustmixError(
                f'An npz file has no setting "{next(iter(node.model_extra))}"; see the file of this node.'
            )
        return _arrays(place, node.test)
    kind = "images" if place.is_dir() else "text" if "text" in options else "table"
    if kind != "images" and not kind_of(place):
        raise TrustmixError(
            f"{place} is no data a node can read: it must be a table, an npz file or a folder of images."
        )
    dataset = load(kind, path=place, **options)
    return NodeData(
        _whole(dataset) if not node.test else dataset.train,
        dataset.test if node.test else None,
        list(dataset.class_names),
    )


def _whole(dataset: Dataset) -> Labelled:
    """Training and test samples together."""
    parts = (dataset.train, dataset.test)
    return Labelled(torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts]))


def _arrays(place: Path, test: float) -> NodeData:
    """The data of an npz file; of the numbers that are its labels, only those that occur count as its classes."""
    arrays = read_npz(place)
    for name in ("x_train", "y_train"):
        if name not in arrays:
            raise TrustmixError(f"{place} lacks {name}; it has {', '.join(sorted(arrays)) or 'nothing'}.")
    named = "classes" in arrays
    present = sorted({int(label) for label in arrays["y_train"]})
    again = {label: index for index, label in enumerate(present)}
    names = [str(arrays["classes"][label]) if named else str(label) for label in present]
    labels = [again[int(label)] for label in arrays["y_train"]]
    parts = {"x_train": arrays["x_train"], "y_train": labels, "classes": names}
    tests = {"x_test": arrays["x_train"], "y_test": labels}
    if "x_test" in arrays and "y_test" in arrays:
        tests = {"x_test": arrays["x_test"], "y_test": [again.get(int(label), -1) for label in arrays["y_test"]]}
    dataset = from_arrays(place.stem, {**parts, **tests})
    train, held_out = dataset.train, dataset.test
    if "x_test" not in arrays and test:
        train, held_out = split_off_test(train, len(names), test, place.name)
    known = held_out.labels >= 0
    return NodeData(train, held_out[known] if test and bool(known.any()) else None, names, indexed=not named)


def node_model(node: NodeConfig, recipe: Recipe | None) -> ModelConfig:
    """The node's own model; without one, the server's, if it is built in: a node runs no code the server names."""
    if node.model is not None:
        fields = node.model if isinstance(node.model, dict) else {"source" if ":" in node.model else "name": node.model}
        try:
            return ModelConfig.model_validate(fields)
        except ValidationError as error:
            raise TrustmixError(f"model: {format_validation_error(error, list(ModelConfig.model_fields))}") from error
    first = ModelConfig(name="mlp") if recipe is None else recipe.models[0]
    if first.source is not None:
        raise TrustmixError(f"The server's model is {first.source}; name a model of this node's own in its file.")
    return first


def build_node_client(node: NodeConfig, settings: dict[str, Any], public: Public, folder: Path) -> Client:
    """The client of a run, from the node's file and what the server said."""
    recipe = Recipe.load(toml.parse(str(settings["recipe"]), "the server's recipe"))
    client = (
        _share(node, recipe, settings, public, folder)
        if node.share is not None
        else _own(node, recipe, settings, public, folder)
    )
    client.to_device(DeviceConfig(node.device), keep=True)
    return client


def _share(node: NodeConfig, recipe: Recipe, settings: dict[str, Any], public: Public, folder: Path) -> Client:
    """A share of the recipe's own split: the same client as on one machine."""
    number = int(node.share or 0)
    data = load_data(recipe)
    shared, shares = split_data(recipe, data)
    if number >= len(shares):
        raise TrustmixError(f"share is {number}, but the recipe splits its data among {len(shares)} clients, from 0.")
    if Public(shared.inputs, data.classes).fingerprint != public.fingerprint:
        raise TrustmixError("The data here give another public set than the server's; is it the same data set?")
    model = model_factories(recipe, data)[number]
    test, kind = select_test_set(recipe, data), str(settings["client"])
    return build_client(recipe, node.id, model, shares[number], public, test, folder, kind=kind)


def _own(node: NodeConfig, recipe: Recipe, settings: dict[str, Any], public: Public, folder: Path) -> Client:
    """A client with the node's own data and model."""
    columns = settings.get("columns")
    if columns and node.data is not None and kind_of(Path(node.data)) and "columns" not in (node.model_extra or {}):
        node = node.model_copy(update={"columns": columns})
    own = load_node_data(node).among([str(name) for name in settings["classes"]])
    wide = tuple(public.inputs.shape[1:])
    inputs = own.train.inputs
    if inputs.ndim == 2 and public.inputs.dtype == inputs.dtype and not inputs.dtype.is_floating_point:
        own = NodeData(_padded(own.train, wide[0]), own.test and _padded(own.test, wide[0]), own.names)
    if tuple(own.train.inputs.shape[1:]) != wide or own.train.inputs.dtype != public.inputs.dtype:
        raise TrustmixError(
            f"Inputs here are {tuple(inputs.shape[1:])} ({inputs.dtype}), those of the public set {wide} "
            f"({public.inputs.dtype}); they must be alike."
        )
    scale = (tuple(settings["mean"]), tuple(settings["std"])) if inputs.dtype == torch.uint8 else None
    wanted = node_model(node, recipe)
    model = ModelFactory(
        wanted.name, wanted.source, wanted.model_extra or {}, wide, len(own.names), scale, recipe.seed, node.id
    )
    validate_model(model, probe_inputs(own.train.inputs))
    share = (own.train, own.train)
    if recipe.holds_out:
        train_part, held_out = stratified_holdout(own.train.labels, recipe.density.holdout, recipe.seed, node.id)
        share = (own.train[train_part], own.train[held_out])
    kind = str(settings["client"])
    client = build_client(recipe, node.id, model, share, public, own.test, folder, simulated=False, kind=kind)
    validate_privacy(recipe, own.train.inputs, [client])
    return client


def _padded(part: Labelled, width: int) -> Labelled:
    """Texts cut or padded to the width of the public ones."""
    inputs = part.inputs[:, :width]
    return Labelled(pad(inputs, (0, width - inputs.shape[1]), value=-1), part.labels)


def check_node(node: NodeConfig) -> NodeData:
    """Read the node's data, build its model and try it once, before it joins; gives the data."""
    own = load_node_data(node)
    images = own.train.inputs.dtype == torch.uint8
    channels = own.train.inputs.shape[1] if own.train.inputs.ndim == 4 else 1
    scale = ((0.5,) * channels, (0.25,) * channels) if images else None
    wanted = node_model(node, None)
    shape = tuple(own.train.inputs.shape[1:])
    factory = ModelFactory(wanted.name, wanted.source, wanted.model_extra or {}, shape, max(2, len(own.names)), scale)
    validate_model(factory, probe_inputs(own.train.inputs))
    return own

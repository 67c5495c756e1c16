"""A node's own part of a federation: its identity, its data and its model, in a small TOML file beside the data.

    id = "north"
    data = "patients.parquet"       # a table, an npz file, a folder of images; or source = "package.module:function"
    label = "diagnosis"             # and further settings of that kind of data
    model = "my_package.models:build"

The server's recipe decides how to train and what the classes are. What to read, what code to run and what may leave the
node is decided by the node's file alone (see `node_policy`).
"""

import logging
import math
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trustmix.data import stratified_holdout
from trustmix.deploy.node_data import NodeData, load_node_data, load_own_data
from trustmix.deploy.node_policy import AllowConfig, read_recipe, validate_policy
from trustmix.deploy.run_info import RunInfo
from trustmix.engines.autotune import trained_by_steps
from trustmix.errors import TrustmixError
from trustmix.experiment.build import build_client, model_factories, probe_inputs, validate_privacy
from trustmix.experiment.classifier_settings import validate_classifier_settings
from trustmix.experiment.data import load_data, select_test_set, split_data
from trustmix.experiment.saved_models import model_factory
from trustmix.federation import Client, Public
from trustmix.learners import DeviceConfig
from trustmix.models import ModelFactory, validate_model
from trustmix.paths import expand_user
from trustmix.privacy import PrivacyLedger
from trustmix.settings import toml_settings as toml
from trustmix.settings.config import ModelConfig
from trustmix.settings.recipe import Recipe
from trustmix.settings.validation import format_validation_error
from trustmix.transport.refusal import DATA, MODEL, PRIVACY, failing_as

log = logging.getLogger(__name__)

MIN_STEPS = 10
"""Training steps in the first round below which a node is warned."""


class NodeConfig(BaseModel):
    """The settings of a node's file; further settings are those of the kind of data.

    Parameters
    ----------
    id : str
        The client id.
    share : int, optional
        For trying out: the client of the recipe's own split with this number, instead of data.
    path : str, optional
        For a share: where the recipe's data set lies here, if it is not found by its name.
    data : str, optional
        A table, an npz file or a folder of images, beside the node's file.
    source : str, optional
        A function "package.module:function" that returns the data.
    model : str or dict, optional
        A built-in model, "package.module:function", or a table with `name` or `source` and options.
    density : str, optional
        A density of the node's own, "package.module:Class", in the place of the recipe's.
    test : float
        Fraction of the data kept to measure accuracy; 0 measures nothing.
    epsilon : float, optional
        The most that all runs together may spend of the privacy of the data, and so the largest privacy.epsilon of a
        recipe that is accepted; a recipe without one is then refused. Without it, what the recipe promises.
    device : str
        cpu, cuda or mps.
    allow : AllowConfig
        What may leave the node, and what the server may use of it.
    folder : Path
        The folder of the node's file.

    Examples
    --------
    >>> NodeConfig(id="north", data="patients.csv", label="diagnosis").state_folder.name
    'north-state'
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    id: str = ""
    share: int | None = Field(None, ge=0, description="for trying out: this share of the recipe's own split")
    path: str | None = Field(None, description="for a share: where the recipe's data set lies here")
    data: str | None = Field(None, description="a table, an npz file or a folder of images, beside the node's file")
    source: str | None = Field(None, description="package.module:function of your own that returns the data")
    model: str | dict[str, object] | None = Field(None, description="a built-in model, or package.module:function")
    density: str | None = Field(None, description="package.module:Class of your own, in place of the recipe's density")
    test: float = Field(0.2, ge=0, lt=1, description="part of the data kept to measure accuracy; 0 measures nothing")
    epsilon: float | None = Field(None, gt=0, description="the most that all runs may spend of the data's privacy")
    device: str = Field("cpu", description="where to train: cpu, cuda or mps")
    allow: AllowConfig = AllowConfig()
    folder: Path = Field(Path(), exclude=True, description="the folder of the file")

    @model_validator(mode="after")
    def _validate_data(self) -> "NodeConfig":
        given = [name for name in ("share", "data", "source") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of share, data and source (given: {', '.join(given) or 'none'})")
        if not self.id and self.share is None:
            raise ValueError('give an id, such as id = "north"')
        if self.share is not None and self.model_extra:
            raise ValueError(f"{next(iter(self.model_extra))} goes with data, and this node takes a share")
        if self.path is not None and self.share is None:
            raise ValueError("path goes with share; data names the node's own data")
        return self

    @classmethod
    def load(cls, file: str | Path) -> "NodeConfig":
        """Read a node's file.

        Parameters
        ----------
        file : str or Path
            The path of the file.

        Returns
        -------
        NodeConfig

        Raises
        ------
        TrustmixError
            If the file is missing or not valid.
        """
        path = expand_user(file)
        if not path.is_file():
            raise TrustmixError(f"There is no file {path}; it must be a node's TOML file.")
        fields = toml.read(path)
        if "share" in fields:
            fields.setdefault("id", str(fields["share"]))
        try:
            return cls.model_validate({**fields, "folder": path.resolve().parent})
        except ValidationError as error:
            names = [*cls.model_fields, *(f"allow.{name}" for name in AllowConfig.model_fields)]
            raise TrustmixError(f"{path}: {format_validation_error(error, names)}") from error

    def own_model(self) -> ModelConfig:
        """The model that the node's file names.

        Returns
        -------
        ModelConfig
            The recipe's default if the file names none.

        Raises
        ------
        TrustmixError
            If the setting is not valid.
        """
        model = {"name": "mlp"} if self.model is None else self.model
        fields = model if isinstance(model, dict) else {"source" if ":" in model else "name": model}
        try:
            return ModelConfig.model_validate(fields)
        except ValidationError as error:
            raise TrustmixError(f"model: {format_validation_error(error, list(ModelConfig.model_fields))}") from error

    @property
    def state_folder(self) -> Path:
        """Where the node keeps its state between rounds."""
        return self.folder / f"{self.id}-state"

    @property
    def model_folder(self) -> Path:
        """Where the node's model is exported to."""
        return self.folder / f"{self.id}-model"

    @property
    def ledger_folder(self) -> Path:
        """Where the privacy ledger of the node's data lies: beside the node's file, by the name of the data.

        Nodes of one folder that read the same data share it. Data of the same name count as the same.
        """
        name = (self.folder / self.data).resolve().name if self.data else str(self.source).replace(":", ".")
        return self.folder / f"{name}.ledger"


def build_node_client(node: NodeConfig, run_info: RunInfo, public: Public, folder: Path) -> Client:
    """The client of a run, from the node's file and the server's description of the run.

    Parameters
    ----------
    node : NodeConfig
        The node's settings.
    run_info : RunInfo
        The server's description of the run.
    public : Public
        The public set.
    folder : Path
        Where the client keeps its states.

    Returns
    -------
    Client

    Raises
    ------
    NodeRefusal
        If the node's file does not allow the run, or the node's data or model do not fit it.
    """
    recipe = read_recipe(node, run_info.recipe)
    validate_policy(node, recipe, run_info.client)
    build = _build_own_client if node.share is None else _build_shared_client
    client = build(node, recipe, run_info, public, folder)
    client.to_device(DeviceConfig(node.device), keep=True)
    return client


def _build_shared_client(node: NodeConfig, recipe: Recipe, run_info: RunInfo, public: Public, folder: Path) -> Client:
    """A client of the recipe's own split: the same as on one machine."""
    share = node.share or 0
    with failing_as(DATA):
        data = load_data(recipe)
        samples, shares = split_data(recipe, data)
        if share >= len(shares):
            raise TrustmixError(
                f"share is {share}, but the recipe splits its data among {len(shares)} clients, from 0."
            )
        if Public(samples.inputs, data.classes).fingerprint != public.fingerprint:
            raise TrustmixError("The data here give another public set than the server's; is it the same data set?")
    with failing_as(MODEL):
        model = model_factories(recipe, data)[share]
        test, kind = select_test_set(recipe, data), run_info.client
        return build_client(recipe, node.id, model, shares[share], public, test, folder, kind=kind)


def _build_own_client(node: NodeConfig, recipe: Recipe, run_info: RunInfo, public: Public, folder: Path) -> Client:
    """A client with the node's own data and model."""
    with failing_as(DATA):
        own = load_own_data(node, run_info, public)
    with failing_as(MODEL):
        model = model_factory(recipe.models[0], run_info.input_spec(public), recipe.seed, node.id)
        built = validate_model(model, probe_inputs(own.train.inputs))
        validate_classifier_settings(recipe, built, model.label, run_info.client)
    share = (own.train, own.train)
    if recipe.holds_out:
        train_part, held_out = stratified_holdout(own.train.labels, recipe.density.holdout, recipe.seed, node.id)
        share = (own.train[train_part], own.train[held_out])
    kind = run_info.client
    with failing_as(PRIVACY):
        client = build_client(recipe, node.id, model, share, public, own.test, folder, simulated=False, kind=kind)
        validate_privacy(recipe, own.train.inputs, [client])
        _open_ledger(node, run_info.run, client)
    client.share_figures = client.privacy is None  # test records are as private as the others
    _warn_of_few_steps(client)
    return client


def _warn_of_few_steps(client: Client) -> None:
    """Warn if the recipe trains a model for so few steps that it cannot have learnt anything."""
    training, samples = client.training, len(client.private)
    steps = training.first_epochs * math.ceil(samples / training.batch)
    if steps < MIN_STEPS and trained_by_steps([client]):
        log.warning(
            "client %s has %d samples to train with, which is %d training steps in the first round (train.first_epochs "
            "= %d, train.batch = %d of the server's recipe); a model hardly learns from so few",
            client.id,
            samples,
            steps,
            training.first_epochs,
            training.batch,
        )


def _open_ledger(node: NodeConfig, run: str, client: Client) -> None:
    """Give the client the ledger of its data; a run that would spend more than was promised is refused here."""
    budget = client.privacy
    if budget is None:
        if (node.ledger_folder / "ledger.json").exists():
            raise TrustmixError(
                "This node has a privacy ledger of its data, and the server's recipe has no [privacy]; it would break "
                "what was promised."
            )
        return
    client.ledger = PrivacyLedger(node.epsilon or budget.epsilon, budget.delta, node.ledger_folder, run)
    if node.epsilon is None:  # a server does not raise what was promised in the run before
        client.ledger.epsilon = min(budget.epsilon, client.ledger.promised() or budget.epsilon)
    client.ledger.validate_plan(budget.planned_releases(len(client.private), client.training))


def check_node(node: NodeConfig) -> NodeData:
    """Read the node's data, build its model and run the model on a few samples, before the node joins.

    Parameters
    ----------
    node : NodeConfig
        The node's settings.

    Returns
    -------
    NodeData
        The node's data.

    Raises
    ------
    TrustmixError
        If the data are not valid or the model does not take them.
    """
    own = load_node_data(node)
    images = own.train.inputs.dtype == torch.uint8
    channels = own.train.inputs.shape[1] if own.train.inputs.ndim == 4 else 1
    scale = ((0.5,) * channels, (0.25,) * channels) if images else None
    config = node.own_model()
    shape, classes = tuple(own.train.inputs.shape[1:]), max(2, len(own.class_names))
    model = ModelFactory(config.name, config.source, config.model_extra or {}, shape, classes, scale)
    validate_model(model, probe_inputs(own.train.inputs))
    return own

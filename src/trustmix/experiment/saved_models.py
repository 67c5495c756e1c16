"""Save the trained models of a run at its end, and load them for use.

`models/` holds one safetensors file per client, `inputs.json` (shape, type and scale of the inputs, names of the
classes), and, for texts, one folder per client that transformers opens. The training data are not needed to load a
model. A node of a deployment has a folder of the same form with its own model alone.
"""

import logging
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from trustmix import records, storage
from trustmix.data.inference import InputSpec
from trustmix.data.text import DEFAULT_TOKENIZER, load_tokenizer
from trustmix.errors import StorageError, TrustmixError
from trustmix.federation import DiskStore
from trustmix.federation.state import State
from trustmix.learners.base import model_tensors
from trustmix.models import ModelFactory, WithTemperature
from trustmix.models.transformer import TextClassifier, save_for_transformers
from trustmix.settings.config import ModelConfig
from trustmix.settings.own_code import load_run_recipe
from trustmix.settings.recipe import Recipe
from trustmix.settings.validation import format_validation_error

log = logging.getLogger(__name__)

_Channels: TypeAlias = Annotated[tuple[float, ...], Field(strict=False)]

INPUTS_FORMAT = 1
"""The version of models/inputs.json."""
STUDENT = "student"
"""The id of the server's student, and the name of its file among the models."""
CLIENT_NAME = f"(0|[1-9][0-9]*|{STUDENT})"
"""The names of the states of a run on one machine: the number of a client, or the student."""


def load_model(folder: str | Path, client: int | str | None = None, *, allow_code: bool = False) -> nn.Module:
    """Load a client's model from a run directory, or the model that a node of a deployment has exported.

    Parameters
    ----------
    folder : str or Path
        The directory of a finished run, or the model folder of a node.
    client : int or str, optional
        The number of the client, the id of the node, or "student" for the server's model; by default the only model of
        the folder, or that of client 0.
    allow_code : bool
        Whether to import a model that the recipe names as code even if the directory is not below the current one.

    Returns
    -------
    torch.nn.Module
        The model in evaluation mode; it takes raw inputs of the data set and returns logits. With train.calibrate it is
        a `WithTemperature`, whose logits are divided by the client's temperature.

    Raises
    ------
    TrustmixError
        If the directory has no such model, the file does not fit the model of the recipe, or the model is code that
        is not allowed.

    Examples
    --------
    >>> import tempfile, torch, trustmix as tm
    >>> small = {"data": {"name": "digits"}, "clients": 5, "rounds": 1, "split": {"samples_per_client": 40}}
    >>> folder = tempfile.mkdtemp()
    >>> _ = tm.run(small, out=folder)
    >>> load_model(folder, client=3)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    models, name = Path(folder) / "models", model_name(folder, client)
    file = models / f"{name}.safetensors"
    recipe = load_run_recipe(Path(folder), allow_code=allow_code)
    factory = _factory(recipe, read_inputs(folder), name)
    options = dict(factory.options)
    if factory.name == "encoder" and (models / name).is_dir():
        options["weights"] = str((models / name).absolute())
    elif factory.name is not None and factory.name != "encoder":
        options.pop("weights", None)  # pretrained weights would be replaced
    model = _load_weights(replace(factory, options=options), file)
    temperature = float(storage.read_tensors(file)[1].get("temperature", 1.0))
    return model if temperature == 1 else WithTemperature(model, temperature).eval()


def model_name(folder: str | Path, client: int | str | None = None) -> str:
    """The name of a model in a folder.

    Parameters
    ----------
    folder : str or Path
        The directory of a finished run, or the model folder of a node.
    client : int or str, optional
        As in `load_model`.

    Returns
    -------
    str
        The number of a client, the id of a node, or "student".

    Raises
    ------
    TrustmixError
        If the folder has no such model; the message names those that there are, or the place where they are.
    """
    models = Path(folder) / "models"
    if not (models / "inputs.json").is_file():
        raise TrustmixError(f"{folder} holds no models: {_why_no_models(Path(folder))}.")
    known = sorted((found.stem for found in models.glob("*.safetensors")), key=lambda name: (len(name), name))
    name = str(client) if client is not None else known[0] if len(known) == 1 else "0"
    if name not in known:
        raise TrustmixError(f'{folder} has no model of client "{name}"; there are {", ".join(known)}.')
    return name


def _why_no_models(folder: Path) -> str:
    """The reason for which a folder has no models."""
    file = folder / "recipe.toml"
    if not file.is_file():
        if list(folder.glob("*/states")):
            place = folder.with_name(folder.name.removesuffix("-state") + "-model")
            return f"it is the state of a node; the model is in {place} once it is exported, see `trustmix export`"
        return "it is no run directory"
    if Recipe.load_stored(file).engine.name == "flower":
        return (
            "the run was served to nodes, and each node has its own model in the folder ID-model beside its file; the "
            "server has a model only with [student]"
        )
    return "its run is not finished; go on with --resume"


def read_inputs(folder: str | Path) -> InputSpec:
    """Read what the models of a run directory take.

    Parameters
    ----------
    folder : str or Path
        The run directory.

    Returns
    -------
    InputSpec
        Shape, type and scale of the inputs, and the names of the classes.

    Raises
    ------
    StorageError
        If models/inputs.json cannot be read or is of a newer format.
    """
    file = Path(folder) / "models" / "inputs.json"
    fields = records.validate_record(storage.read_json(file), INPUTS_FORMAT, str(file))
    try:
        found = _InputRecord.model_validate(fields)
    except ValidationError as error:
        reason = format_validation_error(error, list(_InputRecord.model_fields))
        raise StorageError(f"{file} does not describe the inputs of models ({reason})") from error
    return InputSpec(tuple(found.shape), found.dtype, tuple(found.classes), found.scale, tuple(found.columns))


class _InputRecord(BaseModel):
    """The fields of models/inputs.json."""

    model_config = ConfigDict(strict=True)

    shape: list[Annotated[int, Field(ge=1, le=10**6)]] = Field(max_length=8)
    dtype: Literal["uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
    classes: list[str] = Field(min_length=1, max_length=10**6)
    scale: Annotated[tuple[_Channels, _Channels] | None, Field(strict=False)] = None
    columns: list[str] = Field(default=[], max_length=10**6)


def save_models(folder: Path, recipe: Recipe, inputs: InputSpec, rounds: int) -> None:
    """Save the models of a run that has ended, from the last states of its clients.

    Parameters
    ----------
    folder : Path
        The run directory.
    recipe : Recipe
        The recipe of the run.
    inputs : InputSpec
        The inputs that the models take.
    rounds : int
        The number of rounds of the run.

    Raises
    ------
    StorageError
        If a file cannot be written.
    """
    for states in sorted((folder / "checkpoint" / "clients").iterdir()):
        if not re.fullmatch(CLIENT_NAME, states.name):
            continue  # a file of another program
        state = DiskStore(states).load_before(rounds + 2)
        if state is not None:
            _save_model(folder, recipe, inputs, states.name, state)
    _write_inputs(folder, inputs)


def save_model(folder: Path, recipe: Recipe, inputs: InputSpec, client: str, state: State) -> None:
    """Save the model of one client into the folder `models`.

    Parameters
    ----------
    folder : Path
        The run directory, or the model folder of a node.
    recipe : Recipe
        The recipe, which names the client's model.
    inputs : InputSpec
        The inputs that the model takes.
    client : str
        The client id.
    state : State
        A state of the client.

    Raises
    ------
    StorageError
        If a file cannot be written.
    """
    _save_model(folder, recipe, inputs, client, state)
    _write_inputs(folder, inputs)


def _save_model(folder: Path, recipe: Recipe, inputs: InputSpec, client: str, state: State) -> None:
    models = folder / "models"
    file = models / f"{client}.safetensors"
    storage.write_tensors(file, model_tensors(state[0]), {"temperature": float(state[1].get("temperature", 1.0))})
    if inputs.is_text:
        _save_text_model(_load_weights(_factory(recipe, inputs, client), file), recipe, inputs, client, models)


def _write_inputs(folder: Path, inputs: InputSpec) -> None:
    storage.write_json(folder / "models" / "inputs.json", {"format": INPUTS_FORMAT, **asdict(inputs)})


def _save_text_model(model: nn.Module, recipe: Recipe, inputs: InputSpec, client: str, models: Path) -> None:
    if not isinstance(model, TextClassifier):
        return
    if not save_for_transformers(model, models / client, inputs.classes):
        kind = model.encoder.config.model_type
        log.info("client %s: transformers has no %s classifier of this form; only the safetensors file", client, kind)
        return
    options = recipe.data.model_extra or {}
    try:
        tokenizer = load_tokenizer(str(options.get("tokenizer", DEFAULT_TOKENIZER)))
    except TrustmixError as error:
        log.info("client %s is saved without its tokenizer: %s", client, error)
        return
    tokenizer.model_max_length = int(options.get("length", 128))
    tokenizer.save_pretrained(models / client)


def _factory(recipe: Recipe, inputs: InputSpec, client: str) -> ModelFactory:
    """The factory of a client's model, or of the student; the recipe of a node has one model."""
    if client == STUDENT:
        return model_factory(recipe.student or recipe.models[0], inputs, recipe.seed, client)
    number = int(client) if client.isdecimal() else 0
    return model_factory(recipe.models[number % len(recipe.models)], inputs, recipe.seed, client)


def model_factory(model: ModelConfig, inputs: InputSpec, seed: int, owner: str) -> ModelFactory:
    """Create the factory of a model of a recipe.

    Parameters
    ----------
    model : ModelConfig
        The model.
    inputs : InputSpec
        The inputs that it takes.
    seed : int
        The seed of the recipe.
    owner : str
        The id of the client, or "student"; it selects the random stream of the initial weights.

    Returns
    -------
    ModelFactory
        Builds the model.
    """
    options = model.model_extra or {}
    return ModelFactory(model.name, model.source, options, inputs.shape, len(inputs.classes), inputs.scale, seed, owner)


def _load_weights(factory: ModelFactory, file: Path) -> nn.Module:
    """Build a model and load its weights from a file."""
    model = factory()
    try:
        model.load_state_dict(storage.read_tensors(file)[0])
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise TrustmixError(f"{file} does not fit the model {factory.label} of the recipe: {reason}") from error
    return model.eval()

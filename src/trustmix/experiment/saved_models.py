"""What a run has trained: models saved at its end, and loaded again for use.

`models/` holds a safetensors file a client, `inputs.json` (what the models take: shape, type, scale, names of the
classes), and, for texts, a folder a client that transformers opens. The training data are not needed to load a model.
"""

import logging
from dataclasses import asdict, replace
from pathlib import Path

from torch import nn

from trustmix import storage
from trustmix.data.inference import InputSpec
from trustmix.data.text import DEFAULT_TOKENIZER, load_tokenizer
from trustmix.errors import StorageError, TrustmixError
from trustmix.experiment.config import ModelConfig
from trustmix.experiment.recipe import Recipe
from trustmix.federation import DiskStore
from trustmix.models import ModelFactory
from trustmix.models.transformer import TextClassifier, save_for_transformers

log = logging.getLogger(__name__)

INPUTS_FORMAT = 1
"""The version of models/inputs.json."""
STUDENT = "student"
"""The id of the server's student, and the name of its file among the models."""


def load_model(folder: str | Path, client: int | str = 0) -> nn.Module:
    """A client's model from a run directory, in evaluation mode: raw inputs of the data set in, logits out.

    `client` is its number, or "student" for the server's model.

    >>> import tempfile, torch, trustmix as tm
    >>> small = {"data": {"name": "digits"}, "clients": 5, "rounds": 1, "split": {"samples_per_client": 40}}
    >>> folder = tempfile.mkdtemp()
    >>> _ = tm.run(small, out=folder)
    >>> load_model(folder, client=3)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    models = Path(folder) / "models"
    file = models / f"{client}.safetensors"
    if not (models / "inputs.json").is_file():
        there = (Path(folder) / "recipe.toml").is_file()
        reason = "its run is not finished; go on with --resume" if there else "it is no run directory"
        raise TrustmixError(f"{folder} holds no models: {reason}.")
    if not file.is_file():
        known = sorted((found.stem for found in models.glob("*.safetensors")), key=lambda name: (len(name), name))
        raise TrustmixError(f'{folder} has no model of client "{client}"; there are {", ".join(known)}.')
    factory = _factory(Recipe.load(Path(folder) / "recipe.toml"), read_inputs(folder), str(client))
    options = dict(factory.options)
    if factory.name == "encoder" and (models / str(client)).is_dir():
        options["weights"] = str((models / str(client)).absolute())
    elif factory.name is not None and factory.name != "encoder":
        options.pop("weights", None)  # what training began with is replaced anyway
    return _filled(replace(factory, options=options), file)


def read_inputs(folder: str | Path) -> InputSpec:
    """Read what the models of a run directory take.

    Parameters
    ----------
    folder
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
    fields = storage.validate_record(storage.read_json(file), INPUTS_FORMAT, str(file))
    try:
        scale = fields["scale"] and tuple(map(tuple, fields["scale"]))
        return InputSpec(tuple(fields["shape"]), fields["dtype"], tuple(fields["classes"]), scale)
    except (KeyError, TypeError) as error:
        raise StorageError(f"{file} does not describe the inputs of models ({error}).") from error


def save_models(folder: Path, recipe: Recipe, inputs: InputSpec, rounds: int) -> None:
    """Write what a run that is over has trained, from the clients' last states."""
    models = folder / "models"
    for states in sorted((folder / "checkpoint" / "clients").iterdir()):
        state = DiskStore(states).load_before(rounds + 2)
        if state is not None:
            model = {name[6:]: tensor for name, tensor in state[0].items() if name.startswith("model.")}
            file = models / f"{states.name}.safetensors"
            storage.write_tensors(file, model)
            if inputs.is_text:
                _save_text_model(
                    _filled(_factory(recipe, inputs, states.name), file), recipe, inputs, states.name, models
                )
    storage.write_json(models / "inputs.json", {"format": INPUTS_FORMAT, **asdict(inputs)})


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
    """What built the client's model."""
    if client == STUDENT:
        return model_factory(recipe.student or recipe.models[0], inputs, recipe.seed, client)
    return model_factory(recipe.models[int(client) % len(recipe.models)], inputs, recipe.seed, client)


def model_factory(model: ModelConfig, inputs: InputSpec, seed: int, owner: str) -> ModelFactory:
    """What builds a model of the recipe for inputs like these."""
    options = model.model_extra or {}
    return ModelFactory(model.name, model.source, options, inputs.shape, len(inputs.classes), inputs.scale, seed, owner)


def _filled(factory: ModelFactory, file: Path) -> nn.Module:
    """The model with the weights of the file."""
    model = factory()
    try:
        model.load_state_dict(storage.read_tensors(file)[0])
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise TrustmixError(f"{file} does not fit the model {factory.label} of the recipe: {reason}") from error
    return model.eval()

"""The model of a node as files that it can use after the run: `<id>-model` beside the node's file.

The folder has the form of a run directory: `recipe.toml`, `models/` with a safetensors file (and, for texts, a folder
that transformers opens), and `card.json`, which describes the model. `trustmix predict` and `load_model` read it.
"""

import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from trustmix import records, storage
from trustmix.data import Labelled
from trustmix.deploy.message_handler import ALONE_FILE
from trustmix.deploy.node import NodeConfig
from trustmix.deploy.node_data import data_kind, load_own_data
from trustmix.deploy.node_policy import read_recipe
from trustmix.deploy.run_info import RunInfo
from trustmix.errors import TrustmixError
from trustmix.experiment.data import load_data, select_test_set
from trustmix.experiment.saved_models import load_model, save_model
from trustmix.federation import DiskStore, Public
from trustmix.learners import DeviceConfig
from trustmix.learners.base import model_tensors
from trustmix.learners.training import accuracy
from trustmix.settings.config import DataConfig
from trustmix.settings.recipe import Recipe
from trustmix.wire import decode_public_set

CARD_FORMAT = 1
"""The version of card.json."""
LAST_ROUND = 10**9
"""A number above that of any round."""


def export_model(node: NodeConfig, run_folder: Path) -> dict[str, object]:
    """Export the newest model of a node's client, in the middle of a run or at its end.

    The model of an earlier run moves to a folder of its own, `<id>-model-<run>`.

    Parameters
    ----------
    node : NodeConfig
        The node's settings.
    run_folder : Path
        The folder of a run in the node's state.

    Returns
    -------
    dict of str to JSON values
        The card of the model.

    Raises
    ------
    TrustmixError
        If the run has no model yet, or a file cannot be read or written.
    """
    run_info = RunInfo.from_json(storage.read_json(run_folder / "settings.json"))
    inputs = decode_public_set(storage.read_bytes(run_folder / "public.message"), run_info.fingerprint)
    public, store = Public(inputs, len(run_info.classes)), DiskStore(run_folder / "states")
    number, state = store.newest_before(LAST_ROUND), store.load_before(LAST_ROUND)
    if number is None or state is None:
        raise TrustmixError(f"{run_folder} has no model yet; it has one after the first round.")
    recipe = _own_recipe(node, read_recipe(node, run_info.recipe), run_info)
    folder, spec = node.model_folder, run_info.input_spec(public)
    _keep_other_run(folder, run_info.run)
    storage.make_private_directory(folder)
    storage.write_bytes(folder / "recipe.toml", recipe.toml().encode())
    save_model(folder, recipe, spec, node.id, state)
    test = _test_set(node, recipe, run_info, public)
    card: dict[str, object] = {
        "format": CARD_FORMAT,
        "client": node.id,
        "run": run_info.run,
        "round": min(number, recipe.rounds),
        "rounds": recipe.rounds,
        "finished": number > recipe.rounds,
        "model": recipe.models[0].model_dump(exclude_none=True),
        "parameters": sum(tensor.numel() for tensor in model_tensors(state[0]).values()),
        "inputs": {"shape": list(spec.shape), "dtype": spec.dtype},
        "classes": list(spec.classes),
        "test": _measure(folder, node, test, run_folder / ALONE_FILE),
        "privacy": recipe.privacy.model_dump(exclude_none=True) if recipe.privacy.epsilon is not None else None,
        "trustmix": version("trustmix"),
        "exported": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    storage.write_json(folder / "card.json", card)
    return card


def find_run(node: NodeConfig, run: str | None = None) -> Path:
    """The folder of a run in a node's state.

    Parameters
    ----------
    node : NodeConfig
        The node's settings.
    run : str, optional
        The id of the run; by default the one that trained last.

    Returns
    -------
    Path

    Raises
    ------
    TrustmixError
        If the node has not taken part in such a run.
    """
    states = {file: file.stat().st_mtime for file in node.state_folder.glob(f"{run or '*'}/states/*.safetensors")}
    if not states:
        raise TrustmixError(f"{node.state_folder} has no model of {'a run' if run is None else f'run {run}'} yet.")
    return max(states, key=lambda file: states[file]).parent.parent


def describe_card(card: Mapping[str, object], folder: Path) -> str:
    """A card in one sentence.

    Parameters
    ----------
    card : mapping of str to JSON values
        The result of `export_model`.
    folder : Path
        The folder of the model.

    Returns
    -------
    str

    Examples
    --------
    >>> card = {"client": "north", "round": 3, "test": {"samples": 40, "accuracy": 0.925}}
    >>> describe_card(card, Path("north-model"))
    'the model of client north after round 3 is in north-model (accuracy 92.5 % on 40 test samples of the node)'
    """
    test = card["test"]
    measured = "it has no test samples"
    if isinstance(test, dict):
        owner = "the recipe" if test.get("of_recipe") else "the node"
        measured = f"accuracy {100 * test['accuracy']:.1f} % on {test['samples']} test samples of {owner}"
    text = f"the model of client {card['client']} after round {card['round']} is in {folder} ({measured})"
    return "".join([text, *(f"; WARNING: {warning}" for warning in _warnings(test))])


def _warnings(test: object) -> list[str]:
    """What its owner must know of a model that is worse on the node's own test samples than it could be."""
    found = []
    if isinstance(test, dict) and not test.get("of_recipe"):
        alone, common = test.get("alone"), test.get("most_frequent_class")
        if alone is not None and test["accuracy"] < alone:
            found.append(f"that is below the {100 * alone:.1f} % that it had after training alone in round 1")
        if common is not None and test["accuracy"] < common:
            found.append(
                f"that is below the {100 * common:.1f} % of always answering the most frequent class of these samples; "
                "the model has learnt too little, see train.first_epochs, train.epochs and train.lr of the recipe"
            )
    return found


def _own_recipe(node: NodeConfig, recipe: Recipe, run_info: RunInfo) -> Recipe:
    """The recipe with the node's one model, and with the settings by which the node reads its data."""
    models = recipe.models
    update: dict[str, object] = {"model": models[(node.share or 0) % len(models)]}
    if node.share is None:
        options = dict(node.model_extra or {})
        if node.source is not None:
            update["data"] = DataConfig(name="npz")  # code of the node's own reads its data, new samples are files
        else:
            kind = data_kind(node)
            columns = {"columns": run_info.columns} if run_info.columns and kind == "table" else {}
            update["data"] = DataConfig(name=kind, **{**options, **columns})
    return recipe.model_copy(update=update)


def _test_set(node: NodeConfig, recipe: Recipe, run_info: RunInfo, public: Public) -> Labelled | None:
    if node.share is not None:
        return select_test_set(recipe, load_data(recipe))
    return load_own_data(node, run_info, public).test


def _measure(folder: Path, node: NodeConfig, test: Labelled | None, alone: Path) -> dict[str, object] | None:
    """The accuracy of the model, as it is loaded from its file, and what it is to be compared with."""
    if test is None or not len(test):
        return None
    model = load_model(folder, node.id, allow_code=True)  # code that the node's own file names
    found = accuracy(model, test.inputs, test.labels, DeviceConfig())
    return {
        "samples": len(test),
        "accuracy": found,
        "of_recipe": node.share is not None,
        "alone": storage.read_json(alone) if alone.is_file() else None,
        "most_frequent_class": float(test.labels.bincount().max()) / len(test),
    }


def _keep_other_run(folder: Path, run: str) -> None:
    """Move the model of another run out of the way; it may be the only copy."""
    card = folder / "card.json"
    if not card.is_file():
        shutil.rmtree(folder / "models", ignore_errors=True)  # an export that was interrupted
        return
    before = records.validate_record(storage.read_json(card), CARD_FORMAT, str(card)).get("run")
    if before != run:
        folder.rename(folder.with_name(f"{folder.name}-{before}"))

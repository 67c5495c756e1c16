"""The first private stage, which runs that begin alike play once.

Runs that differ only in what acts after that stage, such as the rule, have the same split, the same initial models and
the same first private stage. The first of them stores the state of every client after it, and the others begin from
there. Their numbers are those of separate runs, to the last bit.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from trustmix import storage
from trustmix.federation import METHODS, Client, DiskStore
from trustmix.federation.method import is_reference
from trustmix.lazy import LazySequence
from trustmix.settings.recipe import Recipe

AFTERWARDS = {
    "rule": None,
    "rounds": None,
    "student": None,
    "wire": None,
    "guard": None,
    "attack": None,
    "theory": None,
    "track": None,
    "density": ("kind", "refresh", "standardise"),
    "train": ("epochs", "public_epochs", "stages", "calibrate"),
}
"""The sections of a recipe that act after the first private stage alone; of two sections, the settings that do."""


def first_stage_key(recipe: Recipe) -> str | None:
    """Compute a hash of all settings that can change the first private stage.

    Parameters
    ----------
    recipe : Recipe
        A recipe.

    Returns
    -------
    str or None
        The hash, which recipes with the same first stage share; None for recipes whose first stage is not shared:
        methods with another kind of client, those with pooled data, differential privacy, other engines than local.

    Examples
    --------
    >>> keys = [first_stage_key(Recipe.load("demo", [f"rule={rule}"])) for rule in ("avg", "trust", "alone")]
    >>> len(set(keys)), first_stage_key(Recipe.load("demo", ["seed=1"])) == keys[0]
    (1, False)
    """
    own_rule = isinstance(recipe.rule, str) and is_reference(recipe.rule)  # an aggregator; it is not imported here
    method = METHODS.get("avg") if own_rule else recipe.method
    alike = method.client == "distillation" and not method.pooled_data and recipe.engine.name == "local"
    if not alike or recipe.privacy.epsilon is not None:
        return None
    settings = recipe.model_dump(mode="json")
    for section, names in AFTERWARDS.items():
        if names is None:
            del settings[section]
        else:
            settings[section] = {name: value for name, value in settings[section].items() if name not in names}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def share_first_stage(recipe: Recipe, clients: Sequence[Client], folder: Path) -> None:
    """Let clients begin from the first private stage that another run has stored, or store theirs for others.

    A stage is begun from only if it is there for all clients, since clients may be trained together. Clients that are
    made when they are asked for share nothing: most of them never begin.

    Parameters
    ----------
    recipe : Recipe
        The recipe with the engine's choices filled in.
    clients : sequence of Client
        Its clients, before their first step.
    folder : Path
        The directory of stored stages, which need not exist.
    """
    key = first_stage_key(recipe)
    if key is None or isinstance(clients, LazySequence):
        return
    data = hashlib.sha256(" ".join(client.data_fingerprint for client in clients).encode()).hexdigest()[:16]
    place = folder / f"{key}-{data}"
    stores = [DiskStore(place / client.id) for client in clients]
    if any(store.newest_before(2) is None for store in stores):
        shutil.rmtree(place, ignore_errors=True)
        storage.make_private_directory(place)
    for client, store in zip(clients, stores, strict=True):
        client.first_stage = store

"""The recipe of a server, checked before it serves (`trustmix check`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trustmix.deploy.server import FIGURES_BYTES, ServerSetup, as_deployment, max_reply_bytes
from trustmix.experiment.data import load_data, load_public, validate_augmentation
from trustmix.experiment.run_directory import RunDirectory
from trustmix.federation import Public
from trustmix.settings.recipe import Recipe
from trustmix.wire import encode_public_set


@dataclass(frozen=True)
class ServerCheck:
    """What `check_server` has found.

    Parameters
    ----------
    samples : int
        The size of the public set.
    shape, dtype : str
        Of a public input.
    classes : sequence of str
        The classes of all nodes.
    public_bytes, upload_bytes : int
        The bytes of the public set as a message, and of the largest upload.
    warnings : sequence of str
        Settings that are likely to be a mistake.
    """

    samples: int
    shape: str
    dtype: str
    classes: Sequence[str]
    public_bytes: int
    upload_bytes: int
    warnings: Sequence[str]


def check_server(recipe: Recipe) -> ServerCheck:
    """Check the recipe of a server before it serves: the public set is loaded, nothing is written or opened.

    Parameters
    ----------
    recipe : Recipe
        The server's recipe.

    Returns
    -------
    ServerCheck

    Raises
    ------
    TrustmixError
        If the recipe cannot be deployed or its data are not there.
    """
    deployed = as_deployment(recipe)
    data = load_data(deployed)
    validate_augmentation(deployed, data)
    samples = load_public(deployed, data)
    public = Public(samples.inputs, data.classes)
    setup = ServerSetup(deployed, RunDirectory(Path()), data, samples, public)
    found = []
    if recipe.participation.deadline is None:
        found.append("there is no participation.deadline; a round waits for every node that is connected.")
    if data.classes < 2:
        found.append("there is one class only; the models of all nodes will answer the same.")
    return ServerCheck(
        len(samples),
        str(tuple(samples.inputs.shape[1:])),
        str(samples.inputs.dtype),
        list(data.class_names),
        len(encode_public_set(samples.inputs)),
        max_reply_bytes(setup) - FIGURES_BYTES,
        found,
    )

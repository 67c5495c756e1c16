"""What a node accepts from the server: the recipe without paths and code, and within the limits of the node's own file.

The server's recipe decides how to train. It does not decide what leaves the node, what is read or run there, and how
much of the disk is used.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from trustmix.paths import expand_user
from trustmix.settings import toml_settings as toml
from trustmix.settings.recipe import Recipe
from trustmix.transport.refusal import MESSAGE, PATHS, NodeRefusal, failing_as, not_allowed

if TYPE_CHECKING:
    from trustmix.deploy.node import NodeConfig

CLIENT_SETTINGS = ("clients", "rounds", "seed", "split", "train", "density", "wire", "privacy", "format")
"""Settings that a node takes over as they are; they name no path and, but for the density, no code."""
TEXT_SETTINGS = ("name", "data", "text", "label", "columns", "classes", "stem")
"""Settings of data and models whose texts are names of data sets, columns, classes and layers; others may be paths."""
LABELS = {"none": 0, "inferred": 0, "set": 1, "counts": 2}
"""How much clients share about their labels; inferred shares nothing."""


class AllowConfig(BaseModel):
    """The table [allow] of a node's file: what may leave the node, and what the server may use of it.

    Parameters
    ----------
    labels : str
        The most that the server may learn about the node's classes: none, set (which they are) or counts.
    form : str
        The form of uploads: scores, or density, which also sends the parameters of the fitted density.
    weights : bool
        Whether the weights of the node's model may leave it, as FedAvg, SCAFFOLD and FedDF need.
    delta : float
        The largest privacy.delta.
    disk : float
        Gigabytes that the node's state may take.

    Examples
    --------
    >>> AllowConfig().labels
    'none'
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    labels: Literal["none", "set", "counts"] = Field("none", description="the most that is shared about labels")
    form: Literal["scores", "density"] = Field("scores", description="density also sends the fitted density")
    weights: bool = Field(False, description="whether weights of the model may leave the node")
    delta: float = Field(1e-5, gt=0, lt=1, description="largest privacy.delta")
    disk: float = Field(10.0, gt=0, description="gigabytes that the node's state may take")


def read_recipe(node: "NodeConfig", text: str) -> Recipe:
    """The server's recipe as far as a node uses it; paths and code are the node's own.

    Parameters
    ----------
    node : NodeConfig
        The node's settings.
    text : str
        The recipe as TOML.

    Returns
    -------
    Recipe

    Raises
    ------
    NodeRefusal
        If the recipe is not valid, or names a path or code that the node's file does not replace.
    """
    with failing_as(MESSAGE):
        found = toml.parse(text, "the server's recipe")
        settings: dict[str, object] = {key: found[key] for key in CLIENT_SETTINGS if key in found}
        settings["model"] = _model(node, found.get("model", {"name": "mlp"}))
        settings["data"] = {"name": "shared"}  # not read: the data are the node's own
        if node.share is not None:
            settings["data"] = _shared_data(node, _section(found, "data"))
            settings["public"] = _without_paths("public", _section(found, "public"), "use built-in public data")
        return _with_own_density(node, Recipe.load(settings))


def _section(found: Mapping[str, object], name: str) -> dict[str, object]:
    section = found.get(name, {})
    if not isinstance(section, dict):
        raise NodeRefusal(MESSAGE, f"[{name}] of the server's recipe is no table.")
    return section


def _model(node: "NodeConfig", found: object) -> object:
    """The node's own model, or the server's if it names neither code nor a path."""
    if node.model is not None:
        return node.own_model().model_dump(exclude_none=True)
    for model in found if isinstance(found, list) else [found]:
        if isinstance(model, dict):
            _without_paths("model", model, "set model in the node's file")
    return found


def _shared_data(node: "NodeConfig", found: Mapping[str, object]) -> dict[str, object]:
    """The data set of the recipe for a node with a share; its path is the node's own."""
    if node.path is None:
        return _without_paths("data", found, "set path in the node's file to the data")
    others = _without_paths("data", {key: value for key, value in found.items() if key != "path"}, "use built-in data")
    return {**others, "path": str(node.folder / expand_user(node.path))}


def _without_paths(section: str, found: Mapping[str, object], advice: str) -> dict[str, object]:
    """The settings, if none of them can be a path or code."""
    for key, value in found.items():
        if key not in TEXT_SETTINGS and _has_text(value):
            raise NodeRefusal(
                PATHS,
                f"The server's recipe has {section}.{key} = {str(value)[:80]!r}; a node follows no path and runs no "
                f"code that the server names: {advice}.",
            )
    return dict(found)


def _has_text(value: object) -> bool:
    """Whether a value of TOML is a text or has one in it."""
    if isinstance(value, dict | list):
        return any(map(_has_text, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str)


def _with_own_density(node: "NodeConfig", recipe: Recipe) -> Recipe:
    """The recipe with the node's own density; one that the server names as code is never imported."""
    if node.density is None and ":" in recipe.density.kind:
        raise NodeRefusal(
            PATHS,
            f'The server\'s recipe has density.kind = "{recipe.density.kind}", which is code; a node runs only its '
            "own: set density in the node's file.",
        )
    kind = node.density or recipe.density.kind
    return recipe.model_copy(update={"density": recipe.density.model_copy(update={"kind": kind})})


def validate_policy(node: "NodeConfig", recipe: Recipe, client: str) -> None:
    """Refuse a run in which more would leave the node than its file allows.

    Parameters
    ----------
    node : NodeConfig
        The node's settings.
    recipe : Recipe
        The server's recipe.
    client : str
        The kind of client that the server asks for, a name in `trustmix.federation.CLIENTS`.

    Raises
    ------
    NodeRefusal
        With the setting of the node's file that would allow it.
    """
    allow, privacy, wire = node.allow, recipe.privacy, recipe.wire
    if node.epsilon is not None and (privacy.epsilon is None or privacy.epsilon > node.epsilon):
        asked = "no privacy.epsilon" if privacy.epsilon is None else f"privacy.epsilon = {privacy.epsilon:g}"
        raise NodeRefusal(
            not_allowed("privacy.epsilon"),
            f"The server's recipe has {asked}; epsilon = {node.epsilon:g} in the node's file is the most it accepts.",
        )
    if privacy.epsilon is not None and privacy.delta > allow.delta:
        raise NodeRefusal(
            not_allowed("privacy.delta"),
            f"The server's recipe has privacy.delta = {privacy.delta:g}; allow.delta in the node's file is "
            f"{allow.delta:g}.",
        )
    if LABELS[wire.labels] > LABELS[allow.labels]:
        raise NodeRefusal(
            not_allowed("wire.labels"),
            f'The server\'s recipe has wire.labels = "{wire.labels}", which shows it classes of the node; allow.labels '
            f'in the node\'s file is "{allow.labels}".',
        )
    if wire.form == "density" and allow.form != "density":
        raise NodeRefusal(
            not_allowed("wire.form"),
            'The server\'s recipe has wire.form = "density", which sends the parameters of the density; allow.form in '
            f'the node\'s file is "{allow.form}".',
        )
    if client in WEIGHT_CLIENTS and not allow.weights:
        raise NodeRefusal(
            not_allowed("rule"),
            "The server's rule exchanges weights of the node's model; set allow.weights = true in the node's file to "
            "send them.",
        )


WEIGHT_CLIENTS = ("weights", "scaffold")
"""The kinds of clients that send weights of their models."""

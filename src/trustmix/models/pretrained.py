"""Pretrained weights from a safetensors or torch file, a folder with one, or a name on Hugging Face's hub.

Tensors are assigned to the parameters of the same name. The head may be missing or have other classes. Any other
difference means that the weights are of another architecture, and they are refused.
"""

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import nn

from trustmix import paths
from trustmix.errors import TrustmixError
from trustmix.huggingface import download_snapshot

WEIGHT_FILES = ("model.safetensors", "*.safetensors", "pytorch_model.bin", "*.pth", "*.pt")
"""Names of weight files in a folder, in order of preference."""
HUB_FILES = ("*.safetensors", "*.bin", "*.json", "*.txt", "*.model")
"""Files of a repository on the hub that are downloaded: weights, configuration and tokenizer."""


def locate_weights(weights: str) -> Path:
    """Find weights on this machine, or download them from the hub.

    Parameters
    ----------
    weights
        A path, a name below one of the search paths, or a name on the hub.

    Returns
    -------
    Path
        The file or folder.

    Raises
    ------
    TrustmixError
        If the weights are not found and cannot be downloaded.
    """
    found = paths.find_path(weights)
    if found is not None:
        return found
    searched = ", ".join(map(str, paths.search_paths(weights)))
    try:
        return download_snapshot(weights, HUB_FILES, required=WEIGHT_FILES)
    except TrustmixError as error:
        raise TrustmixError(
            f'model.weights is "{weights}": nothing of that name in {searched}, and it could not be fetched from the '
            f"hub ({error})."
        ) from error


def load_weights(network: nn.Module, weights: str, *, head: Sequence[str] = (), prefix: str = "") -> None:
    """Load pretrained weights into a network.

    Parameters
    ----------
    network
        The network; its parameters are overwritten.
    weights
        A file, a folder or a name on the hub, as `locate_weights` takes it.
    head
        Prefixes of parameter names that may be missing, left over or of another shape.
    prefix
        Prefix that is removed from the names in the file, for encoders that were saved together with a head.

    Raises
    ------
    TrustmixError
        If the weights cannot be found or read, or are of another architecture.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "weights.safetensors"
    >>> safetensors.torch.save_file({"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, file)
    >>> layer = nn.Linear(3, 2)
    >>> load_weights(layer, str(file))
    >>> layer.weight.sum().item()
    6.0
    """
    file = _weight_file(locate_weights(weights))
    given = {name.removeprefix(prefix): value for name, value in _read_weights(file).items()}
    own = network.state_dict()
    problem = _find_mismatch(own, given, tuple(head))
    if problem:
        raise TrustmixError(f"{file} holds weights of another architecture: {problem}.")
    fitting = {name: value for name, value in given.items() if name in own and value.shape == own[name].shape}
    network.load_state_dict(fitting, strict=False)


def _find_mismatch(
    own: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor], head: tuple[str, ...]
) -> str | None:
    """Return the first reason why the given tensors do not fit the network's own, or None."""

    def required(name: str) -> bool:
        return not name.startswith(head) and not name.endswith(("num_batches_tracked", "position_ids"))

    for name in filter(required, own):
        if name not in given:
            return f"{name} is missing"
    for name in filter(required, given):
        if name not in own:
            return f"the model has no {name}"
    for name in filter(required, own):
        if given[name].shape != own[name].shape:
            return f"{name} is {tuple(given[name].shape)} instead of {tuple(own[name].shape)}"
    for name in own:
        if name in given and own[name].is_floating_point() and not given[name].is_floating_point():
            return f"{name} holds whole numbers, as a quantised model does"
    return None


def _weight_file(path: Path) -> Path:
    """Return the weight file in a folder; a file is returned as it is."""
    if path.is_file():
        return path
    for pattern in WEIGHT_FILES:
        found = sorted(path.glob(pattern))
        if len(found) == 1:
            return found[0]
    raise TrustmixError(f"{path} (model.weights) holds no single file of weights; name the file itself.")


def _read_weights(file: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a file; nothing in torch's own format is executed."""
    try:
        if file.suffix == ".safetensors":
            return safetensors.torch.load_file(file)
        found = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise TrustmixError(f"{file} holds more than tensors and was not loaded.") from error
    except Exception as error:  # a file that is none may raise anything
        raise TrustmixError(f"{file} is not a whole file of weights ({type(error).__name__}).") from error
    if not isinstance(found, dict) or not all(isinstance(k, str) and torch.is_tensor(v) for k, v in found.items()):
        raise TrustmixError(f"{file} is not a state dict: a file of named tensors was expected.")
    return found

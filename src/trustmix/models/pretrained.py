"""Weights from elsewhere: a safetensors or torch file, a folder with one, or a name on Hugging Face's hub.

Tensors go to the parameters of the same name. A head for other classes may be missing or left over; anything else that
does not fit means that the weights are of another architecture, and is refused.
"""

import importlib
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import nn

from trustmix import paths
from trustmix.errors import TrustmixError

FILES = ("model.safetensors", "*.safetensors", "pytorch_model.bin", "*.pth", "*.pt")


def locate_weights(weights: str) -> Path:
    """The file or folder of that name, fetched from the hub if it is nowhere here."""
    found = paths.find_path(weights)
    if found is not None:
        return found
    searched = ", ".join(map(str, paths.search_paths(weights)))
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        return Path(
            hub.snapshot_download(weights, allow_patterns=["*.safetensors", "*.bin", "*.json", "*.txt", "*.model"])
        )
    except Exception as error:  # whatever the network or the library says is the reason
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TrustmixError(
            f'model.weights is "{weights}": nothing of that name in {searched}, and it could not be fetched from the '
            f"hub ({reason})."
        ) from error


def load_weights(network: nn.Module, weights: str, *, head: Sequence[str] = (), prefix: str = "") -> None:
    """Put weights into a network; `head` are beginnings of names that need not fit.

    A `prefix` of all names, as of an encoder saved together with a head, is taken off.
    """
    file = _file(locate_weights(weights))
    given = {name.removeprefix(prefix): value for name, value in _read(file).items()}
    own = network.state_dict()

    def matters(name: str) -> bool:
        return not name.startswith(tuple(head)) and not name.endswith(("num_batches_tracked", "position_ids"))

    missing = [name for name in own if name not in given and matters(name)]
    unknown = [name for name in given if name not in own and matters(name)]
    wrong = [name for name in own if name in given and given[name].shape != own[name].shape and matters(name)]
    whole = [name for name in own if name in given and own[name].is_floating_point() > given[name].is_floating_point()]
    problem = (
        (missing and f"{missing[0]} is missing")
        or (unknown and f"the model has no {unknown[0]}")
        or (wrong and f"{wrong[0]} is {tuple(given[wrong[0]].shape)} instead of {tuple(own[wrong[0]].shape)}")
        or (whole and f"{whole[0]} holds whole numbers, as a quantised model does")
    )
    if problem:
        raise TrustmixError(f"{file} holds weights of another architecture: {problem}.")
    fitting = {name: value for name, value in given.items() if name in own and value.shape == own[name].shape}
    network.load_state_dict(fitting, strict=False)


def _file(place: Path) -> Path:
    """The weights in a folder."""
    if place.is_file():
        return place
    for pattern in FILES:
        found = sorted(place.glob(pattern))
        if len(found) == 1:
            return found[0]
    raise TrustmixError(f"{place} (model.weights) holds no single file of weights; name the file itself.")


def _read(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file; torch's own format without executing anything in it."""
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

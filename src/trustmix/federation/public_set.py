"""The public set as clients and server see it: inputs without labels, and the messages about them."""

import hashlib
from dataclasses import dataclass

import torch

from trustmix.data import Labelled
from trustmix.data.dataset import to_inputs
from trustmix.errors import TrustmixError
from trustmix.wire import MessageHeader, decode_teacher, fingerprint


@dataclass
class Public:
    """The shared unlabelled set.

    Parameters
    ----------
    inputs
        (N, ...): one row a sample; arrays and DataFrames of numbers are converted to a tensor.
    classes
        C, the number of classes.

    >>> Public(torch.zeros(3, 4), classes=2).header("north", 1).samples
    3
    """

    inputs: torch.Tensor
    classes: int

    def __post_init__(self) -> None:
        self.inputs = to_inputs(self.inputs)
        if len(self.inputs) == 0:
            raise TrustmixError("The public set is empty; clients need samples to exchange predictions on.")
        self.fingerprint = fingerprint(self.inputs)

    def __repr__(self) -> str:
        return f"<Public: {len(self.inputs)} samples of shape {tuple(self.inputs.shape[1:])}, {self.classes} classes>"

    def header(self, sender: str, round_: int) -> MessageHeader:
        """What a message about this set must contain in its header."""
        return MessageHeader(sender, round_, self.fingerprint, len(self.inputs), self.classes)

    def teacher(self, message: bytes, round_: int) -> torch.Tensor:
        """The teacher (N, C) of that round, from the server's message."""
        return decode_teacher(message, self.header("server", round_))


def fingerprint_samples(*parts: Labelled) -> str:
    """A short hash of samples and their labels.

    Parameters
    ----------
    *parts
        Samples; their order counts.

    Returns
    -------
    str
        16 hexadecimal digits.

    >>> samples = Labelled(torch.zeros(2, 3), torch.tensor([0, 1]))
    >>> fingerprint_samples(samples) == fingerprint_samples(samples[torch.tensor([1, 0])])
    False
    """
    hashes = [fingerprint(tensor) for part in parts for tensor in (part.inputs, part.labels)]
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:16]

"""The public set as a message: sent once to a client that joins, refused if it is not the one that was announced."""

import torch

from trustmix.errors import TrustmixError
from trustmix.wire.frame import seal, unseal
from trustmix.wire.messages import fingerprint

LARGEST = 2**32
"""Bytes that no public set exceeds, packed or not."""


def seal_public(inputs: torch.Tensor) -> bytes:
    """The public inputs (N, ...) as a message.

    >>> inputs = torch.rand(3, 4)
    >>> bool((open_public(seal_public(inputs), fingerprint(inputs)) == inputs).all())
    True
    """
    return seal({"inputs": inputs}, {"kind": "public"})


def open_public(message: bytes, announced: str) -> torch.Tensor:
    """The public inputs in a message, if their fingerprint is the announced one."""
    tensors, header = unseal(message, LARGEST, "The public set")
    if header != {"kind": "public"} or list(tensors) != ["inputs"]:
        raise TrustmixError("The message holds something else than a public set.")
    found = fingerprint(tensors["inputs"])
    if found != announced:
        raise TrustmixError(
            f"The public set has the fingerprint {found}, but {announced} was announced; it is refused."
        )
    return tensors["inputs"]

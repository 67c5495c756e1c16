"""The public set as a message: sent once to a client that joins, refused if it is not the one that was announced."""

import torch

from trustmix.errors import TrustmixError
from trustmix.wire.framing import decode_frame, encode_frame
from trustmix.wire.messages import fingerprint

LARGEST = 2**32
"""Bytes that no public set exceeds, packed or not."""


def encode_public_set(inputs: torch.Tensor) -> bytes:
    """The public inputs (N, ...) as a message.

    >>> inputs = torch.rand(3, 4)
    >>> bool((decode_public_set(encode_public_set(inputs), fingerprint(inputs)) == inputs).all())
    True
    """
    return encode_frame({"inputs": inputs}, {"kind": "public"})


def decode_public_set(message: bytes, announced: str) -> torch.Tensor:
    """The public inputs in a message, if their fingerprint is the announced one."""
    tensors, header = decode_frame(message, LARGEST, "The public set")
    if header != {"kind": "public"} or list(tensors) != ["inputs"]:
        raise TrustmixError("The message holds something else than a public set.")
    found = fingerprint(tensors["inputs"])
    if found != announced:
        raise TrustmixError(
            f"The public set has the fingerprint {found}, but {announced} was announced; it is refused."
        )
    return tensors["inputs"]

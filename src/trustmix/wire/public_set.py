"""The public set as a message: sent once to a client that joins, refused if it is not the announced one."""

import torch

from trustmix.errors import TrustmixError
from trustmix.wire.framing import decode_frame, encode_frame
from trustmix.wire.messages import fingerprint

MAX_BYTES = 2**32
"""The largest public set, packed or not."""


def encode_public_set(inputs: torch.Tensor) -> bytes:
    """The public inputs as a message.

    Parameters
    ----------
    inputs : torch.Tensor (N, ...)
        The public inputs.

    Returns
    -------
    bytes
        The message.

    Examples
    --------
    >>> inputs = torch.rand(3, 4)
    >>> bool((decode_public_set(encode_public_set(inputs), fingerprint(inputs)) == inputs).all())
    True
    """
    return encode_frame({"inputs": inputs}, {"kind": "public"})


def decode_public_set(message: bytes, announced: str) -> torch.Tensor:
    """The public inputs in a message.

    Parameters
    ----------
    message : bytes
        The message of `encode_public_set`.
    announced : str
        The fingerprint that the inputs must have.

    Returns
    -------
    torch.Tensor (N, ...)
        The public inputs.

    Raises
    ------
    TrustmixError
        If the message is damaged, holds something else, or has inputs of another fingerprint.
    """
    tensors, header = decode_frame(message, MAX_BYTES, "The public set")
    if header != {"kind": "public"} or list(tensors) != ["inputs"]:
        raise TrustmixError("The message holds something else than a public set.")
    found = fingerprint(tensors["inputs"])
    if found != announced:
        raise TrustmixError(
            f"The public set has the fingerprint {found}, but {announced} was announced; it is refused."
        )
    return tensors["inputs"]

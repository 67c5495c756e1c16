"""The frame around every message: four letters, a checksum, and a compressed safetensors byte string with a header.

    TMX1 | BLAKE2b of the body, 8 bytes | body: zstandard( safetensors( tensors, header ) )

The checksum finds damage; it proves nothing about the author of the message. Sizes in the frame are not trusted: the
receiver passes a limit for the message, compressed and not, and no more than that is ever allocated.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
import zstandard

from trustmix import storage
from trustmix.errors import StorageError, TrustmixError

MAGIC = b"TMX1"
CHECKSUM_BYTES = 8
COMPRESSION_LEVEL = 9
"""Higher levels take ten times as long for a few per cent."""
MAX_WINDOW = 2**31
"""The largest window that zstandard can be allowed."""
DICTIONARY = zstandard.ZstdCompressionDict(
    b'"means":{"dtype":"F64","variances":"log_weights":"classes":{"dtype":"I8","shape":[5000,"data_offsets":[0,2000'
    b'{"__metadata__":{"trustmix":"{\\"kind\\": \\"scores\\", \\"codec\\": \\"uint4\\", \\"sender\\": \\"1'
    b'\\", \\"round\\": 1, \\"fingerprint\\": \\"0\\", \\"base\\": \\"\\"}"},'
    b'"predictions":{"dtype":"F32","shape":[2000,10],"data_offsets":[0,80000]},"levels":{"dtype":"U8","shape":[2000,10],"data_offsets":[0,20000]},'
    b'"scores":{"dtype":"I8","shape":[2000],"data_offsets":[20000,22000]}}',
    dict_type=zstandard.DICT_TYPE_RAWCONTENT,
)
"""The text that most headers have in common. Both sides know it, so it does not travel: a change of it is a new version
of the frame."""


def encode_frame(tensors: Mapping[str, torch.Tensor], header: Mapping[str, Any]) -> bytes:
    """Tensors and a header as one message.

    Parameters
    ----------
    tensors : mapping of str to torch.Tensor
        The contents.
    header : mapping
        Facts about the contents that JSON can hold.

    Returns
    -------
    bytes
        The message.

    Examples
    --------
    >>> message = encode_frame({"a": torch.zeros(1000)}, {"round": 3})
    >>> len(message) < 200
    True
    >>> tensors, header = decode_frame(message, 5000, "The message")
    >>> tensors["a"].shape, header
    (torch.Size([1000]), {'round': 3})
    """
    writer = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, dict_data=DICTIONARY)
    return add_checksum(writer.compress(storage.pack(tensors, header)))


def add_checksum(body: bytes) -> bytes:
    """The body, preceded by the four letters and its checksum."""
    return MAGIC + _checksum(body) + body


def decode_frame(message: bytes, limit: int, source: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and the header of a message.

    Parameters
    ----------
    message : bytes
        The message of `encode_frame`.
    limit : int
        The largest number of bytes of the message and of its contents.
    source : str
        The subject of the error message: "The message of 7".

    Returns
    -------
    dict of str to torch.Tensor
        The contents.
    dict
        The header.

    Raises
    ------
    TrustmixError
        If the message is too long, damaged, or no message of trustmix.
    """
    if len(message) > limit:
        raise TrustmixError(f"{source} is {len(message)} bytes long; at most {limit} were promised.")
    start = len(MAGIC) + CHECKSUM_BYTES
    if message.startswith(MAGIC[:-1]) and not message.startswith(MAGIC) and message[3:4].isdigit():
        found, ours = message[3:4].decode(), MAGIC[3:4].decode()
        raise TrustmixError(f"{source} has format {found}; this version of trustmix reads format {ours}.")
    if not message.startswith(MAGIC):
        raise TrustmixError(f"{source} does not begin with {MAGIC.decode()}; it is no message of trustmix.")
    if _checksum(message[start:]) != message[len(MAGIC) : start]:
        raise TrustmixError(f"{source} is damaged: its checksum is wrong.")
    try:
        return storage.unpack(_decompress(message[start:], limit, source), source)
    except StorageError as error:  # a StorageError would end the run; this concerns one message
        raise TrustmixError(str(error)) from error


def _decompress(body: bytes, limit: int, source: str) -> bytes:
    """The contents of the body; the length that the frame declares is used only if it is within the limit."""
    try:
        declared = zstandard.get_frame_parameters(body).content_size
        if declared > limit:  # an undeclared length is the largest number
            raise TrustmixError(f"{source} declares {declared} bytes of contents; at most {limit} were promised.")
        reader = zstandard.ZstdDecompressor(dict_data=DICTIONARY, max_window_size=min(limit, MAX_WINDOW))
        return reader.decompress(body, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise TrustmixError(f"{source} cannot be decompressed ({error}).") from error


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=CHECKSUM_BYTES).digest()

"""Malformed messages: values that are not finite, rows that are not probabilities, a wrong round, a replayed message.

The server must refuse each of them; they are registered so that simulations and tests can show that it does.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch

from trustmix.aggregation.upload import Upload
from trustmix.attacks.poisoning import scores_of
from trustmix.registry import Registry
from trustmix.wire import MessageHeader, encode_upload

MalformedMessage: TypeAlias = Callable[[Upload, Sequence[bytes], MessageHeader], bytes]
"""A function from the client's honest upload, the messages of the honest clients and the client's header to a message.
"""

MALFORMED_MESSAGES: Registry[MalformedMessage] = Registry("malformed message")

CODEC = "float32"
"""The codec that encodes values outside the simplex unchanged."""


@MALFORMED_MESSAGES.register("nan")
def nan(own: Upload, honest: Sequence[bytes], header: MessageHeader) -> bytes:  # noqa: ARG001
    """Encode an upload whose predictions and scores are NaN.

    Parameters
    ----------
    own
        The client's honest upload.
    honest
        The messages of the honest clients; not used.
    header
        The client's header of the round.

    Returns
    -------
    bytes
        The message.
    """
    invalid = replace(own, predictions=own.predictions * torch.nan, scores=scores_of(own) * torch.nan)
    return encode_upload(invalid, header, CODEC)


@MALFORMED_MESSAGES.register("off-simplex")
def off_simplex(own: Upload, honest: Sequence[bytes], header: MessageHeader) -> bytes:  # noqa: ARG001
    """Encode predictions that are a hundred times as large as probabilities.

    Parameters
    ----------
    own
        The client's honest upload.
    honest
        The messages of the honest clients; not used.
    header
        The client's header of the round.

    Returns
    -------
    bytes
        The message.
    """
    return encode_upload(replace(own, predictions=100 * own.predictions), header, CODEC)


@MALFORMED_MESSAGES.register("stale")
def stale(own: Upload, honest: Sequence[bytes], header: MessageHeader) -> bytes:  # noqa: ARG001
    """Encode an upload with the header of the round before.

    Parameters
    ----------
    own
        The client's honest upload.
    honest
        The messages of the honest clients; not used.
    header
        The client's header of the round.

    Returns
    -------
    bytes
        The message.
    """
    return encode_upload(own, replace(header, round=header.round - 1), CODEC)


@MALFORMED_MESSAGES.register("replay")
def replay(own: Upload, honest: Sequence[bytes], header: MessageHeader) -> bytes:
    """Return the message of an honest client unchanged, or a stale message if there is no honest client.

    Parameters
    ----------
    own
        The client's honest upload.
    honest
        The messages of the honest clients.
    header
        The client's header of the round.

    Returns
    -------
    bytes
        The message.
    """
    return honest[0] if honest else stale(own, honest, header)

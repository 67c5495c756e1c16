"""Messages that break the contract: numbers that are none, no probabilities, another round, somebody else's words.

A door that works refuses every one of them; they are here so that it can be seen to.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch

from trustmix.aggregation.base import Upload
from trustmix.attacks.poisoning import scores_of
from trustmix.registry import Registry
from trustmix.wire import MessageHeader, encode_upload

MalformedMessage: TypeAlias = Callable[[Upload, Sequence[bytes], MessageHeader], bytes]
"""From what the client would have said honestly, the honest clients' messages and its header to a forged message."""

MALFORMED_MESSAGES: Registry[MalformedMessage] = Registry("forgery")

CODEC = "float32"
"""It carries what is no probability unchanged."""


@MALFORMED_MESSAGES.register("nan")
def nan(own: Upload, honest: Sequence[bytes], header: MessageHeader) -> bytes:  # noqa: ARG001
    """Predictions and scores that are no numbers."""
    nothing = replace(own, predictions=own.predictions * torch.nan, scores=scores_of(own) * torch.nan)
    return encode_upload(nothing, header, CODEC)


@MALFORMED_MESSAGES.register("off-simplex")
def off_simplex(own: Upload, honest: Sequence[bytes], header: MessageHeader) -> bytes:  # noqa: ARG001
    """Predictions a hundred times as large as probabilities are."""
    return encode_upload(replace(own, predictions=100 * own.predictions), header, CODEC)


@MALFORMED_MESSAGES.register("stale")
def stale(own: Upload, honest: Sequence[bytes], header: MessageHeader) -> bytes:  # noqa: ARG001
    """A message of the round before."""
    return encode_upload(own, replace(header, round=header.round - 1), CODEC)


@MALFORMED_MESSAGES.register("replay")
def replay(own: Upload, honest: Sequence[bytes], header: MessageHeader) -> bytes:
    """An honest client's message, sent once more."""
    return honest[0] if honest else stale(own, honest, header)

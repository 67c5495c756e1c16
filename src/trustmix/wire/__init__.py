"""How an upload and a teacher become bytes and back, and what that costs."""

from trustmix.wire.codecs import CODECS, Codec
from trustmix.wire.communication_cost import fedavg_bytes, predictions_bytes, scaffold_bytes
from trustmix.wire.messages import (
    UPLOAD_ENCODERS,
    MessageHeader,
    decode_teacher,
    decode_upload,
    encode_teacher,
    encode_upload,
    fingerprint,
)
from trustmix.wire.public_set import decode_public_set, encode_public_set

__all__ = [
    "CODECS",
    "UPLOAD_ENCODERS",
    "Codec",
    "MessageHeader",
    "decode_public_set",
    "decode_teacher",
    "decode_upload",
    "encode_public_set",
    "encode_teacher",
    "encode_upload",
    "fedavg_bytes",
    "fingerprint",
    "predictions_bytes",
    "scaffold_bytes",
]

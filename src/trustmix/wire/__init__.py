"""How an upload and a teacher become bytes and back, and what that costs."""

from trustmix.wire.accounting import fedavg_bytes, predictions_bytes, scaffold_bytes
from trustmix.wire.codecs import CODECS, Codec
from trustmix.wire.messages import (
    FORMS,
    Envelope,
    Labels,
    Upload,
    decode_teacher,
    decode_upload,
    encode_teacher,
    encode_upload,
    fingerprint,
)
from trustmix.wire.public import open_public, seal_public

__all__ = [
    "CODECS",
    "FORMS",
    "Codec",
    "Envelope",
    "Labels",
    "Upload",
    "decode_teacher",
    "decode_upload",
    "encode_teacher",
    "encode_upload",
    "fedavg_bytes",
    "fingerprint",
    "open_public",
    "predictions_bytes",
    "scaffold_bytes",
    "seal_public",
]

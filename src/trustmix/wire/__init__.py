"""How an upload and a teacher become bytes and back."""

from trustmix.wire.messages import (
    CODECS,
    FORMS,
    Envelope,
    Upload,
    decode_teacher,
    decode_upload,
    encode_teacher,
    fingerprint,
)

__all__ = ["CODECS", "FORMS", "Envelope", "Upload", "decode_teacher", "decode_upload", "encode_teacher", "fingerprint"]

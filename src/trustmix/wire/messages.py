"""What travels, as bytes: a client's upload and the server's teacher, each one safetensors message with a header.

The header names the round, the sender, the codec and the fingerprint of the public set; a message that does not say
what was expected is refused with a reason. An upload has one of two forms: `scores` (q and l: the client evaluates its
own density, N*(C+1) numbers) or `density` (logits and the mixture: the server evaluates). Both give the same teacher.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import torch

from trustmix import storage
from trustmix.errors import TrustmixError
from trustmix.registry import Registry
from trustmix.trust import ClassGaussians

CODECS: Registry[torch.dtype] = Registry("codec")
CODECS.register("float32")(torch.float32)
CODECS.register("float16")(torch.float16)


@dataclass(frozen=True)
class Envelope:
    """What a message must say of itself: whose it is, of which round, about which public set."""

    sender: str
    round: int
    fingerprint: str
    samples: int
    classes: int

    def header(self, kind: str, codec: str) -> dict[str, str | int]:
        """The header of a message of this kind."""
        return {
            "kind": kind,
            "codec": codec,
            "sender": self.sender,
            "round": self.round,
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True)
class Upload:
    """What a client says of the public set: predictions q (N, C) and scores l (N,)."""

    predictions: torch.Tensor
    scores: torch.Tensor


def fingerprint(inputs: torch.Tensor) -> str:
    """A short hash of the public inputs: type, shape and bytes.

    >>> fingerprint(torch.zeros(2)) == fingerprint(torch.zeros(3))
    False
    """
    digest = hashlib.sha256(f"{inputs.dtype} {tuple(inputs.shape)}".encode())
    digest.update(inputs.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def encode_scores(logits: torch.Tensor, density: ClassGaussians, envelope: Envelope, codec: str) -> bytes:
    """An upload of the form `scores`."""
    predictions = torch.softmax(logits.to(torch.float64), 1)
    tensors = {"predictions": predictions.to(CODECS.get(codec)), "scores": density.log_prob(logits).to(torch.float32)}
    return storage.pack(tensors, envelope.header("scores", codec))


def encode_density(logits: torch.Tensor, density: ClassGaussians, envelope: Envelope, codec: str) -> bytes:
    """An upload of the form `density`. The mixture is small and stays exact."""
    tensors = {"logits": logits.to(CODECS.get(codec)), **density.state()}
    return storage.pack(tensors, envelope.header("density", codec))


FORMS = {"scores": encode_scores, "density": encode_density}


def decode_upload(payload: bytes, envelope: Envelope) -> Upload:
    """The upload in a message of either form, if it is what the envelope promises; its values are still unchecked."""
    tensors, kind = _open(payload, envelope)
    if kind == "density":
        logits = _tensor(tensors, "logits", (envelope.samples, envelope.classes))
        density = ClassGaussians.from_state(tensors)
        return Upload(torch.softmax(logits.to(torch.float64), 1), density.log_prob(logits))
    predictions = _tensor(tensors, "predictions", (envelope.samples, envelope.classes))
    return Upload(predictions, _tensor(tensors, "scores", (envelope.samples,)))


def encode_teacher(probabilities: torch.Tensor, envelope: Envelope, codec: str) -> bytes:
    """The teacher (N, C) as a message."""
    return storage.pack({"teacher": probabilities.to(CODECS.get(codec))}, envelope.header("teacher", codec))


@lru_cache(maxsize=1)
def decode_teacher(payload: bytes, envelope: Envelope) -> torch.Tensor:
    """The teacher in a message, float32, each row summing to one again after a narrow codec.

    The clients of one process get the same message and share what it decodes to.
    """
    tensors, _ = _open(payload, envelope)
    teacher = _tensor(tensors, "teacher", (envelope.samples, envelope.classes)).to(torch.float32)
    return teacher / teacher.sum(1, keepdim=True)


def _open(payload: bytes, envelope: Envelope) -> tuple[dict[str, torch.Tensor], str]:
    tensors, header = storage.unpack(payload, f"The message of {envelope.sender}")
    kind = str(header.get("kind"))
    wanted = envelope.header(kind, str(header.get("codec")))
    for key, value in wanted.items():
        if header.get(key) != value:
            raise TrustmixError(
                f"The message of {envelope.sender} says {key} = {header.get(key)}; expected was {value}."
            )
    return tensors, kind


def _tensor(tensors: dict[str, torch.Tensor], name: str, shape: tuple[int, ...]) -> torch.Tensor:
    found = tensors.get(name)
    if found is None or tuple(found.shape) != shape:
        got = "nothing" if found is None else f"the shape {tuple(found.shape)}"
        raise TrustmixError(f"The message has {got} for {name}; expected was {shape}.")
    return found

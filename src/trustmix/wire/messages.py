"""What travels, as bytes: a client's upload and the server's teacher, each one message with a header (see `frame`).

The header names the round, the sender, the codec and the fingerprint of the public set; a message that does not say
what was expected is refused with a reason. An upload has one of two forms: `scores` (q and l: the client evaluates its
own density, N*(C+1) numbers) or `density` (logits and the mixture: the server evaluates). Both give the same teacher.
A client that chose to share its label set adds how many samples of each class it holds, and its ranks, a byte a sample.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from trustmix.aggregation.base import Upload, validate_predictions
from trustmix.density import ClassGaussians, Density
from trustmix.errors import TrustmixError
from trustmix.wire.codecs import CODECS, FloatCodec, Layout, Parts
from trustmix.wire.framing import decode_frame, encode_frame


@dataclass(frozen=True)
class MessageHeader:
    """What a message must say of itself: whose it is, of which round, about which public set."""

    sender: str
    round: int
    fingerprint: str
    samples: int
    classes: int

    def header(self, kind: str, codec: str, base: str = "") -> dict[str, str | int]:
        """The header of a message of this kind; `base` marks the teacher it is a difference to, if it is one."""
        return {
            "kind": kind,
            "codec": codec,
            "sender": self.sender,
            "round": self.round,
            "fingerprint": self.fingerprint,
            "base": base,
        }

    @property
    def limit(self) -> int:
        """Bytes that no honest message exceeds: float32 logits or predictions, scores, a mixture, and the header."""
        numbers = 4 * self.samples * (self.classes + 1) + 8 * self.classes * (2 * self.classes + 1)
        numbers += self.samples + 4 * self.classes
        return numbers + numbers // 1000 + 16 * len(self.sender) + 2048


@dataclass(frozen=True)
class LabelSet:
    """What a client sends that shares its label set."""

    class_counts: torch.Tensor
    """(C,): how many samples of each class it holds, or 1 for some."""
    ranks: torch.Tensor
    """(N,): the part of its calibration samples that score lower than the public sample."""

    def parts(self) -> dict[str, torch.Tensor]:
        """As tensors of a message."""
        return {"held": self.class_counts.to(torch.int32), "ranks": (self.ranks * 255).round().to(torch.uint8)}

    @staticmethod
    def layout(expected: MessageHeader) -> Layout:
        """What `parts` look like."""
        return {"held": (torch.int32, (expected.classes,)), "ranks": (torch.uint8, (expected.samples,))}


def fingerprint(inputs: torch.Tensor) -> str:
    """A short hash of the public inputs: type, shape and bytes.

    >>> fingerprint(torch.zeros(2)) == fingerprint(torch.zeros(3))
    False
    """
    digest = hashlib.sha256(f"{inputs.dtype} {tuple(inputs.shape)}".encode())
    digest.update(inputs.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def encode_scores(
    logits: torch.Tensor,
    density: Density,
    expected: MessageHeader,
    codec: str,
    base: torch.Tensor | None = None,
    labels: LabelSet | None = None,
) -> bytes:
    """An upload of the form `scores`; as a difference to `base`, the last teacher (N, C), where that is shorter."""
    counts, ranks = (labels.class_counts, labels.ranks) if labels else (None, None)
    predictions = torch.softmax(logits.to(torch.float64), 1)
    upload = Upload(expected.sender, predictions, density.log_prob(logits), counts, ranks)
    return encode_upload(upload, expected, codec, base)


def encode_upload(upload: Upload, expected: MessageHeader, codec: str, base: torch.Tensor | None = None) -> bytes:
    """An upload as a message; as a difference to `base`, the last teacher (N, C), where that is shorter.

    >>> expected = MessageHeader("north", 1, "0" * 16, samples=1, classes=2)
    >>> upload = Upload("north", torch.tensor([[0.9, 0.1]]), torch.tensor([-2.0]))
    >>> message = encode_upload(upload, expected, "float32")
    >>> decode_upload(message, expected).scores.tolist()
    [-2.0]
    """
    chosen = CODECS.get(codec)
    parts = chosen.encode(upload.predictions.to(torch.float64))
    silent = torch.zeros(len(upload.predictions)) if upload.scores is None else upload.scores
    scores = {"scores": chosen.scores.encode(silent)}
    if upload.class_counts is not None and upload.ranks is not None:
        scores |= LabelSet(upload.class_counts, upload.ranks).parts()
    whole = encode_frame({**parts, **scores}, expected.header("scores", codec))
    if base is None:
        return whole
    known = chosen.encode(base.to(torch.float64))
    difference = encode_frame({**_subtract(parts, known), **scores}, expected.header("scores", codec, _mark(known)))
    return min(whole, difference, key=len)


def encode_density(
    logits: torch.Tensor,
    density: Density,
    expected: MessageHeader,
    codec: str,
    base: torch.Tensor | None = None,
    labels: LabelSet | None = None,
) -> bytes:
    """An upload of the form `density`. The mixture is small and stays exact."""
    if not isinstance(density, ClassGaussians):
        raise TrustmixError(
            "An upload of the form density has ClassGaussians; of other and standardised densities send scores."
        )
    if base is not None:
        raise TrustmixError("An upload of the form density has logits, which have no difference to a teacher.")
    tensors = {"logits": logits.to(_float_type(codec)), **density.state_dict(), **(labels.parts() if labels else {})}
    return encode_frame(tensors, expected.header("density", codec))


UPLOAD_ENCODERS = {"scores": encode_scores, "density": encode_density}


def decode_upload(payload: bytes, expected: MessageHeader, base: torch.Tensor | None = None) -> Upload:
    """The upload in a message of either form, validated.

    Parameters
    ----------
    payload
        The message.
    expected
        What its header must contain.
    base
        (N, C): the last teacher, which the message may be a difference to.

    Returns
    -------
    Upload
        Of the sender.

    Raises
    ------
    TrustmixError
        If the message is not what the expected promises, or its values cannot be.
    """
    tensors, header = _open(payload, expected, *UPLOAD_ENCODERS)
    counts, ranks = _labels(tensors, expected)
    if header["kind"] == "density":
        predictions, scores = _evaluate(tensors, expected, str(header["codec"]))
    else:
        predictions, scores = _decode_scores(tensors, header, expected, base)
    source = f"The message of {expected.sender}"
    return Upload.from_arrays(expected.sender, predictions, scores, class_counts=counts, ranks=ranks, source=source)


def _decode_scores(
    tensors: dict[str, torch.Tensor],
    header: Mapping[str, str | int],
    expected: MessageHeader,
    base: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The predictions and scores of an upload of the form `scores`."""
    chosen = CODECS.get(str(header["codec"]))
    scores = {"scores": (chosen.scores.dtype, (expected.samples,))}
    _check(tensors, {**chosen.layout(expected.samples, expected.classes), **scores})
    if header["base"]:
        if base is None:
            raise TrustmixError(f"The message of {expected.sender} is a difference to a teacher, but there is none.")
        known = chosen.encode(base.to(torch.float64))
        if _mark(known) != header["base"]:
            raise TrustmixError(f"The message of {expected.sender} is a difference to another teacher than the last.")
        tensors.update(_add(tensors, known))
    return chosen.decode(tensors, expected.classes), chosen.scores.decode(tensors["scores"])


def encode_teacher(probabilities: torch.Tensor, expected: MessageHeader, codec: str) -> bytes:
    """The teacher (N, C) as a message."""
    return encode_frame(CODECS.get(codec).encode(probabilities.to(torch.float64)), expected.header("teacher", codec))


@lru_cache(maxsize=1)
def decode_teacher(payload: bytes, expected: MessageHeader) -> torch.Tensor:
    """The teacher in a message, float32, each row summing to one again after a narrow codec.

    The clients of one process get the same message and share what it decodes to.
    """
    tensors, header = _open(payload, expected, "teacher")
    chosen = CODECS.get(str(header["codec"]))
    _check(tensors, chosen.layout(expected.samples, expected.classes))
    teacher = validate_predictions(chosen.decode(tensors, expected.classes), f"The message of {expected.sender}")
    return teacher / teacher.sum(1, keepdim=True)


def _open(payload: bytes, expected: MessageHeader, *kinds: str) -> tuple[dict[str, torch.Tensor], dict[str, str | int]]:
    """The tensors and the header of a message of one of these kinds, if the header says what the expected promises."""
    source = f"The message of {expected.sender}"
    tensors, header = decode_frame(payload, expected.limit, source)
    kind, codec, base = (str(header.get(key))[:60] for key in ("kind", "codec", "base"))
    if kind not in kinds:
        raise TrustmixError(f"{source} says kind = {kind}; expected was {' or '.join(kinds)}.")
    wanted = expected.header(kind, codec, base)
    for key in wanted:  # further fields are additions of a later version
        if header.get(key) != wanted.get(key):
            said = str(header.get(key))[:60]  # the reason is recorded: it must not be as long as the sender likes
            raise TrustmixError(f"{source} says {key[:60]} = {said}; expected was {wanted.get(key)}.")
    return tensors, wanted


def _check(tensors: Parts, layout: Layout) -> None:
    """Refuse tensors of other names, types or shapes than those of the layout."""
    for name in [*layout, *tensors]:
        found = tensors.get(name)
        dtype, shape = layout.get(name, (None, None))
        if found is None or (found.dtype, tuple(found.shape)) != (dtype, shape):
            got = "nothing" if found is None else f"the shape {tuple(found.shape)} of {found.dtype}"
            raise TrustmixError(f"The message has {got} for {name}; expected was {shape} of {dtype}.")


def _labels(
    tensors: dict[str, torch.Tensor], expected: MessageHeader
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What the message tells of the sender's label set, taken out of the tensors, or nothing of either."""
    layout = LabelSet.layout(expected)
    found = {name: tensors.pop(name) for name in layout if name in tensors}
    if not found:
        return None, None
    _check(found, layout)
    classes, ranks = found["held"], found["ranks"]
    if bool((classes < 0).any()) or not bool(classes.any()):
        raise TrustmixError(f"The message of {expected.sender} tells of no class, or of less than no sample of one.")
    return classes.to(torch.int64), ranks.to(torch.float64) / 255


def _evaluate(
    tensors: dict[str, torch.Tensor], expected: MessageHeader, codec: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The predictions and scores of an upload of the form `density`."""
    components = len(tensors["log_weights"]) if "log_weights" in tensors and tensors["log_weights"].ndim else 0
    mixture = (min(components, expected.classes), expected.classes)
    layout: Layout = {"logits": (_float_type(codec), (expected.samples, expected.classes))}
    layout |= {"means": (torch.float64, mixture), "variances": (torch.float64, mixture)}
    _check(tensors, {**layout, "log_weights": (torch.float64, mixture[:1])})
    density = ClassGaussians.from_state_dict(tensors)
    logits = tensors["logits"].to(torch.float32)
    return torch.softmax(logits.to(torch.float64), 1), density.log_prob(logits)


def _float_type(codec: str) -> torch.dtype:
    """The type of a codec that can carry logits."""
    chosen = CODECS.get(codec)
    if not isinstance(chosen, FloatCodec):
        raise TrustmixError(f"The codec {codec} is for probabilities; the form density sends logits: use float32.")
    return chosen.dtype


def _subtract(parts: Parts, known: Parts) -> dict[str, torch.Tensor]:
    """The difference byte by byte, modulo 256: no codec loses anything by it."""
    return {name: (_bytes(part) - _bytes(known[name])).view(part.dtype) for name, part in parts.items()}


def _add(parts: Parts, known: Parts) -> dict[str, torch.Tensor]:
    """What `_subtract` was given."""
    return {name: (_bytes(parts[name]) + _bytes(part)).view(part.dtype) for name, part in known.items()}


def _bytes(part: torch.Tensor) -> torch.Tensor:
    return part.contiguous().view(torch.uint8)


def _mark(known: Parts) -> str:
    """A short hash of a teacher as the codec sees it, so that both sides know they mean the same."""
    digest = hashlib.blake2b(digest_size=8)
    for part in known.values():
        digest.update(_bytes(part).numpy().data)
    return digest.hexdigest()

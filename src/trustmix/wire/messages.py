"""Messages as bytes: the upload of a client and the teacher of the server, each with a header (see `framing`).

The header contains the round, the sender, the codec and the fingerprint of the public set; a message whose header is
not the expected one is refused with a reason. An upload has one of two forms. In the form `scores` it contains
predictions q and scores l, N*(C+1) numbers, and the client evaluates its density. In the form `density` it contains
logits and the density, and the server evaluates. Both give the same teacher. A client that shares its label set adds
the number of samples of each class.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from trustmix.aggregation import SparsePredictions, Upload
from trustmix.aggregation.upload import validate_predictions
from trustmix.density import ClassGaussians, Density
from trustmix.errors import TrustmixError
from trustmix.wire.codecs import CODECS, FloatCodec, Layout, Parts, SparseCodec
from trustmix.wire.framing import decode_frame, encode_frame

HELD = "held"
"""The name of the class counts in a message."""


@dataclass(frozen=True)
class MessageHeader:
    """The header that a message must have.

    Parameters
    ----------
    sender
        The id of the sender.
    round
        The number of the round.
    fingerprint
        The fingerprint of the public set.
    samples, classes
        The numbers N and C, which are not sent; the shapes of tensors are checked against them.

    Examples
    --------
    >>> MessageHeader("north", 1, "0" * 16, samples=5, classes=2).header("scores", "float32")["sender"]
    'north'
    """

    sender: str
    round: int
    fingerprint: str
    samples: int
    classes: int

    def header(self, kind: str, codec: str, base: str = "") -> dict[str, str | int]:
        """Return the fields of the header.

        Parameters
        ----------
        kind
            "scores", "density" or "teacher".
        codec
            The name of the codec.
        base
            The hash of the teacher that was subtracted; empty if none was.

        Returns
        -------
        dict
            The fields by name.
        """
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
        """The largest size of a valid message in bytes: float32 logits or predictions, scores, a density, a header."""
        numbers = 4 * self.samples * (self.classes + 1) + 8 * self.classes * (2 * self.classes + 1)
        numbers += 4 * self.classes
        return numbers + numbers // 1000 + 16 * len(self.sender) + 2048


def fingerprint(inputs: torch.Tensor) -> str:
    """Return a short hash of the public inputs: of type, shape and bytes.

    Parameters
    ----------
    inputs
        Tensor (N, ...): the inputs of the public set.

    Returns
    -------
    str
        16 hexadecimal digits.

    Examples
    --------
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
    class_counts: torch.Tensor | None = None,
) -> bytes:
    """Encode an upload of the form `scores`.

    Parameters
    ----------
    logits
        Float tensor (N, C): the logits of the client's model on the public set.
    density
        The density of the client, which scores the logits.
    expected
        The header of the message.
    codec
        The name of the codec.
    base
        Tensor (N, C): the last teacher. The message contains the difference to it where that is shorter. None if there
        is no last teacher.
    class_counts
        Integer tensor (C,): how many samples of each class the client holds, or 1 for some; None if it does not share
        its label set.

    Returns
    -------
    bytes
        The message.
    """
    predictions = torch.softmax(logits.to(torch.float64), 1)
    upload = Upload(expected.sender, predictions, density.log_prob(logits), class_counts)
    return encode_upload(upload, expected, codec, base)


def encode_upload(upload: Upload, expected: MessageHeader, codec: str, base: torch.Tensor | None = None) -> bytes:
    """Encode an upload.

    Parameters
    ----------
    upload
        The upload; scores are sent as zeros if it has none.
    expected
        The header of the message.
    codec
        The name of the codec.
    base
        Tensor (N, C): the last teacher. The message contains the difference to it where that is shorter. None if there
        is no last teacher.

    Returns
    -------
    bytes
        The message.

    Examples
    --------
    >>> expected = MessageHeader("north", 1, "0" * 16, samples=1, classes=2)
    >>> upload = Upload("north", torch.tensor([[0.9, 0.1]]), torch.tensor([-2.0]))
    >>> message = encode_upload(upload, expected, "float32")
    >>> decode_upload(message, expected).scores.tolist()
    [-2.0]
    """
    chosen = CODECS.get(codec)
    parts = chosen.encode(upload.predictions.to(torch.float64))
    scores = torch.zeros(upload.shape[0]) if upload.scores is None else upload.scores
    others = {"scores": chosen.scores.encode(scores), **_label_set(upload.class_counts)}
    whole = encode_frame({**parts, **others}, expected.header("scores", codec))
    if base is None:
        return whole
    known = chosen.encode(base.to(torch.float64))
    difference = encode_frame({**_subtract(parts, known), **others}, expected.header("scores", codec, _hash(known)))
    return min(whole, difference, key=len)


def encode_density(
    logits: torch.Tensor,
    density: Density,
    expected: MessageHeader,
    codec: str,
    base: torch.Tensor | None = None,
    class_counts: torch.Tensor | None = None,
) -> bytes:
    """Encode an upload of the form `density`; the density is small and is sent as float64.

    Parameters
    ----------
    logits
        Float tensor (N, C): the logits of the client's model on the public set.
    density
        The density of the client, which must be `ClassGaussians`.
    expected
        The header of the message.
    codec
        The name of a codec of floating-point numbers.
    base
        Must be None: logits have no difference to a teacher.
    class_counts
        Integer tensor (C,): how many samples of each class the client holds, or 1 for some; None if it does not share
        its label set.

    Returns
    -------
    bytes
        The message.

    Raises
    ------
    TrustmixError
        If the density is of another kind, the codec is for probabilities only, or `base` is not None.
    """
    if not isinstance(density, ClassGaussians):
        raise TrustmixError(
            "An upload of the form density has ClassGaussians; of other and standardised densities send scores."
        )
    if base is not None:
        raise TrustmixError("An upload of the form density has logits, which have no difference to a teacher.")
    tensors = {"logits": logits.to(_float_type(codec)), **density.state_dict(), **_label_set(class_counts)}
    return encode_frame(tensors, expected.header("density", codec))


UPLOAD_ENCODERS = {"scores": encode_scores, "density": encode_density}
"""The functions that encode uploads, by the form."""


def decode_upload(payload: bytes, expected: MessageHeader, base: torch.Tensor | None = None) -> Upload:
    """Decode and validate an upload of either form.

    Parameters
    ----------
    payload
        The message.
    expected
        The header that the message must have.
    base
        Tensor (N, C): the last teacher, for a message that contains a difference. None if there is no last teacher.

    Returns
    -------
    Upload
        The upload of the sender.

    Raises
    ------
    TrustmixError
        If the header differs from the expected one, or the values are not valid.
    """
    tensors, header = _decode_message(payload, expected, *UPLOAD_ENCODERS)
    counts = _pop_label_set(tensors, expected)
    predictions: torch.Tensor | SparsePredictions
    if header["kind"] == "density":
        predictions, scores = _evaluate(tensors, expected, str(header["codec"]))
    else:
        predictions, scores = _decode_scores(tensors, header, expected, base)
    source = f"The message of {expected.sender}"
    return Upload.from_arrays(expected.sender, predictions, scores, class_counts=counts, source=source)


def _decode_scores(
    tensors: dict[str, torch.Tensor],
    header: Mapping[str, str | int],
    expected: MessageHeader,
    base: torch.Tensor | None,
) -> tuple[torch.Tensor | SparsePredictions, torch.Tensor]:
    """The predictions and scores of an upload of the form `scores`; predictions stay sparse where the codec is."""
    chosen = CODECS.get(str(header["codec"]))
    layout = chosen.layout(expected.samples, expected.classes)
    _validate_layout(tensors, {**layout, "scores": (chosen.scores.dtype, (expected.samples,))})
    if header["base"]:
        if base is None:
            raise TrustmixError(f"The message of {expected.sender} is a difference to a teacher, but there is none.")
        known = chosen.encode(base.to(torch.float64))
        if _hash(known) != header["base"]:
            raise TrustmixError(f"The message of {expected.sender} is a difference to another teacher than the last.")
        tensors.update(_add(tensors, known))
    scores = chosen.scores.decode(tensors["scores"])
    if isinstance(chosen, SparseCodec):
        return chosen.decode_sparse(tensors, expected.classes), scores
    return chosen.decode(tensors, expected.classes), scores


def encode_teacher(probabilities: torch.Tensor, expected: MessageHeader, codec: str) -> bytes:
    """Encode a teacher.

    Parameters
    ----------
    probabilities
        Float tensor (N, C): the teacher.
    expected
        The header of the message.
    codec
        The name of the codec.

    Returns
    -------
    bytes
        The message.

    Examples
    --------
    >>> expected = MessageHeader("server", 1, "0" * 16, samples=1, classes=2)
    >>> message = encode_teacher(torch.tensor([[0.75, 0.25]]), expected, "float32")
    >>> decode_teacher(message, expected).tolist()
    [[0.75, 0.25]]
    """
    return encode_frame(CODECS.get(codec).encode(probabilities.to(torch.float64)), expected.header("teacher", codec))


@lru_cache(maxsize=1)
def decode_teacher(payload: bytes, expected: MessageHeader) -> torch.Tensor:
    """Decode and validate a teacher.

    The last result is cached, since all clients of a process decode the same message.

    Parameters
    ----------
    payload
        The message.
    expected
        The header that the message must have.

    Returns
    -------
    torch.Tensor
        The teacher (N, C), float32; each row is divided by its sum, since codecs round.

    Raises
    ------
    TrustmixError
        If the header differs from the expected one, or the values are not probabilities.
    """
    tensors, header = _decode_message(payload, expected, "teacher")
    chosen = CODECS.get(str(header["codec"]))
    _validate_layout(tensors, chosen.layout(expected.samples, expected.classes))
    teacher = validate_predictions(chosen.decode(tensors, expected.classes), f"The message of {expected.sender}")
    return teacher / teacher.sum(1, keepdim=True)


def _decode_message(
    payload: bytes, expected: MessageHeader, *kinds: str
) -> tuple[dict[str, torch.Tensor], dict[str, str | int]]:
    """The tensors and the header of a message of one of these kinds, if the header is the expected one."""
    source = f"The message of {expected.sender}"
    tensors, header = decode_frame(payload, expected.limit, source)
    kind, codec, base = (str(header.get(key))[:60] for key in ("kind", "codec", "base"))
    if kind not in kinds:
        raise TrustmixError(f"{source} has kind = {kind}; expected was {' or '.join(kinds)}.")
    wanted = expected.header(kind, codec, base)
    for key in wanted:  # further fields are additions of a later version
        if header.get(key) != wanted.get(key):
            found = str(header.get(key))[:60]  # the reason is recorded, and the sender must not choose its length
            raise TrustmixError(f"{source} has {key[:60]} = {found}; expected was {wanted.get(key)}.")
    return tensors, wanted


def _validate_layout(tensors: Parts, layout: Layout) -> None:
    """Raise if names, types or shapes of the tensors differ from the layout."""
    for name in [*layout, *tensors]:
        found = tensors.get(name)
        dtype, shape = layout.get(name, (None, None))
        if found is None or (found.dtype, tuple(found.shape)) != (dtype, shape):
            got = "nothing" if found is None else f"the shape {tuple(found.shape)} of {found.dtype}"
            raise TrustmixError(f"The message has {got} for {name}; expected was {shape} of {dtype}.")


def _label_set(class_counts: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """The part of a message that has the label set, if the client shares it."""
    return {} if class_counts is None else {HELD: class_counts.to(torch.int32)}


def _pop_label_set(tensors: dict[str, torch.Tensor], expected: MessageHeader) -> torch.Tensor | None:
    """The class counts (C,), removed from the tensors; None if the message has none."""
    tensors.pop("ranks", None)  # clients of earlier versions send them with their label sets
    if HELD not in tensors:
        return None
    counts = tensors.pop(HELD)
    _validate_layout({HELD: counts}, {HELD: (torch.int32, (expected.classes,))})
    if bool((counts < 0).any()) or not bool(counts.any()):
        raise TrustmixError(f"The message of {expected.sender} has negative class counts, or none above zero.")
    return counts.to(torch.int64)


def _evaluate(
    tensors: dict[str, torch.Tensor], expected: MessageHeader, codec: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The predictions and scores of an upload of the form `density`."""
    components = len(tensors["log_weights"]) if "log_weights" in tensors and tensors["log_weights"].ndim else 0
    mixture = (min(components, expected.classes), expected.classes)
    layout: Layout = {"logits": (_float_type(codec), (expected.samples, expected.classes))}
    layout |= {"means": (torch.float64, mixture), "variances": (torch.float64, mixture)}
    _validate_layout(tensors, {**layout, "log_weights": (torch.float64, mixture[:1])})
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
    """The difference byte by byte, modulo 256, which is exact for every codec."""
    return {name: (_bytes(part) - _bytes(known[name])).view(part.dtype) for name, part in parts.items()}


def _add(parts: Parts, known: Parts) -> dict[str, torch.Tensor]:
    """The inverse of `_subtract`."""
    return {name: (_bytes(parts[name]) + _bytes(part)).view(part.dtype) for name, part in known.items()}


def _bytes(part: torch.Tensor) -> torch.Tensor:
    return part.contiguous().view(torch.uint8)


def _hash(known: Parts) -> str:
    """A short hash of an encoded teacher, by which both sides know that they use the same one."""
    digest = hashlib.blake2b(digest_size=8)
    for part in known.values():
        digest.update(_bytes(part).numpy().data)
    return digest.hexdigest()

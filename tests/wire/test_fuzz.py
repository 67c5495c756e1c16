"""Messages that are damaged or forged: each is refused with a reason, and none takes more memory than was promised."""

import json
import math
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import zstandard

from trustmix import ClassGaussians, TrustmixError, storage
from trustmix.wire import CODECS, UPLOAD_ENCODERS, MessageHeader, decode_teacher, decode_upload, encode_teacher
from trustmix.wire.framing import CHECKSUM_BYTES, DICTIONARY, MAGIC, add_checksum, encode_frame

SAMPLES, CLASSES = 24, 7
GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 3 * torch.randn(SAMPLES, CLASSES, generator=GENERATOR)
DENSITY = ClassGaussians.fit(3 * torch.randn(30, CLASSES, generator=GENERATOR), torch.arange(30) % 3)
TEACHER = torch.softmax(LOGITS + 0.1, 1)
SENDER = MessageHeader("7", 3, "f" * 16, SAMPLES, CLASSES)
SERVER = MessageHeader("server", 2, "f" * 16, SAMPLES, CLASSES)
START = len(MAGIC) + CHECKSUM_BYTES


@dataclass(frozen=True)
class Sound:
    """A message as it should be, and who opens it."""

    name: str
    message: bytes
    open: Callable[[bytes], Any]


def upload(message: bytes) -> Any:
    return decode_upload(message, SENDER, TEACHER)


def teacher(message: bytes) -> Any:
    return decode_teacher(message, SERVER)


SOUND = [
    *[Sound(f"upload {c}", UPLOAD_ENCODERS["scores"](LOGITS, DENSITY, SENDER, c), upload) for c in CODECS.names()],
    *[
        Sound(f"delta {c}", UPLOAD_ENCODERS["scores"](LOGITS, DENSITY, SENDER, c, TEACHER), upload)
        for c in CODECS.names()
    ],
    *[
        Sound(f"density {c}", UPLOAD_ENCODERS["density"](LOGITS, DENSITY, SENDER, c), upload)
        for c in ("float32", "float16")
    ],
    *[Sound(f"teacher {c}", encode_teacher(TEACHER, SERVER, c), teacher) for c in CODECS.names()],
]


@contextmanager
def little_memory(megabytes: int = 64) -> Iterator[None]:
    """The process may not grow by more than this; an allocation that would is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + megabytes * 2**20, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def damaged(message: bytes, other: bytes, generator: random.Random) -> Iterator[bytes]:
    """The message cut, flipped, lengthened, overwritten and crossed with another, once each."""
    place, length = generator.randrange(len(message)), generator.randint(1, 40)
    yield message[:place]
    yield message[place + 1 :]
    yield message[:place] + bytes([message[place] ^ (1 << generator.randrange(8))]) + message[place + 1 :]
    yield message + generator.randbytes(length)
    yield generator.randbytes(length) + message
    yield message[:place] + generator.randbytes(length) + message[place + length :]
    yield message[:place] + generator.randbytes(length) + message[place:]
    yield message[: generator.randint(1, START)] + other[generator.randint(0, START) :]
    yield message[:START] + other[START:]
    yield message + other
    yield message * generator.randint(2, 60)


def test_sound_messages_are_taken() -> None:
    for sound in SOUND:
        sound.open(sound.message)


def test_more_than_ten_thousand_damaged_messages_are_each_refused_with_a_reason() -> None:
    generator, refused = random.Random(0), 0
    originals = {sound.message for sound in SOUND}  # a piece of one and the rest of another may make that other
    with little_memory():
        for _ in range(36):
            for sound in SOUND:
                other = generator.choice([o for o in SOUND if o.message != sound.message])
                for message in damaged(sound.message, other.message, generator):
                    if message in originals:
                        continue
                    with pytest.raises(TrustmixError, match=r"^The message of (7|server) .*\.$"):
                        sound.open(message)
                    refused += 1
    assert refused > 10_000


@pytest.mark.parametrize("sound", SOUND, ids=lambda sound: sound.name)
def test_every_single_flipped_bit_is_found(sound: Sound) -> None:
    for place in range(len(sound.message)):
        flipped = bytearray(sound.message)
        flipped[place] ^= 1 << place % 8
        with pytest.raises(TrustmixError):
            sound.open(bytes(flipped))


def compress(contents: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(level=1, dict_data=DICTIONARY, **options).compress(contents)


def test_damage_under_a_right_checksum_never_crashes_and_never_takes_memory() -> None:
    """The checksum is no signature: whoever forges a message can make it fit. What still decodes is a valid upload."""
    generator, refused = random.Random(1), 0
    with little_memory():
        for _ in range(40):
            for sound in SOUND:
                body = bytearray(sound.message[START:])
                body[generator.randrange(len(body))] ^= 1 << generator.randrange(8)
                contents = bytearray(zstandard.ZstdDecompressor(dict_data=DICTIONARY).decompress(sound.message[START:]))
                contents[generator.randrange(len(contents))] ^= 1 << generator.randrange(8)
                for forged in (add_checksum(bytes(body)), add_checksum(compress(bytes(contents)))):
                    try:
                        found = sound.open(forged)
                    except TrustmixError:
                        refused += 1
                        continue
                    predictions = getattr(found, "predictions", found)
                    assert predictions.shape == (SAMPLES, CLASSES)
                    assert float((predictions.sum(1) - 1).abs().max()) < 2e-3
    assert refused > 500


def lying_about_its_length(declared: int) -> bytes:
    """A bomb of 256 MB of zeros whose frame declares another length."""
    bomb = bytearray(compress(bytes(2**28)))
    assert bomb[4] >> 6 == 2  # the length is four bytes, after the window's one
    bomb[6:10] = declared.to_bytes(4, "little")
    return bytes(bomb)


def declaring(length: int, window: int) -> bytes:
    """An empty frame that declares this length, and a window by one byte: 0 is 1 kB, 0x88 128 MB, 0xF8 2 TB."""
    return b"\x28\xb5\x2f\xfd" + bytes([0b11000000, window]) + length.to_bytes(8, "little") + b"\x01\x00\x00"


def test_a_bomb_is_refused_before_it_takes_memory() -> None:
    zeros = bytes(2**28)
    bombs = [
        (compress(zeros), "declares 268435456 bytes of contents"),
        (compress(zeros, write_content_size=False), "declares 18446744073709551615 bytes"),
        (lying_about_its_length(1000), "cannot be decompressed"),
        (lying_about_its_length(2**32 - 1), "declares 4294967295 bytes"),
        (declaring(2**40, window=0), "declares 1099511627776 bytes"),
        (declaring(100, window=0xF8), "too much memory"),
        (declaring(100, window=0x88), "cannot be decompressed"),
        (bytes(200_000), r"is 200012 bytes long; at most \d+ were promised"),
        (SOUND[0].message[START:] + b"more", "cannot be decompressed"),
    ]
    del zeros
    with little_memory():
        for body, reason in bombs:
            with pytest.raises(TrustmixError, match=reason):
                decode_upload(add_checksum(body), MessageHeader("7", 3, "f" * 16, 2000, 10))


def safetensors(header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return add_checksum(compress((len(text) if length is None else length).to_bytes(8, "little") + text + data))


GOOD = json.dumps(SENDER.header("scores", "uint8"))
HUGE = {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "forged",
    [
        safetensors(b"{}", length=2**63),
        safetensors(b"{}", length=100),
        safetensors({"__metadata__": {"trustmix": GOOD}, "levels": HUGE}, bytes(4)),
        safetensors({"__metadata__": {"trustmix": GOOD}, "levels": {**HUGE, "data_offsets": [0, 2**62]}}, bytes(4)),
        safetensors({"__metadata__": {"trustmix": GOOD}, "levels": {**HUGE, "shape": [-1]}}, bytes(4)),
        safetensors({"__metadata__": {"trustmix": GOOD}, "levels": {**HUGE, "dtype": "F7"}}, bytes(4)),
        safetensors({"__metadata__": {"trustmix": "[" * 1200}}),
        safetensors({"__metadata__": {"trustmix": '{"round": ' + "9" * 1500 + "}"}}),
        safetensors({"__metadata__": {"trustmix": "3"}}),
        safetensors({"__metadata__": {"trustmix": "{}"}}),
        safetensors({"__metadata__": {"trustmix": GOOD}}),
        safetensors(b"[" * 1500),
        safetensors(b"\xff\xfe"),
        add_checksum(b""),
        b"",
    ],
)
def test_a_forged_safetensors_string_is_refused(forged: bytes) -> None:
    with little_memory(), pytest.raises(TrustmixError, match=r"The (message|upload)"):
        upload(forged)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "teacher"}, "has kind = teacher; expected was scores or density"),
        ({"kind": ["scores"]}, "has kind"),
        ({"codec": "float8"}, 'There is no codec "float8"'),
        ({"codec": "x" * 900}, r"has codec = x{60}; expected was x{60}\.$"),
        ({"codec": "top-3"}, "has nothing for classes"),
        ({"codec": "float16"}, "has nothing for predictions"),
        ({"sender": "8"}, "has sender = 8; expected was 7"),
        ({"round": 2}, "has round = 2; expected was 3"),
        ({"round": None}, "has round = None"),
        ({"fingerprint": "0" * 16}, "has fingerprint"),
        ({"base": "0" * 16}, "a difference to another teacher"),
        ({"base": None}, "has base = None"),
    ],
)
def test_a_header_that_was_swapped_is_refused(change: dict[str, Any], reason: str) -> None:
    parts = CODECS.get("uint8").encode(TEACHER.double())
    tensors = {**parts, "scores": torch.zeros(SAMPLES, dtype=torch.int16)}
    upload(encode_frame(tensors, SENDER.header("scores", "uint8")))
    with pytest.raises(TrustmixError, match=reason):
        upload(encode_frame(tensors, {**SENDER.header("scores", "uint8"), **change}))


def forged(codec: str, **tensors: torch.Tensor) -> bytes:
    honest = CODECS.get(codec)
    scores = torch.zeros(SAMPLES, dtype=honest.scores.dtype)
    return encode_frame(
        {**honest.encode(TEACHER.double()), "scores": scores, **tensors}, SENDER.header("scores", codec)
    )


def whole(value: float, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.full((SAMPLES, *shape), value).to(dtype)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (forged("float32", predictions=whole(0.5, torch.float32, CLASSES)), "sums to 3.5"),
        (forged("float32", predictions=whole(torch.nan, torch.float32, CLASSES)), "is nan"),
        (forged("float32", predictions=whole(0.5, torch.float64, CLASSES)), "of torch.float64 for predictions"),
        (forged("uint8", levels=whole(255, torch.uint8, CLASSES)), "sums to 7"),
        (forged("uint4", levels=whole(255, torch.uint8, 4)), "is nan"),
        (forged("top-3", classes=whole(7, torch.uint8, 3)), "names class 7; there are 7"),
        (forged("top-3", classes=whole(1, torch.uint8, 3)), "names a class twice"),
        (forged("top-3", levels=whole(200, torch.uint8, 3)), "smallest entry -"),
        (forged("argmax", classes=whole(200, torch.uint8)), "names class 200"),
        (forged("uint8", extra=torch.zeros(3)), "for extra; expected was None"),
        (forged("uint8", scores=torch.zeros(SAMPLES)), r"torch.float32 for scores; expected was \(24,\)"),
    ],
)
def test_values_that_are_no_probabilities_are_refused(message: bytes, reason: str) -> None:
    with pytest.raises(TrustmixError, match=reason):
        upload(message)


def mixture_of(components: int) -> dict[str, torch.Tensor]:
    """A sound mixture of this many components."""
    size = (components, CLASSES)
    weights = torch.full((components,), 1 / components, dtype=torch.float64)
    return {
        "means": torch.zeros(size, dtype=torch.float64),
        "variances": torch.ones(size, dtype=torch.float64),
        "log_weights": weights.log(),
    }


def test_a_mixture_may_have_as_many_components_as_there_are_classes() -> None:
    for components in (1, CLASSES):
        tensors = {"logits": LOGITS, **mixture_of(components)}
        found = upload(encode_frame(tensors, SENDER.header("density", "float32")))
        expected = -(LOGITS.double().square().sum(1) + CLASSES * math.log(2 * math.pi)) / 2
        torch.testing.assert_close(found.scores, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"log_weights": torch.zeros(())},
        {"log_weights": torch.zeros(0, dtype=torch.float64)},
        {"log_weights": torch.zeros(CLASSES + 1, dtype=torch.float64)},
        {"means": torch.zeros(3, 2, CLASSES, dtype=torch.float64)},
        {"variances": -DENSITY.variances},
        {"means": DENSITY.means * torch.nan},
        {"logits": LOGITS * torch.inf},
        {"logits": LOGITS.double()},
        {"logits": LOGITS[1:]},
        {"means": DENSITY.means.float()},
        {"extra": torch.zeros(1)},
        mixture_of(CLASSES + 1),
    ],
)
def test_a_mixture_that_is_none_is_refused(change: dict[str, torch.Tensor]) -> None:
    tensors = {"logits": LOGITS, **DENSITY.state_dict(), **change}
    with pytest.raises(TrustmixError, match=r"The message has .* expected was|positive variances|is nan|is (-)?inf"):
        upload(encode_frame(tensors, SENDER.header("density", "float32")))


def test_what_is_no_message_at_all_is_refused() -> None:
    with pytest.raises(TrustmixError, match="does not begin with TMX1"):
        upload(storage.pack({"predictions": TEACHER}))

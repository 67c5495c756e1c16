"""Predictions and scores as few numbers: what each codec keeps, and how far from the truth it may be.

Every codec gives rows on the simplex: a row is rounded as a whole or divided by its sum. Codecs are lossy once, here;
compression and the difference to a teacher lose nothing more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from trustmix.errors import TrustmixError
from trustmix.registry import Registry

Parts: TypeAlias = Mapping[str, torch.Tensor]
Layout: TypeAlias = dict[str, tuple[torch.dtype, tuple[int, ...]]]
"""The tensors of a message, by name: their type and shape."""


@dataclass(frozen=True)
class ScoreQuantizer:
    """Scores l, rounded to a step on the scale of asinh, which is linear near zero and logarithmic far from it.

    The error is at most sinh(step/2) * sqrt(1 + l^2) + (cosh(step/2) - 1) * |l|, which is about step/2 * sqrt(1 + l^2);
    scores beyond sinh(step * largest level) are clamped. Without a step they stay what they are.

    >>> coarse = ScoreQuantizer(torch.int8, 0.1)
    >>> coarse.decode(coarse.encode(torch.tensor([0.0, -100.0, -torch.inf]))).round().tolist()
    [0.0, -100.0, -163874.0]
    """

    dtype: torch.dtype
    step: float | None = None

    def encode(self, scores: torch.Tensor) -> torch.Tensor:
        """(N,) scores as levels."""
        if self.step is None:
            return scores.to(self.dtype)
        largest = torch.iinfo(self.dtype).max
        levels = (scores.to(torch.float64).asinh() / self.step).round()
        return levels.clamp(-largest, largest).to(self.dtype)

    def decode(self, levels: torch.Tensor) -> torch.Tensor:
        """(N,) levels as scores."""
        if self.step is None:
            return levels
        return (levels.to(torch.float64) * self.step).sinh().to(torch.float32)


EXACT = ScoreQuantizer(torch.float32)
FINE = ScoreQuantizer(torch.int16, 1 / 2048)
COARSE = ScoreQuantizer(torch.int8, 0.1)


class Codec(Protocol):
    """What a codec offers: which tensors it promises, predictions (N, C) as those tensors, and back."""

    @property
    def scores(self) -> ScoreQuantizer:
        """How the scores travel beside the predictions."""

    def layout(self, samples: int, classes: int) -> Layout:
        """The tensors of N samples and C classes."""

    def encode(self, predictions: torch.Tensor) -> dict[str, torch.Tensor]:
        """(N, C) probabilities, float64, as tensors of the layout."""

    def decode(self, parts: Parts, classes: int, /) -> torch.Tensor:
        """(N, C) probabilities, float32, from tensors of the layout; their values are still unchecked."""


@dataclass(frozen=True)
class FloatCodec:
    """Floating-point numbers. Relative error: 2^-24 (float32) or 2^-11 (float16, and 2^-25 absolute)."""

    dtype: torch.dtype
    scores: ScoreQuantizer

    def layout(self, samples: int, classes: int) -> Layout:
        """One number a class."""
        return {"predictions": (self.dtype, (samples, classes))}

    def encode(self, predictions: torch.Tensor) -> dict[str, torch.Tensor]:
        """Rounded to the type."""
        return {"predictions": predictions.to(self.dtype)}

    def decode(self, parts: Parts, _classes: int, /) -> torch.Tensor:
        """As they are."""
        return parts["predictions"].to(torch.float32)


@dataclass(frozen=True)
class Uint8Codec:
    """Each class a multiple of 1/255, one byte, and the row exactly one: the error is below 1/255."""

    scores: ScoreQuantizer

    def layout(self, samples: int, classes: int) -> Layout:
        """One byte a class."""
        return {"levels": (torch.uint8, (samples, classes))}

    def encode(self, predictions: torch.Tensor) -> dict[str, torch.Tensor]:
        """Levels that sum to 255."""
        return {"levels": round_rows(predictions, 255).to(torch.uint8)}

    def decode(self, parts: Parts, _classes: int, /) -> torch.Tensor:
        """Levels as parts of 255."""
        return parts["levels"].to(torch.float32) / 255


@dataclass(frozen=True)
class LogUint4Codec:
    """Four bits a class: how many half nats it is below the row's largest; ten or more count as never.

    Small probabilities matter when many clients are mixed, and equal steps would round them to zero. A class is right
    within a factor e^0.5 / (1 - D), where D is the part of the row that becomes zero: classes below e^-4.75, 0.9 %, of
    the largest. No error exceeds tanh(1/8) + D < 0.125 + D, and rows sum to one, since they are divided by their sum.

    >>> codec = LogUint4Codec(COARSE)
    >>> parts = codec.encode(torch.tensor([[0.5, 0.3, 0.199, 0.001]], dtype=torch.float64))
    >>> [round(q, 3) for q in codec.decode(parts, 4)[0].tolist()]
    [0.506, 0.307, 0.186, 0.0]
    """

    scores: ScoreQuantizer

    def layout(self, samples: int, classes: int) -> Layout:
        """One byte for two classes."""
        return {"levels": (torch.uint8, (samples, (classes + 1) // 2))}

    def encode(self, predictions: torch.Tensor) -> dict[str, torch.Tensor]:
        """Half nats below the largest, the first class of a byte in its high bits."""
        below = (predictions.amax(1, keepdim=True) / predictions).log() / STEP
        levels = below.round().clamp(max=NEVER).to(torch.uint8)
        levels = torch.nn.functional.pad(levels, (0, levels.shape[1] % 2))
        return {"levels": (levels[:, ::2] << 4) | levels[:, 1::2]}

    def decode(self, parts: Parts, classes: int, /) -> torch.Tensor:
        """Parts of the row's sum; a row of nothing but 'never' becomes NaN, which is refused as no probability."""
        packed = parts["levels"]
        levels = torch.stack([packed >> 4, packed & 15], 2).flatten(1)[:, :classes]
        weights = torch.where(levels < NEVER, torch.exp(-STEP * levels.to(torch.float32)), 0)
        return weights / weights.sum(1, keepdim=True)


STEP = 0.5
"""The step of `LogUint4Codec`."""
NEVER = 10
"""The level of `LogUint4Codec` that stands for zero."""


@dataclass(frozen=True)
class TopKCodec:
    """The k largest classes in levels of 1/255; what is left is spread evenly over the others.

    Of a kept class the error is below 1/255. With T the probability of all others, theirs is at most T, or
    (T + 1/255) / (C - k) if that is more. Where there are k classes or fewer, all but one are kept.

    >>> two = TopKCodec(2, COARSE)
    >>> parts = two.encode(torch.tensor([[0.7, 0.02, 0.2, 0.08]], dtype=torch.float64))
    >>> parts["classes"].tolist(), [round(q, 3) for q in two.decode(parts, 4)[0].tolist()]
    ([[0, 2]], [0.702, 0.049, 0.2, 0.049])
    """

    k: int
    scores: ScoreQuantizer

    def layout(self, samples: int, classes: int) -> Layout:
        """The kept classes and their levels."""
        shape = (samples, self._kept(classes))
        return {"classes": (_index_type(classes), shape), "levels": (torch.uint8, shape)}

    def encode(self, predictions: torch.Tensor) -> dict[str, torch.Tensor]:
        """The largest first; the level of the rest follows from theirs."""
        kept = self._kept(predictions.shape[1])
        values, classes = predictions.topk(kept, 1)
        rest = (predictions.sum(1, keepdim=True) - values.sum(1, keepdim=True)).clamp_min(0)
        levels = round_rows(torch.cat([values, rest], 1), 255)[:, :kept]
        return {"classes": classes.to(_index_type(predictions.shape[1])), "levels": levels.to(torch.uint8)}

    def decode(self, parts: Parts, classes: int, /) -> torch.Tensor:
        """The rest everywhere, then the kept classes in their places."""
        chosen, values = _checked_classes(parts["classes"], classes), parts["levels"].to(torch.float32) / 255
        rest = (1 - values.sum(1, keepdim=True)) / max(1, classes - self._kept(classes))
        rest[rest.abs() < 1e-6] = 0  # where the levels sum to 255, up to rounding
        return rest.expand(-1, classes).scatter(1, chosen, values)

    def _kept(self, classes: int) -> int:
        return max(1, min(self.k, classes - 1))


@dataclass(frozen=True)
class ArgmaxCodec:
    """The most probable class alone, as if it were certain: the error is at most 1 - max q."""

    scores: ScoreQuantizer

    def layout(self, samples: int, classes: int) -> Layout:
        """One class a sample."""
        return {"classes": (_index_type(classes), (samples,))}

    def encode(self, predictions: torch.Tensor) -> dict[str, torch.Tensor]:
        """The class."""
        return {"classes": predictions.argmax(1).to(_index_type(predictions.shape[1]))}

    def decode(self, parts: Parts, classes: int, /) -> torch.Tensor:
        """One for the class, zero for the others."""
        return torch.nn.functional.one_hot(_checked_classes(parts["classes"], classes), classes).to(torch.float32)


def round_rows(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Non-negative rows as whole levels that sum to `count`, each less than one level from its share.

    Shares are rounded down and the levels left over go to the largest remainders.

    >>> round_rows(torch.tensor([[0.6, 0.3, 0.1], [1.0, 1.0, 1.0]]), 4).tolist()
    [[3.0, 1.0, 0.0], [2.0, 1.0, 1.0]]
    """
    shares = count * rows / rows.sum(1, keepdim=True)
    levels = shares.floor()
    left = count - levels.sum(1, keepdim=True)
    rank = (shares - levels).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return levels + (rank < left)


def _index_type(classes: int) -> torch.dtype:
    return torch.uint8 if classes <= 256 else torch.int32


def _checked_classes(found: torch.Tensor, classes: int) -> torch.Tensor:
    """Classes as indices, if all of them exist."""
    index = found.to(torch.int64)
    if int(index.min()) < 0 or int(index.max()) >= classes:
        raise TrustmixError(f"The message names class {int(index.max())}; there are {classes}, counted from 0.")
    return index


CODECS: Registry[Codec] = Registry("codec")
CODECS.register("float32")(FloatCodec(torch.float32, EXACT))
CODECS.register("float16")(FloatCodec(torch.float16, FINE))
CODECS.register("uint8")(Uint8Codec(FINE))
CODECS.register("uint4")(LogUint4Codec(COARSE))
for _k in (2, 3, 5, 10):
    CODECS.register(f"top-{_k}")(TopKCodec(_k, COARSE))
CODECS.register("argmax")(ArgmaxCodec(COARSE))

"""Codecs: predictions and scores as few numbers, with a bound on the error of each.

Every codec gives rows on the simplex: a row is rounded as a whole or divided by its sum. Only codecs are lossy;
compression and the difference to a teacher lose nothing more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import torch

from trustmix.aggregation import SparsePredictions
from trustmix.errors import TrustmixError
from trustmix.registry import Registry

Parts: TypeAlias = Mapping[str, torch.Tensor]
"""The tensors of a message by name."""
Layout: TypeAlias = dict[str, tuple[torch.dtype, tuple[int, ...]]]
"""The type and shape of the tensors of a message by name."""


@dataclass(frozen=True)
class ScoreQuantizer:
    """Scores l, rounded to a step on the scale of asinh, which is linear near zero and logarithmic far from it.

    The error is at most sinh(step/2) * sqrt(1 + l^2) + (cosh(step/2) - 1) * |l|, which is about step/2 * sqrt(1 + l^2);
    scores beyond sinh(step * largest level) are clamped.

    Parameters
    ----------
    dtype : torch.dtype
        The type of the levels.
    step : float, optional
        The step; without it scores are only converted to the type.

    Examples
    --------
    >>> coarse = ScoreQuantizer(torch.int8, 0.1)
    >>> coarse.decode(coarse.encode(torch.tensor([0.0, -100.0, -torch.inf]))).round().tolist()
    [0.0, -100.0, -163874.0]
    """

    dtype: torch.dtype
    step: float | None = None

    def encode(self, scores: torch.Tensor) -> torch.Tensor:
        """The levels (N,) of scores (N,)."""
        if self.step is None:
            return scores.to(self.dtype)
        largest = torch.iinfo(self.dtype).max
        levels = (scores.to(torch.float64).asinh() / self.step).round()
        return levels.clamp(-largest, largest).to(self.dtype)

    def decode(self, levels: torch.Tensor) -> torch.Tensor:
        """The scores (N,), float32, of levels (N,)."""
        if self.step is None:
            return levels
        return (levels.to(torch.float64) * self.step).sinh().to(torch.float32)


EXACT = ScoreQuantizer(torch.float32)
"""Scores as they are, for float32."""
FINE = ScoreQuantizer(torch.int16, 1 / 2048)
"""Two bytes per score, for float16 and uint8."""
COARSE = ScoreQuantizer(torch.int8, 0.1)
"""One byte per score, for codecs that keep less."""

LOG_STEP = 0.5
"""The step of `LogUint4Codec`, in nats."""
ZERO_LEVEL = 10
"""The level of `LogUint4Codec` that stands for zero."""


class Codec(Protocol):
    """How predictions (N, C) become tensors of a message and probabilities again.

    A codec of your own is used by its name in `wire.up` and `wire.down` once it is registered, on the server and on
    every client: `CODECS.register("my-codec")(MyCodec())`.
    """

    @property
    def scores(self) -> ScoreQuantizer:
        """How the scores beside the predictions are quantised."""

    def layout(self, samples: int, classes: int) -> Layout:
        """The tensors of a message.

        Parameters
        ----------
        samples : int
            N.
        classes : int
            C.

        Returns
        -------
        Layout
            The type and shape of each tensor by its name; a message with other tensors is refused.
        """

    def encode(self, predictions: torch.Tensor) -> dict[str, torch.Tensor]:
        """Probabilities as tensors.

        Parameters
        ----------
        predictions : torch.Tensor (N, C)
            Probabilities, float64.

        Returns
        -------
        dict of str to torch.Tensor
            The tensors of the layout.
        """

    def decode(self, parts: Parts, classes: int, /) -> torch.Tensor:
        """Probabilities from tensors.

        Parameters
        ----------
        parts : mapping of str to torch.Tensor
            The tensors of the layout, with values that may be anything.
        classes : int
            C.

        Returns
        -------
        torch.Tensor (N, C)
            Probabilities, float32, which the caller checks.

        Raises
        ------
        TrustmixError
            If the tensors name a class that does not exist.
        """


@runtime_checkable
class SparseCodec(Protocol):
    """A codec that keeps some classes of a row: uploads of it are aggregated without being made dense."""

    def decode_sparse(self, parts: Parts, classes: int, /) -> SparsePredictions:
        """What `Codec.decode` gives, as sparse predictions.

        Parameters
        ----------
        parts : mapping of str to torch.Tensor
            The tensors of the layout, with values that may be anything.
        classes : int
            C.

        Returns
        -------
        SparsePredictions
            Probabilities, float32, which the caller checks.

        Raises
        ------
        TrustmixError
            If the tensors name a class that does not exist.
        """


@dataclass(frozen=True)
class FloatCodec:
    """Floating-point numbers. The relative error is 2^-24 (float32) or 2^-11 (float16, and 2^-25 absolute)."""

    dtype: torch.dtype
    scores: ScoreQuantizer

    def layout(self, samples: int, classes: int) -> Layout:
        """One number per class."""
        return {"predictions": (self.dtype, (samples, classes))}

    def encode(self, predictions: torch.Tensor) -> dict[str, torch.Tensor]:
        """Probabilities rounded to the type."""
        return {"predictions": predictions.to(self.dtype)}

    def decode(self, parts: Parts, _classes: int, /) -> torch.Tensor:
        """Probabilities as they are."""
        return parts["predictions"].to(torch.float32)


@dataclass(frozen=True)
class Uint8Codec:
    """One byte per class: multiples of 1/255, a row of which sums to exactly one. The error is below 1/255."""

    scores: ScoreQuantizer

    def layout(self, samples: int, classes: int) -> Layout:
        """One byte per class."""
        return {"levels": (torch.uint8, (samples, classes))}

    def encode(self, predictions: torch.Tensor) -> dict[str, torch.Tensor]:
        """Levels that sum to 255."""
        return {"levels": round_rows(predictions, 255).to(torch.uint8)}

    def decode(self, parts: Parts, _classes: int, /) -> torch.Tensor:
        """Levels as parts of 255."""
        return parts["levels"].to(torch.float32) / 255


@dataclass(frozen=True)
class LogUint4Codec:
    """Four bits per class: how many half nats it is below the row's largest; ten or more count as zero.

    Small probabilities matter when many clients are mixed, and equal steps would round them to zero. A class is right
    within a factor e^0.5 / (1 - D), where D is the part of the row that becomes zero: classes below e^-4.75, 0.9 %, of
    the largest. No error exceeds tanh(1/8) + D < 0.125 + D, and rows sum to one, since they are divided by their sum.

    Examples
    --------
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
        """Half nats below the largest; the first class of a byte is in its high bits."""
        below = (predictions.amax(1, keepdim=True) / predictions).log() / LOG_STEP
        levels = below.round().clamp(max=ZERO_LEVEL).to(torch.uint8)
        levels = torch.nn.functional.pad(levels, (0, levels.shape[1] % 2))
        return {"levels": (levels[:, ::2] << 4) | levels[:, 1::2]}

    def decode(self, parts: Parts, classes: int, /) -> torch.Tensor:
        """Fractions of the row's sum; a row of zeros only becomes NaN, which the caller refuses as no probability."""
        packed = parts["levels"]
        levels = torch.stack([packed >> 4, packed & 15], 2).flatten(1)[:, :classes]
        weights = torch.where(levels < ZERO_LEVEL, torch.exp(-LOG_STEP * levels.to(torch.float32)), 0)
        return weights / weights.sum(1, keepdim=True)


@dataclass(frozen=True)
class TopKCodec:
    """The k largest classes in levels of 1/255; what is left is spread evenly over the others.

    Of a kept class the error is below 1/255. With T the probability of all others, theirs is at most T, or
    (T + 1/255) / (C - k) if that is more. Where there are k classes or fewer, all but one are kept.

    Examples
    --------
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
        """The classes with the largest first, and their levels, from which that of the rest follows."""
        kept = self._kept(predictions.shape[1])
        values, classes = predictions.topk(kept, 1)
        rest = (predictions.sum(1, keepdim=True) - values.sum(1, keepdim=True)).clamp_min(0)
        levels = round_rows(torch.cat([values, rest], 1), 255)[:, :kept]
        return {"classes": classes.to(_index_type(predictions.shape[1])), "levels": levels.to(torch.uint8)}

    def decode(self, parts: Parts, classes: int, /) -> torch.Tensor:
        """The kept classes in their places, and the rest spread over the others."""
        return self.decode_sparse(parts, classes).to_dense()

    def decode_sparse(self, parts: Parts, classes: int, /) -> SparsePredictions:
        """The kept classes, and the rest as a part for each of the others."""
        chosen, values = _validate_classes(parts["classes"], classes), parts["levels"].to(torch.float32) / 255
        rest = (1 - values.sum(1)) / max(1, classes - self._kept(classes))
        rest[rest.abs() < 1e-6] = 0  # where the levels sum to 255, up to rounding
        return SparsePredictions(values, chosen, rest, classes)

    def _kept(self, classes: int) -> int:
        return max(1, min(self.k, classes - 1))


@dataclass(frozen=True)
class ArgmaxCodec:
    """The most probable class alone, as if it were certain: the error is at most 1 - max q."""

    scores: ScoreQuantizer

    def layout(self, samples: int, classes: int) -> Layout:
        """One class per sample."""
        return {"classes": (_index_type(classes), (samples,))}

    def encode(self, predictions: torch.Tensor) -> dict[str, torch.Tensor]:
        """The most probable class of each row."""
        return {"classes": predictions.argmax(1).to(_index_type(predictions.shape[1]))}

    def decode(self, parts: Parts, classes: int, /) -> torch.Tensor:
        """One for the class, zero for the others."""
        return self.decode_sparse(parts, classes).to_dense()

    def decode_sparse(self, parts: Parts, classes: int, /) -> SparsePredictions:
        """The class alone."""
        chosen = _validate_classes(parts["classes"], classes).unsqueeze(1)
        return SparsePredictions(torch.ones(chosen.shape), chosen, torch.zeros(len(chosen)), classes)


def round_rows(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Round non-negative rows to whole levels that sum to `count`, each less than one level from its share.

    Shares are rounded down and the levels left over go to the largest remainders.

    Parameters
    ----------
    rows : torch.Tensor (N, C)
        Non-negative numbers, some of them positive in every row.
    count : int
        The sum of the levels of a row.

    Returns
    -------
    torch.Tensor (N, C)
        Whole numbers of the type of `rows`.

    Examples
    --------
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


def _validate_classes(found: torch.Tensor, classes: int) -> torch.Tensor:
    """Classes as indices; those that do not exist are refused."""
    index = found.to(torch.int64)
    wrong = index[(index < 0) | (index >= classes)]
    if len(wrong):
        raise TrustmixError(f"The message names class {int(wrong[0])}; there are {classes}, counted from 0.")
    return index


CODECS: Registry[Codec] = Registry("codec")
"""The codecs by the name that `wire.up` and `wire.down` have in a recipe, and that the header of a message has."""
CODECS.register("float32")(FloatCodec(torch.float32, EXACT))
CODECS.register("float16")(FloatCodec(torch.float16, FINE))
CODECS.register("uint8")(Uint8Codec(FINE))
CODECS.register("uint4")(LogUint4Codec(COARSE))
for _k in (2, 3, 5, 10):
    CODECS.register(f"top-{_k}")(TopKCodec(_k, COARSE))
CODECS.register("argmax")(ArgmaxCodec(COARSE))

"""The upload of a client: predictions, dense or sparse, with scores and a label set, validated once when it is made."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch

from trustmix.aggregation.sparse import SparsePredictions
from trustmix.arrays import (
    ArrayLike,
    ArraySpec,
    format_shape,
    tensor_to_text,
    text_to_tensor,
    to_finite_tensor,
    to_float_tensor,
)
from trustmix.errors import TrustmixError

MAX_SCORE = 1e300
"""Scores are clamped to this: -inf ('never seen') then differs from any other score by a finite amount."""

MAX_COUNT = 1e15
"""More samples of a class than any client holds."""


class _Predictions:
    """The field `Upload.predictions`: dense or sparse predictions go in, dense ones come out.

    This is the only place where sparse predictions become dense. Rules that need not have them so use `Upload.sparse`.
    """

    def __set__(self, upload: "Upload", predictions: torch.Tensor | SparsePredictions) -> None:
        upload.__dict__["predictions"] = predictions

    def __get__(self, upload: "Upload | None", owner: type) -> torch.Tensor:
        if upload is None:
            raise AttributeError("predictions have no default")  # so the dataclass requires them
        found: torch.Tensor | SparsePredictions = upload.__dict__["predictions"]
        return found if isinstance(found, torch.Tensor) else found.to_dense()


@dataclass(frozen=True)
class Upload:
    """What one client contributes to a teacher. `Upload.from_arrays` is the way to make one that is validated.

    Parameters
    ----------
    client
        The client's id.
    predictions
        (N, C): q, each row on the simplex; `SparsePredictions` are made dense when they are read.
    scores
        (N,): l, float64 and finite; None where the client has no density.
    class_counts
        (C,): how many samples of each class the client holds, or 1 for some; None where it keeps its label set.
    weight
        How many clients this one counts for.
    spec
        The kind of array that the predictions were given as.
    """

    client: str
    predictions: _Predictions = _Predictions()
    scores: torch.Tensor | None = None
    class_counts: torch.Tensor | None = None
    weight: float = 1.0
    spec: ArraySpec = field(default_factory=lambda: ArraySpec("torch", torch.float32))

    @property
    def sparse(self) -> SparsePredictions | None:
        """The predictions if they are sparse."""
        found = self.__dict__["predictions"]
        return found if isinstance(found, SparsePredictions) else None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, C)."""
        samples, classes = self.__dict__["predictions"].shape
        return samples, classes

    def select(self, classes: torch.Tensor) -> torch.Tensor:
        """The predictions (N, so many) of some classes."""
        return self.predictions.index_select(1, classes) if self.sparse is None else self.sparse.select(classes)

    def replace(self, **changes: Any) -> Self:
        """A copy with other values of some fields; `dataclasses.replace` would make sparse predictions dense."""
        return replace(self, **{"predictions": self.__dict__["predictions"], **changes})

    def __repr__(self) -> str:
        samples, classes = self.shape
        parts = [name for name in ("scores", "class_counts") if getattr(self, name) is not None]
        return f"<Upload of {self.client}: {' and '.join(['predictions', *parts])}, {samples} x {classes}>"

    @classmethod
    def from_arrays(
        cls,
        client: str,
        predictions: ArrayLike | SparsePredictions,
        scores: ArrayLike | None = None,
        *,
        class_counts: ArrayLike | None = None,
        source: str | None = None,
    ) -> Self:
        """Validate arrays, NumPy's or torch's, and make an upload of them.

        Parameters
        ----------
        client, predictions, scores, class_counts
            As in `Upload`; scores may be infinite.
        source
            What error messages call the upload; "client <id>" by default.

        Returns
        -------
        Upload
            On the CPU, predictions in their own floating type.

        Raises
        ------
        TrustmixError
            If an array has the wrong shape, or values that it cannot have.

        >>> Upload.from_arrays("north", [[0.9, 0.2]])
        Traceback (most recent call last):
        ...
        trustmix.errors.TrustmixError: client north: row 1 of the predictions sums to 1.1, smallest entry 0.2; ...
        """
        source = f"client {client}" if source is None else source
        q: torch.Tensor | SparsePredictions
        if isinstance(predictions, SparsePredictions):
            q, spec = validate_sparse(predictions, source), ArraySpec.of(predictions.values)
        else:
            q, spec = validate_predictions(predictions, source).cpu(), ArraySpec.of(predictions)
        samples, classes = q.shape
        return cls(
            client,
            q,
            None if scores is None else validate_scores(scores, samples, source),
            None if class_counts is None else validate_class_counts(class_counts, classes, source),
            spec=spec,
        )


def pack_uploads(uploads: Sequence[Upload]) -> dict[str, torch.Tensor]:
    """Uploads of one round as named tensors, for rules that need all of them at once.

    >>> packed = pack_uploads([Upload.from_arrays("north", [[0.9, 0.1]], [2.0])])
    >>> [upload.client for upload in unpack_uploads(packed)]
    ['north']
    """
    packed = {"clients": text_to_tensor(json.dumps([upload.client for upload in uploads]))}
    packed |= {"specs": text_to_tensor(json.dumps([str(upload.spec) for upload in uploads]))}
    packed |= {"weights": torch.tensor([upload.weight for upload in uploads], dtype=torch.float64)}
    for index, upload in enumerate(uploads):
        for name in ARRAYS:
            array = getattr(upload, name)
            packed |= {} if array is None else {f"{index}.{name}": array}
    return packed


ARRAYS = ("predictions", "scores", "class_counts")


def unpack_uploads(packed: Mapping[str, torch.Tensor]) -> list[Upload]:
    """The uploads of `pack_uploads`."""
    clients, specs = (json.loads(tensor_to_text(packed[name])) for name in ("clients", "specs"))
    return [
        Upload(
            client,
            **{name: packed[f"{index}.{name}"] for name in ARRAYS if f"{index}.{name}" in packed},
            weight=float(packed["weights"][index]),
            spec=ArraySpec.parse(specs[index]),
        )
        for index, client in enumerate(clients)
    ]


def validate_predictions(predictions: ArrayLike, source: str) -> torch.Tensor:
    """Predictions as a tensor (N, C), N and C > 0, each row on the simplex up to the type's rounding.

    Parameters
    ----------
    predictions
        (N, C).
    source
        What the error message begins with.

    Returns
    -------
    torch.Tensor
        In its own floating type.

    Raises
    ------
    TrustmixError
        If they are no probabilities.
    """
    q = to_float_tensor(predictions, f"{source}: predictions")
    if q.ndim != 2 or q.numel() == 0:
        raise TrustmixError(
            f"{source}: predictions have the shape {format_shape(q)}; they must be (N, C), none of them 0."
        )
    tolerance = 2e-2 if q.dtype in (torch.float16, torch.bfloat16) else 1e-3
    on = (q.sum(1, dtype=torch.promote_types(q.dtype, torch.float32)) - 1).abs() <= tolerance  # false for NaN too
    if bool(on.all()) and float(q.min()) >= 0:
        return q
    to_finite_tensor(q, f"{source}: predictions")
    row = int(torch.nonzero(~on | (q < 0).any(1))[0])
    raise TrustmixError(
        f"{source}: row {row + 1} of the predictions sums to {q[row].sum():.4g}, smallest entry {q[row].min():.4g}; "
        "they must be probabilities (the softmax of the logits)."
    )


def validate_sparse(predictions: SparsePredictions, source: str) -> SparsePredictions:
    """Sparse predictions, each row on the simplex; errors have the words of dense ones."""
    predictions.validate(source)
    if not predictions.on_simplex(1e-3):
        validate_predictions(predictions.to_dense(), source)
    return predictions


def validate_scores(scores: ArrayLike, samples: int, source: str) -> torch.Tensor:
    """Scores as a float64 tensor (N,), clamped to what can be subtracted; NaN is refused."""
    score = to_float_tensor(scores, f"{source}: scores").cpu().to(torch.float64)
    if score.shape != (samples,):
        raise TrustmixError(
            f"{source}: scores have the shape {format_shape(score)}; they must be ({samples},), one a sample."
        )
    if bool(score.isnan().any()):
        raise TrustmixError(
            f"{source}: the score of sample {int(score.isnan().nonzero()[0]) + 1} is nan; it must be a number."
        )
    return score.clamp(-MAX_SCORE, MAX_SCORE)


def validate_class_counts(class_counts: ArrayLike, classes: int, source: str) -> torch.Tensor:
    """A label set as a tensor (C,) of counts, 0 for a class that the client does not hold."""
    counts = to_finite_tensor(class_counts, f"{source}: class counts").cpu()
    fits = counts.shape == (classes,) and bool(((counts >= 0) & (counts <= MAX_COUNT)).all()) and bool(counts.any())
    if not fits:
        raise TrustmixError(
            f"{source}: class counts have the shape {format_shape(counts)} and the sum {float(counts.sum()):g}; "
            f"they must be ({classes},), the number of samples of each class, some of them above 0."
        )
    return counts if counts.dtype.itemsize >= 4 else counts.to(torch.float64)  # their sum would overflow

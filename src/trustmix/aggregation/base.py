"""What every rule shares: the `Teacher` of a round, and the `Aggregator` that makes it from uploads.

An aggregator folds uploads as they arrive, merges with another one, and travels as a state of named tensors. Rules that
are sums need only say what they sum.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeAlias

import torch

from trustmix import storage
from trustmix.aggregation.upload import Upload
from trustmix.arrays import A, ArrayLike, ArraySpec
from trustmix.errors import TrustmixError

StateDict: TypeAlias = Mapping[str, torch.Tensor]
"""The state of an aggregator as named tensors, which safetensors can hold."""


@dataclass(frozen=True)
class Teacher(Generic[A]):
    """Soft labels of the public samples, and how concentrated the clients' weights behind each of them are."""

    probabilities: A
    """(N, C): p_agg."""
    concentration: A
    """(N,): chi(x) = sum_i w_i(x)^2, between 1/M (all weights equal) and 1 (one client alone)."""
    clients: int
    """M: how many uploads are in it."""

    def __repr__(self) -> str:
        samples, classes = self.probabilities.shape
        mean = float(self.effective_clients.mean())
        return f"<Teacher of {samples} samples x {classes} classes: {mean:.1f} of {self.clients} clients, effectively>"

    @property
    def effective_clients(self) -> A:
        """(N,): 1/chi(x), the number of equally weighted clients that would be as concentrated."""
        return 1 / self.concentration


class Aggregator(ABC):
    """A teacher in the making: `update` with each upload of a round, `compute` the teacher, `reset` for the next round.

    A rule implements `fold`, `estimate` and `merge_state`; `SumAggregator` does the last for rules that are sums. What
    a rule remembers over rounds survives `reset`. Its state is the attributes that `state_dict` names.
    """

    label: ClassVar[str] = ""
    """What people call the rule, in tables and figures; the name of the class if it is empty."""
    colour: ClassVar[str | None] = None
    """Its colour in figures, such as "#0b7a5f"; a free one of the palette if it is None."""
    needs_label_sets: ClassVar[bool] = False
    """Whether every upload must have `class_counts`."""
    takes_weights: ClassVar[bool] = True
    """Whether `Upload.weight` counts; a rule that cannot weigh uploads takes them whole or not at all."""

    def __init__(self) -> None:
        self.n_clients = 0
        self.tracked: torch.Tensor | None = None
        """Places in the public set whose client weights are kept, if any."""
        self._spec: ArraySpec | None = None
        self._shape: tuple[int, int] | None = None
        self._tracked_weights: dict[str, torch.Tensor] = {}
        self._tracked_votes: dict[str, torch.Tensor] = {}

    def __repr__(self) -> str:
        return f"<{self.label or type(self).__name__}: {self.n_clients} uploads so far>"

    @abstractmethod
    def fold(self, upload: Upload) -> None:
        """Take in one upload, which `validate` has accepted."""

    @abstractmethod
    def estimate(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The teacher's probabilities (N, C) and concentration (N,) of all uploads so far, at least one."""

    @abstractmethod
    def merge_state(self, other: Self) -> None:
        """Take in what another aggregator of the same rule, shape and settings has folded, at least one upload."""

    def update(self, upload: Upload | ArrayLike, scores: ArrayLike | None = None) -> None:
        """Fold in one client.

        Parameters
        ----------
        upload
            An `Upload`, or predictions q (N, C) of a client that is named by its number.
        scores
            l (N,), with predictions only.

        Raises
        ------
        TrustmixError
            If the upload does not fit those before it, or lacks what the rule needs; the state stays as it was.
        """
        if not isinstance(upload, Upload):
            upload = Upload.from_arrays(str(self.n_clients), upload, scores)
        self.validate(upload)
        self.fold(upload)
        self._shape = upload.shape
        self._spec = self._spec or upload.spec
        self.n_clients += 1
        if self.tracked is not None:
            self._tracked_votes[upload.client] = upload.predictions[self.tracked].argmax(1).to(torch.int32)

    def validate(self, upload: Upload) -> None:
        """Refuse an upload of another shape than those before it, or without a label set where the rule needs one."""
        if self._shape is not None and upload.shape != self._shape:
            raise TrustmixError(
                f"client {upload.client}: predictions have the shape {upload.shape}; those before had {self._shape}."
            )
        if self.needs_label_sets and upload.class_counts is None:
            raise TrustmixError(
                f"client {upload.client}: the upload has no label set, and this rule compares classes within it."
            )

    def merge(self, other: Self) -> None:
        """Fold in everything that another aggregator of the same rule has folded; the other stays as it is.

        Raises
        ------
        TrustmixError
            If the other one is of another rule, of other settings or of another shape.
        """
        if type(other) is not type(self):
            raise TrustmixError(f"a {type(other).__name__} cannot be merged into a {type(self).__name__}.")
        if other.n_clients == 0:
            return
        if self._shape is not None and other._shape != self._shape:
            raise TrustmixError(
                f"the merged aggregator: predictions have the shape {other._shape}; those before had {self._shape}."
            )
        self.merge_state(other)
        self._shape, self._spec = other._shape, self._spec or other._spec
        self._tracked_weights |= other._tracked_weights
        self._tracked_votes |= other._tracked_votes
        self.n_clients += other.n_clients

    def compute(self) -> Teacher[Any]:
        """The teacher of everything folded so far; folding may go on afterwards.

        Returns
        -------
        Teacher
            In the kind of array that the first upload came as.

        Raises
        ------
        TrustmixError
            If nothing was folded, or a rule of one's own returns something else than probabilities and concentration.
        """
        if self._spec is None:
            raise TrustmixError("there is nothing to aggregate: no upload has been added.")
        found: object = self.estimate()
        if not isinstance(found, tuple) or len(found) != 2:
            raise TrustmixError(
                f"The rule {type(self).__name__} must return two tensors, the teacher's probabilities (N, C) and its "
                f"concentration (N,), not one {type(found).__name__}."
            )
        probabilities, concentration = found
        return Teacher(self._spec.restore(probabilities), self._spec.restore(concentration), self.n_clients)

    def report(self) -> dict[str, dict[str, float]]:
        """What the rule did against clients that it distrusts, by client; nothing for rules without a guard."""
        return {}

    def reset(self) -> None:
        """Forget the uploads of a round; what the rule remembers over rounds stays."""
        self.n_clients = 0
        self._spec = self._shape = None
        self._tracked_weights, self._tracked_votes = {}, {}

    def track(self, samples: torch.Tensor) -> None:
        """Keep every client's weight and vote in these public samples, by their places."""
        self.tracked = samples

    def client_votes(self) -> Mapping[str, torch.Tensor]:
        """The most probable class of every client in the tracked samples, (tracked,) each, by client id."""
        return self._tracked_votes

    def client_weights(self) -> Mapping[str, torch.Tensor] | None:
        """w_i(x) of every client in the tracked samples, (tracked,) each, summing to 1 over clients.

        Returns
        -------
        Mapping or None
            By client id, in the order of arrival; None where nothing is tracked or the rule has no weights.
        """
        if not self._tracked_weights:
            return None
        weights = torch.stack(list(self._tracked_weights.values()))
        return dict(zip(self._tracked_weights, weights / weights.sum(0), strict=True))

    def keep_weights(self, client: str, weights: torch.Tensor) -> None:
        """Remember a client's weights (N,), up to a factor a sample, in the tracked samples, if there are any."""
        if self.tracked is not None:
            self._tracked_weights[client] = weights[self.tracked].clone()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The state as named tensors: what was folded, and what the rule remembers over rounds."""
        if self._spec is None or self._shape is None:
            return {}
        shape = torch.tensor(self._shape)
        return {"n_clients": torch.tensor(self.n_clients), "spec": self._spec.to_tensor(), "shape": shape}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state of `state_dict`; an empty one is that of a new aggregator."""
        self.n_clients, self._spec, self._shape = 0, None, None
        self._tracked_weights, self._tracked_votes = {}, {}
        if "n_clients" in state:
            self.n_clients = int(state["n_clients"])
            self._spec = ArraySpec.from_tensor(state["spec"])
            samples, classes = state["shape"].tolist()
            self._shape = (samples, classes)

    def save(self, path: str | Path) -> None:
        """Write the state to a safetensors file."""
        storage.write_tensors(Path(path), self.state_dict())

    def load(self, path: str | Path) -> None:
        """Take over the state of a file that `save` wrote."""
        self.load_state_dict(storage.read_tensors(Path(path))[0])


AggregatorFactory: TypeAlias = Callable[[], Aggregator]
"""What makes an empty aggregator: a class without arguments, or a function."""


class SumAggregator(Aggregator):
    """A rule whose state is sums over clients: it streams in O(N*C) memory and merges by addition.

    A rule defines what an upload adds (`terms`) and what follows from the sums (`from_sums`).

    >>> class Mean(SumAggregator):
    ...     def terms(self, upload):
    ...         return {"total": upload.predictions.double()}
    ...     def from_sums(self, sums):
    ...         mean = sums["total"] / self.n_clients
    ...         return mean, torch.full((len(mean),), 1 / self.n_clients)
    >>> rule = Mean()
    >>> rule.update([[1.0, 0.0]]); rule.update([[0.0, 1.0]])
    >>> rule.compute().probabilities.tolist()
    [[0.5, 0.5]]
    """

    def __init__(self) -> None:
        super().__init__()
        self.sums: dict[str, torch.Tensor] = {}

    @abstractmethod
    def terms(self, upload: Upload) -> Mapping[str, torch.Tensor]:
        """What an upload adds to the sums, by name."""

    @abstractmethod
    def from_sums(self, sums: StateDict) -> tuple[torch.Tensor, torch.Tensor]:
        """Probabilities (N, C) and concentration (N,)."""

    def fold(self, upload: Upload) -> None:
        """Add the upload's terms."""
        self._add(self.terms(upload))

    def make_part(self, clients: Sequence[str]) -> Self:  # noqa: ARG002 - for rules that remember clients
        """An empty aggregator to fold these clients' uploads elsewhere, whose result is merged into this one.

        Parameters
        ----------
        clients
            The ids of the clients; of others a rule need not take along what it remembers.

        Returns
        -------
        Aggregator
            Of the same rule, settings and tracked samples.
        """
        part = copy.copy(self)
        part.reset()
        return part

    def estimate(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What follows from the sums."""
        return self.from_sums(self.sums)

    def merge_state(self, other: Self) -> None:
        """Add the other's sums."""
        self._add(other.sums)

    def _add(self, terms: Mapping[str, torch.Tensor]) -> None:
        # out of place: a rule may return a sum, and the first term may be the caller's own tensor
        added = {name: self.sums[name] + term if name in self.sums else term.clone() for name, term in terms.items()}
        self.sums |= added

    def reset(self) -> None:
        """Forget the sums."""
        super().reset()
        self.sums = {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The sums by name."""
        return {**super().state_dict(), **{f"sums.{name}": value.clone() for name, value in self.sums.items()}}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over sums."""
        super().load_state_dict(state)
        self.sums = {name[len("sums.") :]: value.clone() for name, value in state.items() if name.startswith("sums.")}

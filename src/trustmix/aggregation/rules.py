"""How uploads become a teacher, by name. A rule is a function that starts an empty `Aggregator` for one round.

The paper's four rules are one: the tempered softmax of `mixing` at tau = 0, 1, 0.25 and infinity. The rules `coupling`
and `trust` compare classes within label sets instead.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch

from trustmix.aggregation.coupling import Coupling
from trustmix.aggregation.trust import Trust
from trustmix.aggregation.weighted_average import Accumulator, Teacher
from trustmix.registry import Registry


class Aggregator(Protocol):
    """What one round of any rule offers: fold in uploads as they come, then give the teacher."""

    def add(
        self, predictions: Any, scores: Any = None, *, classes: Any = None, ranks: Any = None, name: str = "upload"
    ) -> None:
        """Fold in the upload of the client `name`: predictions q (N, C) and scores l (N,).

        A client that shares its label set also tells `classes` (C,), how many samples of each class it holds (or 1 for
        some), and `ranks` (N,), the part of its own calibration samples that are less likely than the public sample.
        A rule may also take a `weight`, 1 by default, by which the guard makes a client count for less.
        """

    def finish(self) -> Teacher[Any]:
        """The teacher of all uploads so far."""


Memory: TypeAlias = Mapping[str, torch.Tensor]
"""What a rule carries from round to round."""


@runtime_checkable
class Lasting(Aggregator, Protocol):
    """A mixer that remembers earlier rounds."""

    def recall(self, memory: Memory) -> None:
        """Begin with what the round before left; empty in the first."""

    def memory(self) -> Memory:
        """What the next round begins with, once the teacher is finished."""


AggregatorFactory: TypeAlias = Callable[[], Aggregator]

RULES: Registry[AggregatorFactory] = Registry("rule")
TAU_BY_RULE = {"avg": 0.0, "uwa": 1.0, "suwa": 0.25, "most-confident": math.inf}
"""The rules that are weighted averages of predictions, and the tau of each."""
for name, tau in TAU_BY_RULE.items():
    RULES.register(name)(partial(Accumulator, tau))
RULES.register("coupling")(Coupling)
RULES.register("trust")(Trust)

NEED_LABELS = ("coupling", "trust")
"""Rules that compare classes within a client's label set, which the client must share."""


def rule_of(name_or_tau: str | float) -> AggregatorFactory:
    """The rule of that name, or the tempered softmax of that tau.

    >>> rule_of("uwa")().tau, rule_of(0.4)().tau
    (1.0, 0.4)
    """
    return RULES.get(name_or_tau) if isinstance(name_or_tau, str) else partial(Accumulator, name_or_tau)

"""How uploads become a teacher, by name. A rule is a function that starts an empty `Mixer` for one round.

The paper's four rules are one: the tempered softmax of `mixing` at tau = 0, 1, 0.25 and infinity.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeAlias

from trustmix.registry import Registry
from trustmix.trust.mixing import Accumulator, Teacher


class Mixer(Protocol):
    """What one round of any rule offers: fold in uploads as they come, then give the teacher."""

    def add(self, predictions: Any, scores: Any = None, *, name: str = "upload") -> None:
        """Fold in one client's upload."""

    def finish(self) -> Teacher[Any]:
        """The teacher of all uploads so far."""


Rule: TypeAlias = Callable[[], Mixer]

RULES: Registry[Rule] = Registry("rule")
RULES.register("avg")(partial(Accumulator, 0.0))
RULES.register("uwa")(partial(Accumulator, 1.0))
RULES.register("suwa")(partial(Accumulator, 0.25))
RULES.register("most-confident")(partial(Accumulator, math.inf))


def rule_of(name_or_tau: str | float) -> Rule:
    """The rule of that name, or the tempered softmax of that tau.

    >>> rule_of("uwa")().tau, rule_of(0.4)().tau
    (1.0, 0.4)
    """
    return RULES.get(name_or_tau) if isinstance(name_or_tau, str) else partial(Accumulator, name_or_tau)

"""What a method is, as one value: its names, its client, its server, what it needs and which settings it reads.

All methods are in one registry, METHODS, which the room `methods` fills. Recipes, reports, sweeps, colours and checks
read it there. A rule of one's own is a class, given as it is or as "package.module:Class".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from trustmix.aggregation.base import Aggregator, AggregatorFactory
from trustmix.aggregation.weighted_average import Accumulator
from trustmix.errors import TrustmixError
from trustmix.federation.algorithm import AlgorithmFactory, LocalOnly, ServerAlgorithm, ServerContext
from trustmix.federation.client import Client
from trustmix.federation.distillation import Distillation
from trustmix.imports import import_object
from trustmix.registry import Registry

Exchanges: TypeAlias = Literal["predictions", "weights", "nothing"]

CLIENTS: Registry[type[Client]] = Registry("kind of client", provided_by="trustmix.methods")
"""Kinds of clients by name. A node of a deployment needs to know this name alone, not the server's rule."""


@dataclass(frozen=True)
class Method:
    """One method.

    Parameters
    ----------
    name
        What recipes call it.
    label
        What people call it, in tables and figures.
    aggregator
        Makes the rule that turns uploads into a teacher; None for methods that exchange something else.
    algorithm
        Makes the server's part of a method that is not the aggregation of predictions.
    client
        The kind of client, a name in CLIENTS.
    exchanges
        What travels.
    tau
        The temperature, if the teacher is the weighted average that the theory is about.
    density
        The density whose scores the rule is made for, where a recipe names none.
    needs_label_sets
        Whether clients must share which classes they hold.
    optimizer
        The only optimiser that clients may use, if there is one.
    guardable
        Whether the guard can be put around the rule; a rule that is a defence itself is run without.
    pooled_data
        Whether one client holds the data of a client and the public set together, with labels: the reference.
    refuses
        Settings that the method cannot do with: the setting, the value that is refused, and why.
    colour
        Its place in the palette of figures, or a colour such as "#0b7a5f"; a free one if None.
    """

    name: str
    label: str
    aggregator: AggregatorFactory | None = None
    algorithm: AlgorithmFactory | None = None
    client: str = "distillation"
    exchanges: Exchanges = "predictions"
    tau: float | None = None
    density: str = "gaussians"
    needs_label_sets: bool = False
    optimizer: str | None = None
    guardable: bool = True
    pooled_data: bool = False
    refuses: tuple[tuple[str, str, str], ...] = ()
    colour: int | str | None = None

    @property
    def one_architecture(self) -> bool:
        """Whether all clients must have the same model."""
        return self.exchanges == "weights"

    def make_algorithm(self, context: ServerContext) -> ServerAlgorithm:
        """The server's part of the method."""
        if self.algorithm is not None:
            return self.algorithm(context)
        if self.aggregator is None:
            return LocalOnly(context)
        return Distillation(context, self.aggregator)

    def make_aggregator(self) -> Aggregator:
        """An empty aggregator of the rule.

        Raises
        ------
        TrustmixError
            If the method does not aggregate predictions.
        """
        if self.aggregator is None:
            raise TrustmixError(f"{self.name} exchanges {self.exchanges}; it has no rule for predictions.")
        return self.aggregator()

    def unread_settings(self) -> Mapping[str, str]:
        """The settings of a recipe that the method does not read, and why; a recipe that sets them is refused.

        >>> METHODS.get("fedavg").unread_settings()["wire.up"]
        'it exchanges weights'
        """
        if self.exchanges != "predictions":
            why = f"it exchanges {self.exchanges}"
            sections = dict.fromkeys(PREDICTION_SETTINGS, why)
            private = self.exchanges == "nothing" and not self.pooled_data
            return sections if private else {**sections, **dict.fromkeys(PRIVACY_SETTINGS, why)}
        found: dict[str, str] = {}
        if not self.guardable:
            found |= dict.fromkeys(GUARD_SETTINGS, "it is a defence itself")
        if self.tau is None:
            found |= dict.fromkeys(THEORY_SETTINGS, "the theory is about weighted averages of predictions")
        if self.client != "distillation":
            scores = (
                "density.kind",
                "density.refresh",
                "density.standardise",
                "wire.labels",
                "wire.delta",
                *PRIVACY_SETTINGS,
            )
            found |= dict.fromkeys(scores, "its clients send scores of its own")
        return found


GUARD_SETTINGS = ("guard.on", "guard.cap")
PRIVACY_SETTINGS = ("privacy.epsilon", "privacy.delta", "privacy.mechanism", "privacy.clip", "privacy.ratio")
THEORY_SETTINGS = ("theory.every", "theory.reference")
PREDICTION_SETTINGS = (
    "wire.up",
    "wire.down",
    "wire.form",
    "wire.delta",
    "wire.labels",
    "density.kind",
    "density.refresh",
    "density.standardise",
    *GUARD_SETTINGS,
    "attack.kind",
    "attack.share",
    "attack.sees",
    "student",
    *THEORY_SETTINGS,
)
"""Settings about predictions, and what is made of them."""

METHODS: Registry[Method] = Registry("rule", provided_by="trustmix.methods")

Rule: TypeAlias = str | float | Method | Aggregator | type[Aggregator]
"""A method's name, a tau, a method, or a rule of one's own: its class, an empty instance, or "package.module:Class"."""


def resolve_method(rule: Rule) -> Method:
    """The method that a rule stands for.

    Parameters
    ----------
    rule
        A method's name, a tau, a `Method`, an aggregator or its class, or "package.module:Class".

    Returns
    -------
    Method
        From the registry, or made for the tau or the class.

    Raises
    ------
    TrustmixError
        If there is no such method, tau is negative, or the class is no aggregator or lacks a method.

    >>> resolve_method("uwa").make_aggregator().tau, resolve_method(0.4).label
    (1.0, 'tau=0.4')
    """
    if isinstance(rule, Method):
        return rule
    if isinstance(rule, int | float):
        return weighted_average(f"tau={rule:g}", f"tau={rule:g}", float(rule))
    if isinstance(rule, str):
        return _imported_method(rule) if is_reference(rule) else METHODS.get(rule)
    return method_of_class(rule)


def is_reference(rule: str) -> bool:
    """Whether a rule's name refers to a class of the user's own, "package.module:Class"."""
    return ":" in rule


def method_of_class(rule: Aggregator | type[Aggregator], name: str | None = None) -> Method:
    """The method of an aggregator's class, or of an empty instance, whose settings then serve the whole run."""
    kind = rule if isinstance(rule, type) else type(rule)
    if not issubclass(kind, Aggregator):
        raise TrustmixError(f"{kind.__name__} is no rule; it must be a subclass of trustmix.aggregation.Aggregator.")
    if kind.__abstractmethods__:
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise TrustmixError(f"{kind.__name__} is no rule yet; it must implement {missing}.")
    return Method(
        name or kind.__name__,
        kind.label or kind.__name__,
        kind if isinstance(rule, type) else _Once(rule),
        tau=rule.tau if isinstance(rule, Accumulator) and kind is Accumulator else None,  # a subclass may do more
        needs_label_sets=kind.needs_label_sets,
        colour=kind.colour,
    )


@dataclass(frozen=True)
class _Once:
    """Hands out an instance that the user made."""

    aggregator: Aggregator

    def __call__(self) -> Aggregator:
        self.aggregator.reset()
        self.aggregator.load_state_dict({})
        self.aggregator.tracked = None
        return self.aggregator


def _imported_method(reference: str) -> Method:
    found = import_object(reference, "rule", function=False)
    if isinstance(found, Method):
        return found
    if not isinstance(found, type | Aggregator):
        raise TrustmixError(f'rule is "{reference}", which is no rule; it must be a subclass of Aggregator.')
    return method_of_class(found, reference)


def method_label(rule: str) -> str:
    """What people call a rule, from its name alone; nothing is imported.

    >>> method_label("suwa"), method_label("my_package.rules:Mine")
    ('sUWA', 'Mine')
    """
    return METHODS.get(rule).label if rule in METHODS else rule.rpartition(":")[2]


def weighted_average(name: str, label: str, tau: float, colour: int | None = None) -> Method:
    """A method whose rule is the weighted average of that temperature."""
    if not tau >= 0:
        raise TrustmixError(f"tau is {tau}; it must be 0 or more.")
    return Method(name, label, partial(Accumulator, tau), tau=tau, colour=colour)

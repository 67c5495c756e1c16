"""Uploads in, teacher out: weighted averages, rules for shared label sets, guard, robust rivals; tensors only."""

from trustmix.aggregation.client_weights import Dealing, Keeping, Weighing, vote_agreement_weights
from trustmix.aggregation.coupling import Coupling, couple, validate_connected
from trustmix.aggregation.guard import Guard, GuardedAggregator
from trustmix.aggregation.rules import (
    NEED_LABELS,
    RULES,
    TAU_BY_RULE,
    Aggregator,
    AggregatorFactory,
    Lasting,
    Memory,
    rule_of,
)
from trustmix.aggregation.trust import Trust, competence
from trustmix.aggregation.weighted_average import Accumulator, Teacher, mix

__all__ = [
    "NEED_LABELS",
    "RULES",
    "TAU_BY_RULE",
    "Accumulator",
    "Aggregator",
    "AggregatorFactory",
    "Coupling",
    "Dealing",
    "Guard",
    "GuardedAggregator",
    "Keeping",
    "Lasting",
    "Memory",
    "Teacher",
    "Trust",
    "Weighing",
    "competence",
    "couple",
    "mix",
    "rule_of",
    "validate_connected",
    "vote_agreement_weights",
]

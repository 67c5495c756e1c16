"""Uploads in, teacher out: weighted averages, rules for shared label sets, guard, robust rivals; tensors only."""

from trustmix.aggregation.base import Aggregator, AggregatorFactory, StateDict, SumAggregator, Teacher, Upload
from trustmix.aggregation.client_weights import client_weights, vote_agreement_weights
from trustmix.aggregation.coupling import Coupling, couple, validate_connected
from trustmix.aggregation.guard import Guard, GuardedAggregator
from trustmix.aggregation.holders import Holders, bounded_ratio
from trustmix.aggregation.robust import BatchAggregator, Cronus, ExpGuard, GeometricMedian, Median
from trustmix.aggregation.trust import Trust, competence
from trustmix.aggregation.weighted_average import Accumulator, mix

__all__ = [
    "Accumulator",
    "Aggregator",
    "AggregatorFactory",
    "BatchAggregator",
    "Coupling",
    "Cronus",
    "ExpGuard",
    "GeometricMedian",
    "Guard",
    "GuardedAggregator",
    "Holders",
    "Median",
    "StateDict",
    "SumAggregator",
    "Teacher",
    "Trust",
    "Upload",
    "bounded_ratio",
    "client_weights",
    "competence",
    "couple",
    "mix",
    "validate_connected",
    "vote_agreement_weights",
]

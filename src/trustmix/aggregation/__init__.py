"""Uploads in, teacher out: weighted averages, rules for shared label sets, guard, robust rivals; tensors only."""

from trustmix.aggregation.base import Aggregator, AggregatorFactory, StateDict, SumAggregator, Teacher
from trustmix.aggregation.client_weights import client_weights, vote_agreement_weights
from trustmix.aggregation.guard import Guard, GuardedAggregator, guarded
from trustmix.aggregation.robust import BatchAggregator, Cronus, ExpGuard, GeometricMedian, Median
from trustmix.aggregation.robust_trust import RobustTrust
from trustmix.aggregation.sparse import SparsePredictions
from trustmix.aggregation.trust import ClassShares, Trust, bounded_ratio
from trustmix.aggregation.upload import Upload
from trustmix.aggregation.weighted_average import Accumulator
from trustmix.aggregation.weighted_logits import WeightedLogits

__all__ = [
    "Accumulator",
    "Aggregator",
    "AggregatorFactory",
    "BatchAggregator",
    "ClassShares",
    "Cronus",
    "ExpGuard",
    "GeometricMedian",
    "Guard",
    "GuardedAggregator",
    "Median",
    "RobustTrust",
    "SparsePredictions",
    "StateDict",
    "SumAggregator",
    "Teacher",
    "Trust",
    "Upload",
    "WeightedLogits",
    "bounded_ratio",
    "client_weights",
    "guarded",
    "vote_agreement_weights",
]

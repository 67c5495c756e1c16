"""How much a client has seen of a sample: densities of its logits or features, other scores, and ranks of scores."""

from trustmix.density.estimators import DENSITIES, FEATURES, DensityEstimator, PrecomputedScores, standardize_scores
from trustmix.density.gaussians import ClassGaussians, percentile_ranks, roc_auc

__all__ = [
    "DENSITIES",
    "FEATURES",
    "ClassGaussians",
    "DensityEstimator",
    "PrecomputedScores",
    "percentile_ranks",
    "roc_auc",
    "standardize_scores",
]

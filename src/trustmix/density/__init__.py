"""How much a client has seen of a sample: densities of its logits or features, other scores."""

from trustmix.density.base import (
    DENSITIES,
    DISCRIMINATOR,
    FEATURES,
    RATIO,
    UNFITTED,
    Density,
    DensityEstimator,
    PrecomputedScores,
    resolve_density,
)
from trustmix.density.confidence import ConfidenceScore
from trustmix.density.duq import NearestCentroid
from trustmix.density.feature_gaussians import FeatureGaussians, ledoit_wolf
from trustmix.density.gaussians import ClassGaussians
from trustmix.density.kernel import KernelDensity
from trustmix.density.ratio import DensityRatio, center_log_ratio
from trustmix.density.scores import roc_auc, standardize_scores

__all__ = [
    "DENSITIES",
    "DISCRIMINATOR",
    "FEATURES",
    "RATIO",
    "UNFITTED",
    "ClassGaussians",
    "ConfidenceScore",
    "Density",
    "DensityEstimator",
    "DensityRatio",
    "FeatureGaussians",
    "KernelDensity",
    "NearestCentroid",
    "PrecomputedScores",
    "center_log_ratio",
    "ledoit_wolf",
    "resolve_density",
    "roc_auc",
    "standardize_scores",
]

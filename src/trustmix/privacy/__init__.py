"""Differential privacy: the budget of a client, its ledger, DP-SGD, mechanisms for uploads, and the accountant."""

from trustmix.privacy.accountant import Release, compute_epsilon, compute_noise_multiplier, compute_total_epsilon
from trustmix.privacy.budget import Mechanism, PrivacyBudget, TrainingSchedule
from trustmix.privacy.dp_sgd import DPSGDParams, dp_gradients, poisson_batches, validate_dp_model
from trustmix.privacy.ledger import PrivacyLedger
from trustmix.privacy.mechanisms import gaussian_mechanism, project_to_simplex, select_confident_samples
from trustmix.privacy.private_ratio import release_log_ratio

__all__ = [
    "DPSGDParams",
    "Mechanism",
    "PrivacyBudget",
    "PrivacyLedger",
    "Release",
    "TrainingSchedule",
    "compute_epsilon",
    "compute_noise_multiplier",
    "compute_total_epsilon",
    "dp_gradients",
    "gaussian_mechanism",
    "poisson_batches",
    "project_to_simplex",
    "release_log_ratio",
    "select_confident_samples",
    "validate_dp_model",
]

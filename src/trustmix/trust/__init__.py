"""The heart, as functions on arrays: density (who has seen such samples), mixing and coupling, guard."""

from trustmix.trust.calibration import Worth, calibration_error, negative_log_likelihood
from trustmix.trust.coupling import Coupling, check_connected, couple
from trustmix.trust.densities import DENSITIES, FEATURES, Density, Given, in_own_units
from trustmix.trust.density import ClassGaussians, ranks_among, separation
from trustmix.trust.discreet import noisy_predictions, surest
from trustmix.trust.evidence import Trust, competence
from trustmix.trust.guard import Guard, Guarded
from trustmix.trust.mixing import Accumulator, Teacher, mix
from trustmix.trust.rules import NEED_LABELS, RULES, TEMPERED, Lasting, Memory, Mixer, Rule, rule_of
from trustmix.trust.shares import Dealing, Keeping, Weighing, agreement

__all__ = [
    "DENSITIES",
    "FEATURES",
    "NEED_LABELS",
    "RULES",
    "TEMPERED",
    "Accumulator",
    "ClassGaussians",
    "Coupling",
    "Dealing",
    "Density",
    "Given",
    "Guard",
    "Guarded",
    "Keeping",
    "Lasting",
    "Memory",
    "Mixer",
    "Rule",
    "Teacher",
    "Trust",
    "Weighing",
    "Worth",
    "agreement",
    "calibration_error",
    "check_connected",
    "competence",
    "couple",
    "in_own_units",
    "mix",
    "negative_log_likelihood",
    "noisy_predictions",
    "ranks_among",
    "rule_of",
    "separation",
    "surest",
]

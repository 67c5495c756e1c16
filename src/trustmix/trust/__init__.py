"""The heart, as functions on arrays: density (who has seen such a sample), mixing (what they say together), rules."""

from trustmix.trust.density import ClassGaussians, ranks_among, separation
from trustmix.trust.mixing import Accumulator, Teacher, mix
from trustmix.trust.rules import RULES, Lasting, Memory, Mixer, Rule, rule_of

__all__ = [
    "RULES",
    "Accumulator",
    "ClassGaussians",
    "Lasting",
    "Memory",
    "Mixer",
    "Rule",
    "Teacher",
    "mix",
    "ranks_among",
    "rule_of",
    "separation",
]

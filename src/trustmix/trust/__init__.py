"""The heart, as functions on arrays: density (who has seen such a sample), mixing (what they say together), rules."""

from trustmix.trust.density import ClassGaussians, separation
from trustmix.trust.mixing import Accumulator, Teacher, mix
from trustmix.trust.rules import RULES, Mixer, Rule, rule_of

__all__ = ["RULES", "Accumulator", "ClassGaussians", "Mixer", "Rule", "Teacher", "mix", "rule_of", "separation"]

"""Attacks of Byzantine clients for simulations, and membership inference against uploads."""

from trustmix.attacks import adaptive  # noqa: F401 - it registers its attacks
from trustmix.attacks.malformed import MALFORMED_MESSAGES
from trustmix.attacks.poisoning import POISONING_ATTACKS, Attack, AttackContext

__all__ = ["MALFORMED_MESSAGES", "POISONING_ATTACKS", "Attack", "AttackContext"]

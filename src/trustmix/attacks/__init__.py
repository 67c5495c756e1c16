"""What clients that lie say instead of the truth, for simulations."""

from trustmix.attacks.malformed import MALFORMED_MESSAGES
from trustmix.attacks.poisoning import POISONING_ATTACKS, Attack, AttackContext

__all__ = ["MALFORMED_MESSAGES", "POISONING_ATTACKS", "Attack", "AttackContext"]

"""What clients that lie say instead of the truth, for simulations."""

from trustmix.attacks.forgeries import FORGERIES
from trustmix.attacks.lies import LIES, Lie, Sight

__all__ = ["FORGERIES", "LIES", "Lie", "Sight"]

"""Where clients run. Importing this room registers its engines."""

from trustmix.engines.local import LocalEngine, Plan
from trustmix.engines.tuning import choose

__all__ = ["LocalEngine", "Plan", "choose"]

"""Where clients run. Importing this room registers its engines."""

from trustmix.engines import flower  # noqa: F401 - it registers its engine
from trustmix.engines.local import LocalEngine, Plan
from trustmix.engines.ray import RayEngine
from trustmix.engines.tuning import choose

__all__ = ["LocalEngine", "Plan", "RayEngine", "choose"]

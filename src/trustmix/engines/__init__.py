"""Where clients run. Importing this room registers its engines."""

from trustmix.engines.local import LocalEngine

__all__ = ["LocalEngine"]

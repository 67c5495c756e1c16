"""Engines: the ways to run clients. Importing this package registers them."""

from trustmix.engines import flower  # noqa: F401 - it registers its engine
from trustmix.engines.autotune import select_plan
from trustmix.engines.local import ExecutionPlan, LocalEngine
from trustmix.engines.ray import RayEngine

__all__ = ["ExecutionPlan", "LocalEngine", "RayEngine", "select_plan"]

"""Federated distillation that knows who to trust.

Names are imported at their first use: `import trustmix` itself loads neither torch nor any room.

>>> import numpy as np, trustmix as tm
>>> density = tm.ClassGaussians.fit(np.random.rand(20, 3), np.arange(20) % 2)   # calibration logits and labels
>>> scores = density.log_prob(np.random.rand(5, 3))                             # public logits -> (5,)
>>> teacher = tm.mix(np.full((1, 5, 3), 1 / 3), scores[None], tau=0.25)         # predictions (M, N, C)
>>> teacher.probabilities.shape
(5, 3)
"""

from typing import TYPE_CHECKING

__all__ = [
    "Accumulator",
    "Aggregator",
    "Callback",
    "Checkpoint",
    "ClassGaussians",
    "Client",
    "Dataset",
    "Federation",
    "History",
    "Labelled",
    "LocalEngine",
    "Method",
    "Participation",
    "Public",
    "Recipe",
    "Round",
    "StorageError",
    "SumAggregator",
    "Teacher",
    "Training",
    "Trust",
    "TrustmixError",
    "Upload",
    "load_model",
    "mix",
    "run",
    "sweep",
]

if TYPE_CHECKING:
    from trustmix.aggregation.base import Aggregator, SumAggregator, Teacher
    from trustmix.aggregation.trust import Trust
    from trustmix.aggregation.upload import Upload
    from trustmix.aggregation.weighted_average import Accumulator
    from trustmix.data.dataset import Dataset, Labelled
    from trustmix.density.gaussians import ClassGaussians
    from trustmix.engines.local import LocalEngine
    from trustmix.errors import StorageError, TrustmixError
    from trustmix.experiment.run import run
    from trustmix.experiment.saved_models import load_model
    from trustmix.federation.callbacks import Callback
    from trustmix.federation.client import Client
    from trustmix.federation.history import History, Round
    from trustmix.federation.method import Method
    from trustmix.federation.public_set import Public
    from trustmix.federation.server import Federation, Participation
    from trustmix.federation.state import Checkpoint
    from trustmix.learners.training import Training
    from trustmix.methods.mixing import mix
    from trustmix.settings.recipe import Recipe
    from trustmix.sweeps.sweep import sweep

    __version__: str
else:
    # Hidden from type checkers, which would otherwise accept every attribute of the package.
    _MODULES = {
        "Accumulator": "aggregation.weighted_average",
        "Aggregator": "aggregation.base",
        "Callback": "federation.callbacks",
        "Checkpoint": "federation.state",
        "ClassGaussians": "density.gaussians",
        "Client": "federation.client",
        "Dataset": "data.dataset",
        "Federation": "federation.server",
        "History": "federation.history",
        "Labelled": "data.dataset",
        "LocalEngine": "engines.local",
        "Method": "federation.method",
        "Participation": "federation.server",
        "Public": "federation.public_set",
        "Recipe": "settings.recipe",
        "Round": "federation.history",
        "StorageError": "errors",
        "SumAggregator": "aggregation.base",
        "Teacher": "aggregation.base",
        "Training": "learners.training",
        "Trust": "aggregation.trust",
        "TrustmixError": "errors",
        "Upload": "aggregation.upload",
        "load_model": "experiment.saved_models",
        "mix": "methods.mixing",
        "run": "experiment.run",
        "sweep": "sweeps.sweep",
    }
    _ROOMS = ["aggregation", "attacks", "data", "density", "engines", "experiment", "federation", "learners"]
    _ROOMS += ["methods", "metrics", "models", "privacy", "report", "sweeps", "theory", "wire"]

    def __getattr__(name: str) -> object:
        """Import a public name, a room or the version at its first use."""
        from importlib import import_module

        if name in _MODULES:
            value = getattr(import_module(f"trustmix.{_MODULES[name]}"), name)
        elif name in _ROOMS:
            value = import_module(f"trustmix.{name}")
        elif name == "__version__":
            value = import_module("importlib.metadata").version("trustmix")
        else:
            raise AttributeError(f'The package trustmix has no attribute "{name}".', name=name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """List the public names and the rooms, imported or not."""
        return sorted({*globals(), *__all__, *_ROOMS, "__version__"})

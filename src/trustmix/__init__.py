"""Federated distillation that knows who to trust.

>>> import numpy as np, trustmix as tm
>>> density = tm.ClassGaussians.fit(np.random.rand(20, 3), np.arange(20) % 2)   # calibration logits and labels
>>> scores = density.log_prob(np.random.rand(5, 3))                             # public logits -> (5,)
>>> teacher = tm.mix(np.full((1, 5, 3), 1 / 3), scores[None], tau=0.25)         # predictions (M, N, C)
>>> teacher.probabilities.shape
(5, 3)
"""

from importlib.metadata import version

from trustmix.aggregation import Accumulator, Aggregator, Coupling, SumAggregator, Teacher, Upload, couple, mix
from trustmix.data import Dataset, Labelled
from trustmix.density import ClassGaussians
from trustmix.engines import LocalEngine
from trustmix.errors import StorageError, TrustmixError
from trustmix.experiment.recipe import Recipe
from trustmix.experiment.run import run
from trustmix.experiment.saved_models import load_model
from trustmix.experiment.sweep import sweep
from trustmix.federation import (
    Callback,
    Checkpoint,
    Client,
    Federation,
    History,
    Method,
    Participation,
    Public,
    Round,
    Training,
)

__version__ = version("trustmix")

__all__ = [
    "Accumulator",
    "Aggregator",
    "Callback",
    "Checkpoint",
    "ClassGaussians",
    "Client",
    "Coupling",
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
    "TrustmixError",
    "Upload",
    "couple",
    "load_model",
    "mix",
    "run",
    "sweep",
]

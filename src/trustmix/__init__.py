"""Federated distillation that knows who to trust.

>>> import numpy as np, trustmix as tm
>>> density = tm.ClassGaussians.fit(np.random.rand(20, 3), np.arange(20) % 2)   # calibration logits and labels
>>> scores = density.log_prob(np.random.rand(5, 3))                             # public logits -> (5,)
>>> teacher = tm.mix(np.full((1, 5, 3), 1 / 3), scores[None], tau=0.25)         # predictions (M, N, C)
>>> teacher.probabilities.shape
(5, 3)
"""

from importlib.metadata import version

from trustmix.data import Dataset, Labelled
from trustmix.engines import LocalEngine
from trustmix.errors import StorageError, TrustmixError
from trustmix.federation import Checkpoint, Client, Federation, History, Participation, Public, Round, Training
from trustmix.study import Recipe, run
from trustmix.study.sweep import sweep
from trustmix.study.trained import load_model
from trustmix.trust import Accumulator, ClassGaussians, Coupling, Teacher, couple, mix

__version__ = version("trustmix")

__all__ = [
    "Accumulator",
    "Checkpoint",
    "ClassGaussians",
    "Client",
    "Coupling",
    "Dataset",
    "Federation",
    "History",
    "Labelled",
    "LocalEngine",
    "Participation",
    "Public",
    "Recipe",
    "Round",
    "StorageError",
    "Teacher",
    "Training",
    "TrustmixError",
    "couple",
    "load_model",
    "mix",
    "run",
    "sweep",
]

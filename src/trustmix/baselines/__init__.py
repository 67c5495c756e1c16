"""The peers, on the same data, models, engines and recipes. Importing this room registers its rules."""

from trustmix.baselines import dsfl, fedmd, robust  # noqa: F401 - they register their rules
from trustmix.baselines.cfd import quantised
from trustmix.baselines.dsfl import sharpened
from trustmix.baselines.feddf import FedDF
from trustmix.baselines.methods import CLIENTS, ROBUST, SERVERS, check_method
from trustmix.baselines.scaffold import Scaffold, ScaffoldClient
from trustmix.baselines.selective import DensityRatio, SelectiveClient
from trustmix.baselines.weights import FedAvg, WeightClient

__all__ = [
    "CLIENTS",
    "ROBUST",
    "SERVERS",
    "DensityRatio",
    "FedAvg",
    "FedDF",
    "Scaffold",
    "ScaffoldClient",
    "SelectiveClient",
    "WeightClient",
    "check_method",
    "quantised",
    "sharpened",
]

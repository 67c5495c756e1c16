"""The peers, on the same data, models, engines and recipes. Importing this room registers its rules."""

from trustmix.aggregation import robust  # noqa: F401 - it registers its rules
from trustmix.methods import dsfl, fedmd  # noqa: F401 - they register their rules
from trustmix.methods.cfd import quantize
from trustmix.methods.dsfl import entropy_reduction
from trustmix.methods.fedavg import FedAvg, WeightClient
from trustmix.methods.feddf import FedDF
from trustmix.methods.registry import CLIENTS, ROBUST, SERVERS, check_method
from trustmix.methods.scaffold import Scaffold, ScaffoldClient
from trustmix.methods.selective_fd import DensityRatio, SelectiveClient

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
    "entropy_reduction",
    "quantize",
]

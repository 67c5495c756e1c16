"""All methods, one short file each, on the same data, models and engines. Importing this room registers them."""

from trustmix.methods import distillation, local_only, reference  # noqa: F401 - they register methods
from trustmix.methods.cfd import quantize
from trustmix.methods.dsfl import DSFL, entropy_reduction
from trustmix.methods.fedavg import FedAvg, WeightClient, WeightedMean
from trustmix.methods.feddf import FedDF
from trustmix.methods.fedmd import FedMD
from trustmix.methods.scaffold import Scaffold, ScaffoldClient
from trustmix.methods.selective_fd import DensityRatio, SelectiveClient, SelectiveFD

__all__ = [
    "DSFL",
    "DensityRatio",
    "FedAvg",
    "FedDF",
    "FedMD",
    "Scaffold",
    "ScaffoldClient",
    "SelectiveClient",
    "SelectiveFD",
    "WeightClient",
    "WeightedMean",
    "entropy_reduction",
    "quantize",
]

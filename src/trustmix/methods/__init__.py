"""All methods, one short file each, on the same data, models and engines. Importing this room registers them."""

from trustmix.methods import distillation, local_only, reference  # noqa: F401 - they register methods
from trustmix.methods.cfd import quantize
from trustmix.methods.dsfl import DSFL, entropy_reduction
from trustmix.methods.edgefd import EdgeFD, EdgeFDClient, near_clusters
from trustmix.methods.fedaux import FedAUX, FedAUXClient, certainty
from trustmix.methods.fedavg import FedAvg, WeightClient, WeightedMean
from trustmix.methods.feddf import FedDF
from trustmix.methods.fedet import FedET
from trustmix.methods.fedgo import FedGO, FedGOClient
from trustmix.methods.fedmd import FedMD
from trustmix.methods.mixing import mix
from trustmix.methods.scaffold import Scaffold, ScaffoldClient
from trustmix.methods.scarlet import Scarlet, power_sharpening
from trustmix.methods.selective_fd import DensityRatio, SelectiveClient, SelectiveFD

__all__ = [
    "DSFL",
    "DensityRatio",
    "EdgeFD",
    "EdgeFDClient",
    "FedAUX",
    "FedAUXClient",
    "FedAvg",
    "FedDF",
    "FedET",
    "FedGO",
    "FedGOClient",
    "FedMD",
    "Scaffold",
    "ScaffoldClient",
    "Scarlet",
    "SelectiveClient",
    "SelectiveFD",
    "WeightClient",
    "WeightedMean",
    "certainty",
    "entropy_reduction",
    "mix",
    "near_clusters",
    "power_sharpening",
    "quantize",
]

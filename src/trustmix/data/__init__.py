"""Data sets and who holds what of them."""

from trustmix.data.dataset import Dataset, Labelled, checked
from trustmix.data.sources import DATASETS, from_arrays, load
from trustmix.data.split import Partition, Share, hold_out, partition

__all__ = [
    "DATASETS",
    "Dataset",
    "Labelled",
    "Partition",
    "Share",
    "checked",
    "from_arrays",
    "hold_out",
    "load",
    "partition",
]

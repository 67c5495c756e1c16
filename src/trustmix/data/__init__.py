"""Data sets and who holds what of them."""

from trustmix.data import images, numbers, text  # noqa: F401 - they register their data sets
from trustmix.data.augment import Augment, augmented
from trustmix.data.dataset import Dataset, Labelled, checked
from trustmix.data.sources import DATASETS, from_arrays, load, read_npz
from trustmix.data.split import Partition, Share, hold_out, partition

__all__ = [
    "DATASETS",
    "Augment",
    "Dataset",
    "Labelled",
    "Partition",
    "Share",
    "augmented",
    "checked",
    "from_arrays",
    "hold_out",
    "load",
    "partition",
    "read_npz",
]

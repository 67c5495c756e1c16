"""Data sets and their partition among clients."""

from trustmix.data import cifar, tabular, text, vision  # noqa: F401 - they register their data sets
from trustmix.data.augment import Augment, augment_batch
from trustmix.data.dataset import Dataset, Labelled, validate_dataset
from trustmix.data.loading import DATASETS, from_arrays, load, read_npz
from trustmix.data.partition import ClientIndices, Partition, partition, stratified_holdout

__all__ = [
    "DATASETS",
    "Augment",
    "ClientIndices",
    "Dataset",
    "Labelled",
    "Partition",
    "augment_batch",
    "from_arrays",
    "load",
    "partition",
    "read_npz",
    "stratified_holdout",
    "validate_dataset",
]

"""One round as the paper draws it: clients, server, what travels between them, and what is kept."""

from trustmix.federation.callbacks import ProgressCallback, ProgressEvent
from trustmix.federation.checkpoint import Checkpoint
from trustmix.federation.client import Client, LabelSharing, Public
from trustmix.federation.engine import ENGINES, Engine, EngineSetup
from trustmix.federation.history import History, Round
from trustmix.federation.messages import Failure, Reply, Request
from trustmix.federation.optimizers import OPTIMIZERS
from trustmix.federation.server import CENTRALIZED, LOCAL_ONLY, Federation, Participation
from trustmix.federation.store import DiskStore, MemoryStore
from trustmix.federation.training import DeviceConfig, Training, TrainingJob, train, validate_loss

__all__ = [
    "CENTRALIZED",
    "ENGINES",
    "LOCAL_ONLY",
    "OPTIMIZERS",
    "Checkpoint",
    "Client",
    "DeviceConfig",
    "DiskStore",
    "Engine",
    "EngineSetup",
    "Failure",
    "Federation",
    "History",
    "LabelSharing",
    "MemoryStore",
    "Participation",
    "ProgressCallback",
    "ProgressEvent",
    "Public",
    "Reply",
    "Request",
    "Round",
    "Training",
    "TrainingJob",
    "train",
    "validate_loss",
]

"""One round as the paper draws it: clients, server, what travels between them, and what is kept."""

from trustmix.federation.algorithm import RoundResult, ServerAlgorithm, ServerContext
from trustmix.federation.callbacks import Callback, ProgressCallback, ProgressEvent
from trustmix.federation.client import Client, LabelSharing
from trustmix.federation.distillation import Distillation
from trustmix.federation.engine import ENGINES, Engine, EngineSetup
from trustmix.federation.history import History, Round
from trustmix.federation.messages import Failure, Reply, Request
from trustmix.federation.method import (
    CLIENTS,
    METHODS,
    Method,
    Rule,
    method_label,
    resolve_method,
)
from trustmix.federation.public_set import Public
from trustmix.federation.server import Federation, Participation
from trustmix.federation.state import Checkpoint, DiskStore, MemoryStore

__all__ = [
    "CLIENTS",
    "ENGINES",
    "METHODS",
    "Callback",
    "Checkpoint",
    "Client",
    "DiskStore",
    "Distillation",
    "Engine",
    "EngineSetup",
    "Failure",
    "Federation",
    "History",
    "LabelSharing",
    "MemoryStore",
    "Method",
    "Participation",
    "ProgressCallback",
    "ProgressEvent",
    "Public",
    "Reply",
    "Request",
    "Round",
    "RoundResult",
    "Rule",
    "ServerAlgorithm",
    "ServerContext",
    "method_label",
    "resolve_method",
]

"""One round as the paper draws it: clients, server, what travels between them, and what is kept."""

from trustmix.federation.checkpoint import Checkpoint
from trustmix.federation.client import Client, Public, Sharing
from trustmix.federation.faults import FaultyEngine
from trustmix.federation.history import History, Round
from trustmix.federation.liars import ATTACKS, LyingEngine, check_attack
from trustmix.federation.messages import Failure, Reply, Request
from trustmix.federation.moment import Moment, Watcher
from trustmix.federation.privacy import Mechanism, Privacy
from trustmix.federation.private import check_private
from trustmix.federation.seam import ENGINES, Engine, Ready
from trustmix.federation.server import ALONE, REFERENCE, Federation, Participation
from trustmix.federation.store import DiskStore, MemoryStore
from trustmix.federation.training import OPTIMIZERS, Hardware, Job, Training, check_loss, train
from trustmix.federation.witness import SHOWN, Statement, Witness, watched

__all__ = [
    "ALONE",
    "ATTACKS",
    "ENGINES",
    "OPTIMIZERS",
    "REFERENCE",
    "SHOWN",
    "Checkpoint",
    "Client",
    "DiskStore",
    "Engine",
    "Failure",
    "FaultyEngine",
    "Federation",
    "Hardware",
    "History",
    "Job",
    "LyingEngine",
    "Mechanism",
    "MemoryStore",
    "Moment",
    "Participation",
    "Privacy",
    "Public",
    "Ready",
    "Reply",
    "Request",
    "Round",
    "Sharing",
    "Statement",
    "Training",
    "Watcher",
    "Witness",
    "check_attack",
    "check_loss",
    "check_private",
    "train",
    "watched",
]

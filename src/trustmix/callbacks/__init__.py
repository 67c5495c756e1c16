"""Callbacks of a run: the recorder of client weights, and experiment trackers."""

from trustmix.callbacks.mlflow import MLflow
from trustmix.callbacks.tensorboard import TensorBoard
from trustmix.callbacks.trust_log import RoundTrust, TrustRecorder

__all__ = ["MLflow", "RoundTrust", "TensorBoard", "TrustRecorder"]

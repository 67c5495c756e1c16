"""What watches a run while it goes on: the recorder of client weights, and trackers of experiments."""

from trustmix.callbacks.mlflow import MLflow
from trustmix.callbacks.tensorboard import TensorBoard
from trustmix.callbacks.trust_log import RoundTrust, TrustRecorder

__all__ = ["MLflow", "RoundTrust", "TensorBoard", "TrustRecorder"]

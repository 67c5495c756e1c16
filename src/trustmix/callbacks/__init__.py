"""Callbacks of a run: the progress bar, the recorder of client weights, and experiment trackers."""

from trustmix.callbacks.mlflow import MLflow
from trustmix.callbacks.progress_bar import ProgressBar, in_notebook
from trustmix.callbacks.tensorboard import TensorBoard
from trustmix.callbacks.trust_log import RoundTrust, TrustRecorder
from trustmix.callbacks.wandb import WandB

__all__ = ["MLflow", "ProgressBar", "RoundTrust", "TensorBoard", "TrustRecorder", "WandB", "in_notebook"]

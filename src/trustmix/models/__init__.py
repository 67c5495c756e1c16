"""Client models: mlp, cnn, resnet18, bert-tiny, any encoder of transformers, any torch module of the user."""

from trustmix.models.cnn import cnn
from trustmix.models.factory import ModelFactory, validate_model
from trustmix.models.features import WithFeatures
from trustmix.models.mlp import mlp
from trustmix.models.normalize import Normalize
from trustmix.models.registry import MODELS
from trustmix.models.resnet import resnet18
from trustmix.models.temperature import WithTemperature
from trustmix.models.transformer import bert_tiny, encoder

__all__ = [
    "MODELS",
    "ModelFactory",
    "Normalize",
    "WithFeatures",
    "WithTemperature",
    "bert_tiny",
    "cnn",
    "encoder",
    "mlp",
    "resnet18",
    "validate_model",
]

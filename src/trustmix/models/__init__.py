"""Client models: mlp, cnn, resnet18, bert-tiny, any encoder of transformers, any torch module of the user's."""

from trustmix.models.factory import ModelFactory, validate_model
from trustmix.models.features import WithFeatures
from trustmix.models.networks import MODELS, Scale, cnn, mlp
from trustmix.models.resnet import resnet18
from trustmix.models.transformer import bert_tiny, encoder

__all__ = [
    "MODELS",
    "ModelFactory",
    "Scale",
    "WithFeatures",
    "bert_tiny",
    "cnn",
    "encoder",
    "mlp",
    "resnet18",
    "validate_model",
]

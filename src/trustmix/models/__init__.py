"""Client models: mlp, cnn, resnet18, bert-tiny, and any torch module of the user's."""

from trustmix.models.bert import bert_tiny
from trustmix.models.build import ModelFactory, check_model
from trustmix.models.networks import MODELS, Scale, cnn, mlp
from trustmix.models.resnet import resnet18

__all__ = ["MODELS", "ModelFactory", "Scale", "bert_tiny", "check_model", "cnn", "mlp", "resnet18"]

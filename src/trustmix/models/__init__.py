"""Client models: mlp, cnn, and any torch module of the user's."""

from trustmix.models.build import ModelFactory, check_model
from trustmix.models.networks import MODELS, Scale, cnn, mlp

__all__ = ["MODELS", "ModelFactory", "Scale", "check_model", "cnn", "mlp"]

"""Client models: mlp, cnn, resnet18, bert-tiny, any encoder of transformers, classifiers of scikit-learn, your own."""

from trustmix.models.classifier import ClassifierModel, as_model
from trustmix.models.classifiers_by_name import (
    gradient_boosting,
    lightgbm,
    logistic_regression,
    random_forest,
    sklearn_classifier,
    xgboost,
)
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
    "ClassifierModel",
    "ModelFactory",
    "Normalize",
    "WithFeatures",
    "WithTemperature",
    "as_model",
    "bert_tiny",
    "cnn",
    "encoder",
    "gradient_boosting",
    "lightgbm",
    "logistic_regression",
    "mlp",
    "random_forest",
    "resnet18",
    "sklearn_classifier",
    "validate_model",
    "xgboost",
]

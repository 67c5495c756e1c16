"""The sections of a recipe: the meaning, the default and the valid values of every setting.

Rules between settings of different sections are in `recipe`.
"""

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from trustmix.attacks.byzantine_engine import validate_attack
from trustmix.data import DATASETS, Augment
from trustmix.density import DENSITIES, DISCRIMINATOR, RATIO, UNFITTED
from trustmix.federation import ENGINES, LabelSharing
from trustmix.learners import OPTIMIZERS, Refresh
from trustmix.learners.training import Stages
from trustmix.models import MODELS
from trustmix.privacy import Mechanism
from trustmix.registry import Registry
from trustmix.wire import CODECS

Positive = Annotated[int, Field(ge=1, le=10**9)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Part = Annotated[float, Field(gt=0, le=1)]
Chance = Annotated[float, Field(ge=0, lt=1)]


def _validate_name(registry: Registry[Any], name: str) -> str:
    """Return a registered name; the registry's error is a ValueError, which pydantic reports."""
    registry.get(name)
    return name


class ConfigModel(BaseModel):
    """A section of a recipe; an unknown setting is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Tau(ConfigModel):
    """The rule softmax(tau * score) with a temperature chosen by the user."""

    model_config = ConfigDict(allow_inf_nan=True)
    tau: float = Field(ge=0)


class DataConfig(ConfigModel):
    """The data set; further keys are parameters of the data set's function, such as `label` of "text"."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str | None = Field(None, description="a data set's name; npz, images, text or table for files of your own")
    path: str | None = Field(None, description="where the data lie")
    source: str | None = Field(None, description="package.module:function of your own that returns the data")

    @model_validator(mode="after")
    def _one_of(self) -> "DataConfig":
        if (self.name is None) == (self.source is None):
            raise ValueError("give either name or source")
        if self.source is not None and self.path is not None:
            raise ValueError("path goes with name; a source finds its data itself")
        if self.name is not None:
            _validate_name(DATASETS, self.name)
        return self


class SplitConfig(ConfigModel):
    """The partition of the private data into clients."""

    kind: Literal["classes", "dirichlet", "homogeneous", "column"] = Field(
        "classes",
        description="how samples are dealt: k classes to each client, by Dirichlet shares, all classes to all, or by "
        "the column of a table that data.group names, such as a hospital",
    )
    classes_per_client: Positive = Field(2, description="k, the classes a client holds, for kind = classes")
    samples_per_client: Positive = Field(600, description="private samples of each client, its holdout included")
    test_samples: Positive | None = Field(None, description="test samples that accuracy is measured on; all if not set")
    alpha: float = Field(0.5, gt=0, description="concentration, for kind = dirichlet")
    seed: Seed | None = Field(None, description="of the split and the public set alone; the recipe's if not set")


class PublicConfig(ConfigModel):
    """The shared unlabelled set; with `data`, further keys are parameters of that data set's function."""

    model_config = ConfigDict(extra="allow", frozen=True)

    samples: Positive = Field(500, description="size of the public set")
    data: str | None = Field(None, description="another data set to take it from, instead of the private one's pool")
    path: str | None = Field(None, description="where that lies")

    @model_validator(mode="after")
    def _data(self) -> "PublicConfig":
        if self.data is not None:
            _validate_name(DATASETS, self.data)
        elif self.path is not None or self.model_extra:
            further = "path" if self.path is not None else next(iter(self.model_extra or {}))
            raise ValueError(f"{further} goes with public.data, which is not set")
        return self


class ModelConfig(ConfigModel):
    """One model; further keys are parameters of the model's function."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str | None = Field(None, description="a model's name; its options are further keys")
    source: str | None = Field(None, description="package.module:function(shape, classes, **options) of your own")

    @model_validator(mode="after")
    def _one_of(self) -> "ModelConfig":
        if (self.name is None) == (self.source is None):
            raise ValueError("give either name or source")
        if self.name is not None:
            _validate_name(MODELS, self.name)
        return self


class StudentConfig(ModelConfig):
    """The model that the server distils from every teacher; further keys are parameters of the model's function."""

    epochs: Positive = Field(1, description="epochs of distillation a round")


class TrainConfig(ConfigModel):
    """The training of clients."""

    optimizer: str = Field("adam", description="the optimiser")
    lr: float = Field(1e-3, gt=0, description="learning rate")
    batch: int = Field(32, ge=2, le=10**9, description="samples a step")
    first_epochs: Positive = Field(5, description="private epochs in a client's first round")
    epochs: Positive = Field(1, description="private epochs in later rounds")
    public_epochs: int | Literal["auto"] = Field(
        1, description="epochs of distillation a round, E_pub; auto: until the agreement with the teacher rises no more"
    )
    stages: Stages = Field(
        "two", description="two: distil, then train; mixed: labels and teacher in the same batches, for public_epochs"
    )
    augment: Augment = Field("none", description="crop or crop-flip: random crops and flips of private images")
    calibrate: bool = Field(
        False,
        description="fit a temperature on held-out samples after distilling, for the client's own predictions",
    )
    keep_optimizer: bool = Field(True, description="keep the optimiser's state over stages and rounds")

    @field_validator("public_epochs", mode="before")
    @classmethod
    def _public_epochs(cls, epochs: object) -> object:
        if epochs != "auto" and not (type(epochs) is int and 1 <= epochs <= 10**9):
            raise ValueError(f"it is {epochs!r}; give a number of epochs, 1 or more, or auto")
        return epochs

    @field_validator("optimizer")
    @classmethod
    def _optimizer(cls, name: str) -> str:
        return _validate_name(OPTIMIZERS, name)


class DensityConfig(ConfigModel):
    """The density that scores how familiar a sample is to a client, and the samples it is fitted on."""

    kind: str = Field(
        "gaussians",
        description="if not set, ratio for the rule trust and gaussians for others; or another name, or "
        "package.module:Class",
    )
    refresh: Refresh = Field(
        "every", description="when scores are made anew: every round, once, or each n-th; else the last are sent"
    )
    standardise: bool = Field(False, description="scores in standard deviations of the calibration samples' scores")
    calibration: Literal["holdout", "augmented", "private"] = Field(
        "holdout", description="samples kept from training; or the private ones, augmented or as they are"
    )
    holdout: float = Field(0.2, gt=0, lt=1, description="part of each class held out of training, for holdout")

    @field_validator("kind")
    @classmethod
    def _kind(cls, name: str) -> str:
        return name if ":" in name or name == DISCRIMINATOR else _validate_name(DENSITIES, name)

    @model_validator(mode="before")
    @classmethod
    def _discriminators_are_trained_once(cls, fields: object) -> object:
        discriminates = isinstance(fields, Mapping) and fields.get("kind") == DISCRIMINATOR
        return {"refresh": "once", **fields} if discriminates and isinstance(fields, Mapping) else fields

    @field_validator("refresh")
    @classmethod
    def _rounds(cls, refresh: Refresh) -> Refresh:
        if isinstance(refresh, int) and refresh < 1:
            raise ValueError("the number of rounds after which scores are made anew must be at least 1")
        return refresh

    @model_validator(mode="after")
    def _has_a_fit_to_keep(self) -> "DensityConfig":
        if self.refresh != "every" and self.kind in UNFITTED:
            raise ValueError(f"{self.kind} is computed from logits and has no fit to keep; leave refresh out")
        return self

    @model_validator(mode="after")
    def _discriminator(self) -> "DensityConfig":
        if self.kind == DISCRIMINATOR and self.refresh != "once":
            raise ValueError("discriminators do not depend on the client's model; refresh must be once, or left out")
        if self.kind == DISCRIMINATOR and self.calibration == "augmented":
            raise ValueError("discriminators compare inputs as train.augment has them; leave calibration out")
        return self

    @model_validator(mode="after")
    def _all_private_samples(self) -> "DensityConfig":
        if self.kind == RATIO and self.calibration == "augmented":
            raise ValueError("the ratio compares all private samples as they are; leave calibration out")
        return self


class EngineConfig(ConfigModel):
    """The engine that runs the clients."""

    name: str = Field("local", description="the engine that runs the clients")
    mode: Literal["auto", "sequential", "processes", "stacked"] = Field(
        "auto", description="one after another, a process a core, small models stacked, or whatever proves fastest"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto is float32; bfloat16 is faster on some hardware and changes numbers"
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="what computes")
    workers: Positive | None = Field(None, description="processes or actors; as many as fit if not set")
    cpus: float | None = Field(None, gt=0, description="processors of each actor of ray; 1 if not set")
    gpus: float | None = Field(None, ge=0, description="GPUs of each actor of ray; 0 if not set")
    store: Literal["auto", "memory", "disk"] = Field(
        "auto", description="where models live between rounds; auto goes to disk when half the memory would be full"
    )

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        return _validate_name(ENGINES, name)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are parameters of the engine's function and have a value."""
        return {key: value for key, value in self if key in self._parameters() and value is not None}

    def _parameters(self) -> list[str]:
        parameters = inspect.signature(ENGINES.get(self.name)).parameters
        return [key for key in type(self).model_fields if key in parameters]

    @model_validator(mode="after")
    def _read_by_engine(self) -> "EngineConfig":
        takes = self._parameters()
        for key, setting in type(self).model_fields.items():
            if key not in ("name", "store", *takes) and getattr(self, key) != setting.default:
                raise ValueError(f'{key} is no setting of "{self.name}", which has {", ".join(takes)} and store')
        return self

    @field_validator("device")
    @classmethod
    def _device(cls, device: str) -> str:
        there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        if not there.get(device, True):
            raise ValueError(f"this machine has no {device} device; use cpu or auto")
        return device


class WireConfig(ConfigModel):
    """The encoding of messages."""

    up: str = Field("float32", description="codec of uploads")
    down: str = Field("float32", description="codec of the teacher")
    form: Literal["scores", "density"] = Field(
        "scores", description="predictions and scores, or logits and the mixture (float32 or float16 only)"
    )
    delta: bool = Field(False, description="upload the difference to the last teacher where that is shorter")
    labels: LabelSharing = Field(
        "none",
        description="share which classes a client holds (set) or how many of each (counts); inferred is the same as "
        "none: the rule trust estimates them",
    )

    @field_validator("up", "down")
    @classmethod
    def _codec(cls, name: str) -> str:
        return _validate_name(CODECS, name)

    @model_validator(mode="after")
    def _logits(self) -> "WireConfig":
        if self.form == "density" and (self.delta or self.up not in ("float32", "float16")):
            raise ValueError("the form density sends logits: up must be float32 or float16, and delta false")
        return self


class PrivacyConfig(ConfigModel):
    """The differential privacy of uploads; none if epsilon is not set."""

    epsilon: float | None = Field(None, gt=0, description="of all rounds together; no noise if not set")
    delta: float = Field(1e-5, gt=0, lt=1, description="chance that the promise fails")
    mechanism: Mechanism = Field("training", description="training: noisy gradients; uploads: noisy predictions")
    clip: float = Field(1.0, gt=0, description="longest gradient of a record, for training")
    ratio: Chance = Field(
        0.0, description="part of epsilon for one density ratio of the records; 0 makes scores of public samples alone"
    )


class ParticipationConfig(ConfigModel):
    """The clients asked in each round, and how many of them must answer."""

    fraction: Part = Field(1.0, description="part of the clients asked each round")
    quorum: Part = Field(0.5, description="part of the asked clients that must answer")
    deadline: float | None = Field(None, gt=0, description="seconds a client's step may take")
    late: Literal["drop", "next"] = Field(
        "drop", description="next uses an upload that comes after its round in the next one, with less weight"
    )
    closing: Literal["all", "sample"] = Field(
        "all", description="who learns from the last teacher and is evaluated: all clients, or as many as in a round"
    )


class FaultsConfig(ConfigModel):
    """Simulated faults of clients."""

    crash: Chance = Field(0.0, description="chance that a client crashes before its step, for studies")
    late: Chance = Field(0.0, description="chance that an answer comes too late")
    slow: Chance = Field(0.0, description="part of the clients that need two rounds for each step")


class GuardConfig(ConfigModel):
    """Bounds on the influence of one client on a teacher, for rules that share predictions."""

    on: bool = Field(True, description="bound what one client can do to a teacher")
    cap: float = Field(0.8, ge=0.5, le=1, description="largest share of a sample's trust that one client can have")


class AttackConfig(ConfigModel):
    """Simulated Byzantine clients."""

    kind: str | None = Field(None, description="what they do; no client lies if not set")
    share: Chance = Field(0.2, description="part of the clients that lie")
    sees: Literal["uploads", "teacher"] = Field(
        "uploads", description="what liars know: the honest uploads of the round, or the last teacher alone"
    )

    @field_validator("kind")
    @classmethod
    def _kind(cls, kind: str | None) -> str | None:
        return None if kind is None else validate_attack(kind)


class TheoryConfig(ConfigModel):
    """Measurements of the theory during a run."""

    every: Positive | None = Field(None, description="measure each n-th round into theory.jsonl")
    reference: Literal["model", "labels"] = Field(
        "model", description="the truth: a model trained on all private data, or the public labels"
    )


class TrackConfig(ConfigModel):
    """Trackers that rounds are logged to, besides rounds.jsonl."""

    tensorboard: str | None = Field(None, description="a folder of TensorBoard's; the run gets one of its own in it")
    mlflow: str | None = Field(None, description="MLflow's tracking URI, or a folder for its database")
    wandb: str | None = Field(None, description="a project of W&B, or entity/project")

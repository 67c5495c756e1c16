"""A run, described: one validated recipe, from TOML, with `--set` overrides, and back to TOML.

Everything that can be refused is refused here, in one sentence that names the key and what would be right.
"""

import inspect
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from trustmix.baselines import CLIENTS, SERVERS, check_method
from trustmix.data import DATASETS, Augment
from trustmix.errors import TrustmixError
from trustmix.federation import ALONE, ENGINES, OPTIMIZERS, REFERENCE, Mechanism, Sharing, check_attack
from trustmix.models import MODELS
from trustmix.registry import Registry, nearest
from trustmix.study import toml
from trustmix.study.complaints import sentence
from trustmix.trust import DENSITIES, NEED_LABELS, RULES
from trustmix.wire import CODECS

Positive = Annotated[int, Field(ge=1)]
Part = Annotated[float, Field(gt=0, le=1)]
Chance = Annotated[float, Field(ge=0, lt=1)]


def _known(registry: Registry[Any], name: str) -> str:
    """The name, if it is registered; pydantic needs a plain ValueError, which the registry's error is."""
    registry.get(name)
    return name


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tau(_Section):
    """The tempered softmax at a temperature of one's own."""

    tau: float = Field(ge=0)


class DataSection(_Section):
    """Which data; further settings are those of the data set's function, as `label` is of "text"."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str | None = Field(None, description="a data set's name; npz, images, text or table for files of your own")
    path: str | None = Field(None, description="where the data lie")
    source: str | None = Field(None, description="package.module:function of your own that returns the data")

    @model_validator(mode="after")
    def _one_of(self) -> "DataSection":
        if (self.name is None) == (self.source is None):
            raise ValueError("give either name or source")
        if self.source is not None and self.path is not None:
            raise ValueError("path goes with name; a source finds its data itself")
        if self.name is not None:
            _known(DATASETS, self.name)
        return self


class SplitSection(_Section):
    """Who holds what."""

    kind: Literal["classes", "dirichlet", "homogeneous"] = Field(
        "classes", description="how classes are dealt: k to each client, by Dirichlet shares, or all to all"
    )
    classes_per_client: Positive = Field(2, description="k, the classes a client holds, for kind = classes")
    samples_per_client: Positive = Field(600, description="private samples of each client, its holdout included")
    test_samples: Positive | None = Field(None, description="test samples that accuracy is measured on; all if not set")
    alpha: float = Field(0.5, gt=0, description="concentration, for kind = dirichlet")
    seed: int | None = Field(None, ge=0, description="of the split and the public set alone; the recipe's if not set")


class PublicSection(_Section):
    """The shared unlabelled set; with data, its further settings are those of that data set's function."""

    model_config = ConfigDict(extra="allow", frozen=True)

    samples: Positive = Field(500, description="size of the public set")
    data: str | None = Field(None, description="another data set to take it from, instead of the private one's pool")
    path: str | None = Field(None, description="where that lies")

    @model_validator(mode="after")
    def _data(self) -> "PublicSection":
        if self.data is not None:
            _known(DATASETS, self.data)
        elif self.path is not None or self.model_extra:
            further = "path" if self.path is not None else next(iter(self.model_extra or {}))
            raise ValueError(f"{further} goes with public.data, which is not set")
        return self


class ModelSection(_Section):
    """One model; the options are those of the model's function."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str | None = Field(None, description="a model's name; its options are further keys")
    source: str | None = Field(None, description="package.module:function(shape, classes, **options) of your own")

    @model_validator(mode="after")
    def _one_of(self) -> "ModelSection":
        if (self.name is None) == (self.source is None):
            raise ValueError("give either name or source")
        if self.name is not None:
            _known(MODELS, self.name)
        return self


class StudentSection(ModelSection):
    """A model that the server distils from every teacher; the options are those of the model's function."""

    epochs: Positive = Field(1, description="epochs of distillation a round")


class TrainSection(_Section):
    """How clients learn."""

    optimizer: str = Field("adam", description="the optimiser")
    lr: float = Field(1e-3, gt=0, description="learning rate")
    batch: int = Field(32, ge=2, description="samples a step")
    first_epochs: Positive = Field(5, description="private epochs in a client's first round")
    epochs: Positive = Field(1, description="private epochs in later rounds")
    public_epochs: Positive = Field(1, description="epochs of distillation a round, E_pub")
    augment: Augment = Field("none", description="crop or crop-flip: random crops and flips of private images")
    keep_optimizer: bool = Field(True, description="keep the optimiser's state over stages and rounds")

    @field_validator("optimizer")
    @classmethod
    def _optimizer(cls, name: str) -> str:
        return _known(OPTIMIZERS, name)


class DensitySection(_Section):
    """What tells who has seen such a sample, and what it is fitted on."""

    kind: str = Field("gaussians", description="of logits; or kernel, features, energy, entropy, max-probability")
    standardise: bool = Field(False, description="scores in standard deviations of the calibration samples' scores")
    calibration: Literal["holdout", "augmented"] = Field("holdout", description="augmented: private images, cropped")
    holdout: float = Field(0.2, gt=0, lt=1, description="part of each class held out of training, for holdout")

    @field_validator("kind")
    @classmethod
    def _kind(cls, name: str) -> str:
        return _known(DENSITIES, name)


class EngineSection(_Section):
    """Where clients run."""

    name: str = Field("local", description="the engine that runs the clients")
    mode: Literal["auto", "sequential", "processes", "stacked"] = Field(
        "auto", description="one after another, a process a core, small models stacked, or whatever proves fastest"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto takes bfloat16 where the hardware has it and it is faster"
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
        return _known(ENGINES, name)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the engine takes."""
        return {key: value for key, value in self if key in self._takes() and value is not None}

    def _takes(self) -> list[str]:
        parameters = inspect.signature(ENGINES.get(self.name)).parameters
        return [key for key in type(self).model_fields if key in parameters]

    @model_validator(mode="after")
    def _taken(self) -> "EngineSection":
        takes = self._takes()
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


class WireSection(_Section):
    """How messages travel."""

    up: str = Field("float32", description="codec of uploads")
    down: str = Field("float32", description="codec of the teacher")
    form: Literal["scores", "density"] = Field(
        "scores", description="predictions and scores, or logits and the mixture (float32 or float16 only)"
    )
    delta: bool = Field(False, description="upload the difference to the last teacher where that is shorter")
    labels: Sharing = Field("none", description="tell the server which classes a client holds, or how many of each")

    @field_validator("up", "down")
    @classmethod
    def _codec(cls, name: str) -> str:
        return _known(CODECS, name)

    @model_validator(mode="after")
    def _logits(self) -> "WireSection":
        if self.form == "density" and (self.delta or self.up not in ("float32", "float16")):
            raise ValueError("the form density sends logits: up must be float32 or float16, and delta false")
        return self


class PrivacySection(_Section):
    """What clients promise of their uploads; nothing if epsilon is not set."""

    epsilon: float | None = Field(None, gt=0, description="of all rounds together; no noise if not set")
    delta: float = Field(1e-5, gt=0, lt=1, description="chance that the promise fails")
    mechanism: Mechanism = Field("training", description="training: noisy gradients; uploads: noisy predictions")
    clip: float = Field(1.0, gt=0, description="longest gradient of a record, for training")


class ParticipationSection(_Section):
    """Who is asked, and who must answer."""

    fraction: Part = Field(1.0, description="part of the clients asked each round")
    quorum: Part = Field(0.5, description="part of the asked clients that must answer")
    deadline: float | None = Field(None, gt=0, description="seconds a client's step may take")


class FaultsSection(_Section):
    """Faults on purpose."""

    crash: Chance = Field(0.0, description="chance that a client crashes before its step, for studies")
    late: Chance = Field(0.0, description="chance that an answer comes too late")


class GuardSection(_Section):
    """Bounds on what one client can do to a teacher; for rules that share predictions."""

    on: bool = Field(True, description="bound what one client can do to a teacher")
    cap: float = Field(0.8, ge=0.5, le=1, description="largest share of a sample's trust that one client can have")


class AttackSection(_Section):
    """Clients that lie on purpose."""

    kind: str | None = Field(None, description="what they do; nobody lies if not set")
    share: Chance = Field(0.2, description="part of the clients that lie")

    @field_validator("kind")
    @classmethod
    def _kind(cls, kind: str | None) -> str | None:
        return None if kind is None else check_attack(kind)


class TheorySection(_Section):
    """What is measured while a run goes on."""

    every: Positive | None = Field(None, description="measure each n-th round into theory.jsonl")
    reference: Literal["model", "labels"] = Field(
        "model", description="the truth: a model trained on all private data, or the public labels"
    )


class TrackSection(_Section):
    """Where rounds are told besides rounds.jsonl."""

    tensorboard: str | None = Field(None, description="a folder of TensorBoard's; the run gets one of its own in it")
    mlflow: str | None = Field(None, description="MLflow's tracking URI, or a folder for its database")


class Recipe(_Section):
    """Everything a run depends on. The same recipe gives the same numbers.

    >>> Recipe.load("demo", ["rule=avg", "split.classes_per_client=3"]).split.classes_per_client
    3
    """

    clients: Positive = Field(20, description="how many")
    rounds: Positive = Field(20, description="how many")
    seed: int = Field(0, ge=0, description="decides everything random")
    rule: str | Tau = Field("suwa", description="a rule's or a baseline's name, or `{ tau = 0.4 }`")
    """`suwa` if not set, or `trust` where clients share their label sets."""
    data: DataSection
    split: SplitSection = SplitSection()
    public: PublicSection = PublicSection()
    model: ModelSection | tuple[ModelSection, ...] = ModelSection(name="mlp")
    student: StudentSection | None = None
    train: TrainSection = TrainSection()
    density: DensitySection = DensitySection()
    engine: EngineSection = EngineSection()
    wire: WireSection = WireSection()
    privacy: PrivacySection = PrivacySection()
    participation: ParticipationSection = ParticipationSection()
    faults: FaultsSection = FaultsSection()
    guard: GuardSection = GuardSection()
    attack: AttackSection = AttackSection()
    theory: TheorySection = TheorySection()
    track: TrackSection = TrackSection()

    @model_validator(mode="before")
    @classmethod
    def _default_rule(cls, fields: Any) -> Any:
        wire = fields.get("wire") if isinstance(fields, Mapping) else None
        shared = isinstance(wire, Mapping) and wire.get("labels", "none") != "none"
        return {"rule": "trust", **fields} if shared else fields

    @field_validator("rule")
    @classmethod
    def _rule(cls, rule: str | Tau) -> str | Tau:
        names = [*RULES.names(), *SERVERS, ALONE, REFERENCE]
        if isinstance(rule, str) and rule not in names:
            raise ValueError(f'there is no rule "{rule}".{nearest(rule, names)} There are: {", ".join(names)}')
        return rule

    @field_validator("model")
    @classmethod
    def _models(cls, model: ModelSection | tuple[ModelSection, ...]) -> ModelSection | tuple[ModelSection, ...]:
        if model == ():
            raise ValueError("the list of models is empty")
        return model

    @field_validator("wire")
    @classmethod
    def _mixture(cls, wire: WireSection, others: ValidationInfo) -> WireSection:
        density = others.data.get("density", DensitySection())
        if wire.form == "density" and (density.kind != "gaussians" or density.standardise):
            raise ValueError(
                "the form density sends the Gaussians of density.kind = gaussians, without density.standardise; "
                "set wire.form = scores"
            )
        return wire

    @model_validator(mode="after")
    def _method(self) -> "Recipe":
        if self.rule in NEED_LABELS and self.wire.labels == "none":
            raise ValueError(
                f"{self.rule} compares classes within the clients' label sets, which they must share: set wire.labels "
                "to set or counts, or choose another rule"
            )
        if isinstance(self.rule, str):
            kinds = [model for index, model in enumerate(self.models) if model not in self.models[:index]]
            check_method(
                self.rule,
                architectures=len(kinds),
                optimizer=self.train.optimizer,
                form=self.wire.form,
                down=self.wire.down,
                student=self.student is not None,
            )
        return self

    @model_validator(mode="after")
    def _private(self) -> "Recipe":
        if self.privacy.epsilon is None:
            return self
        if str(self.rule) in (*CLIENTS, *SERVERS, REFERENCE):
            raise ValueError(
                f"[privacy] goes with rules that mix predictions, or alone; {self.rule} tells other things"
            )
        if self.wire.labels == "counts" or (self.privacy.mechanism, self.wire.labels) == ("uploads", "set"):
            raise ValueError(
                f"wire.labels = {self.wire.labels} tells what privacy.mechanism = {self.privacy.mechanism} protects; "
                "set goes with training, none with both"
            )
        if self.wire.form != "scores":
            raise ValueError("[privacy] goes with wire.form = scores")
        if self.density.calibration != "holdout":
            raise ValueError(
                "[privacy] leaves no density.calibration to choose: scores are made of public samples alone"
            )
        return self

    @model_validator(mode="after")
    def _attack(self) -> "Recipe":
        if self.attack.kind is not None and self.rule in (*SERVERS, ALONE, REFERENCE):
            raise ValueError(f"attack.kind lies about predictions, which {self.rule} does not share")
        if self.attack.kind == "labels" and self.wire.labels == "none":
            raise ValueError("attack.kind = labels lies about label sets, which wire.labels = none does not tell")
        return self

    @property
    def models(self) -> tuple[ModelSection, ...]:
        """The models dealt to the clients in turn."""
        return self.model if isinstance(self.model, tuple) else (self.model,)

    @property
    def holds_out(self) -> bool:
        """Whether a part of the private samples is kept from training; with [privacy] none has to be."""
        return self.density.calibration == "holdout" and self.privacy.epsilon is None

    @property
    def method(self) -> str | float:
        """The rule as `Federation` takes it: a name or a tau."""
        return self.rule if isinstance(self.rule, str) else self.rule.tau

    @classmethod
    def load(cls, recipe: "str | Path | Mapping[str, Any] | Recipe", overrides: Iterable[str] = ()) -> "Recipe":
        """A recipe from a built-in name, a TOML file, a mapping or itself, with 'key=value' overrides on top."""
        if isinstance(recipe, Recipe):
            fields, where = recipe.model_dump(exclude_none=True), "the recipe"
        elif isinstance(recipe, Mapping):
            fields, where = dict(recipe), "the recipe"
        else:
            fields, where = _read(recipe)
        for change in sorted(overrides, key=lambda text: ".name=" not in text):  # a name starts its section anew
            toml.override(fields, change)
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise TrustmixError(f"{where}: {sentence(error, setting_names())}") from error

    def settled(self, chosen: Mapping[str, Any]) -> "Recipe":
        """The recipe with what it leaves to the engine filled in; what it sets itself stays."""
        open_ = {key: value for key, value in chosen.items() if getattr(self.engine, key) in ("auto", None)}
        return self.model_copy(update={"engine": self.engine.model_copy(update=open_)})

    def toml(self) -> str:
        """The recipe, every setting written out, as TOML."""
        return toml.write(self.model_dump(mode="json", exclude_none=True))


def setting_names() -> list[str]:
    """Every setting as section.key.

    >>> "split.classes_per_client" in setting_names()
    True
    """
    names = []
    for name, info in Recipe.model_fields.items():
        names.append(name)
        section = {"model": ModelSection, "student": StudentSection}.get(name, info.annotation)
        if isinstance(section, type) and issubclass(section, BaseModel):
            names += [f"{name}.{key}" for key in section.model_fields]
    return names


def built_in() -> dict[str, str]:
    """The built-in recipes: their names, and the first comment line of each.

    >>> {"demo", "fashion", "cifar10", "cifar100", "yahoo"} <= set(built_in())
    True
    """
    folder = resources.files("trustmix") / "recipes"
    texts = {Path(file.name).stem: file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".toml")}
    return {name: text.splitlines()[0].lstrip("# ") for name, text in sorted(texts.items())}


def _read(recipe: str | Path) -> tuple[dict[str, Any], str]:
    """The fields of a built-in recipe or a TOML file, and how to name it in a message."""
    name, file = str(recipe), Path(recipe).expanduser()
    if name in built_in():
        text, where = (resources.files("trustmix") / "recipes" / f"{name}.toml").read_text("utf-8"), f'recipe "{name}"'
        return toml.parse(text, where), where
    if file.is_file():
        return toml.read(file), str(file)
    hint = nearest(name, built_in())
    raise TrustmixError(
        f'There is no recipe "{name}": neither a file nor built in.{hint} Built in are: {", ".join(built_in())}.'
    )

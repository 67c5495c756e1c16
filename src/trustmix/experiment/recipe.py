"""A run, described: one validated recipe, from TOML, with `--set` overrides, and back to TOML.

Settings that do not go together are refused here, each by itself in `sections`, all in one sentence that names the key.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator, model_validator

from trustmix.aggregation.rules import NEED_LABELS, RULES
from trustmix.errors import TrustmixError
from trustmix.experiment import toml_settings as toml
from trustmix.experiment.config import (
    AttackConfig,
    ConfigModel,
    DataConfig,
    DensityConfig,
    EngineConfig,
    FaultsConfig,
    GuardConfig,
    ModelConfig,
    ParticipationConfig,
    Positive,
    PrivacyConfig,
    PublicConfig,
    SplitConfig,
    StudentConfig,
    Tau,
    TheoryConfig,
    TrackConfig,
    TrainConfig,
    WireConfig,
)
from trustmix.experiment.validation import format_validation_error
from trustmix.federation import CENTRALIZED, LOCAL_ONLY
from trustmix.methods.registry import CLIENTS, SERVERS, check_method
from trustmix.registry import did_you_mean


class Recipe(ConfigModel):
    """Everything a run depends on. The same recipe gives the same numbers.

    >>> Recipe.load("demo", ["rule=avg", "split.classes_per_client=3"]).split.classes_per_client
    3
    """

    clients: Positive = Field(20, le=1_000_000, description="how many")
    rounds: Positive = Field(20, description="how many")
    seed: int = Field(0, ge=0, description="decides everything random")
    rule: str | Tau = Field("suwa", description="a rule's or a baseline's name, or `{ tau = 0.4 }`")
    """`suwa` if not set, or `trust` where clients share their label sets."""
    data: DataConfig
    split: SplitConfig = SplitConfig()
    public: PublicConfig = PublicConfig()
    model: ModelConfig | tuple[ModelConfig, ...] = ModelConfig(name="mlp")
    student: StudentConfig | None = None
    train: TrainConfig = TrainConfig()
    density: DensityConfig = DensityConfig()
    engine: EngineConfig = EngineConfig()
    wire: WireConfig = WireConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    participation: ParticipationConfig = ParticipationConfig()
    faults: FaultsConfig = FaultsConfig()
    guard: GuardConfig = GuardConfig()
    attack: AttackConfig = AttackConfig()
    theory: TheoryConfig = TheoryConfig()
    track: TrackConfig = TrackConfig()

    @model_validator(mode="before")
    @classmethod
    def _default_rule(cls, fields: Any) -> Any:
        wire = fields.get("wire") if isinstance(fields, Mapping) else None
        shared = isinstance(wire, Mapping) and wire.get("labels", "none") != "none"
        return {"rule": "trust", **fields} if shared else fields

    @field_validator("rule")
    @classmethod
    def _rule(cls, rule: str | Tau) -> str | Tau:
        names = [*RULES.names(), *SERVERS, LOCAL_ONLY, CENTRALIZED]
        if isinstance(rule, str) and rule not in names:
            raise ValueError(f'there is no rule "{rule}".{did_you_mean(rule, names)} There are: {", ".join(names)}')
        return rule

    @field_validator("model")
    @classmethod
    def _models(cls, model: ModelConfig | tuple[ModelConfig, ...]) -> ModelConfig | tuple[ModelConfig, ...]:
        if model == ():
            raise ValueError("the list of models is empty")
        return model

    @field_validator("wire")
    @classmethod
    def _mixture(cls, wire: WireConfig, others: ValidationInfo) -> WireConfig:
        density = others.data.get("density", DensityConfig())
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
        if str(self.rule) in (*CLIENTS, *SERVERS, CENTRALIZED):
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
        if self.attack.kind is not None and self.rule in (*SERVERS, LOCAL_ONLY, CENTRALIZED):
            raise ValueError(f"attack.kind lies about predictions, which {self.rule} does not share")
        if self.attack.kind == "labels" and self.wire.labels == "none":
            raise ValueError("attack.kind = labels lies about label sets, which wire.labels = none does not tell")
        return self

    @property
    def models(self) -> tuple[ModelConfig, ...]:
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
            raise TrustmixError(f"{where}: {format_validation_error(error, setting_names())}") from error

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
        section = {"model": ModelConfig, "student": StudentConfig}.get(name, info.annotation)
        if isinstance(section, type) and issubclass(section, BaseModel):
            names += [f"{name}.{key}" for key in section.model_fields]
    return names


def builtin_recipes() -> dict[str, str]:
    """The built-in recipes: their names, and the first comment line of each.

    >>> {"demo", "fashion", "cifar10", "cifar100", "yahoo"} <= set(builtin_recipes())
    True
    """
    folder = resources.files("trustmix") / "recipes"
    texts = {Path(file.name).stem: file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".toml")}
    return {name: text.splitlines()[0].lstrip("# ") for name, text in sorted(texts.items())}


def _read(recipe: str | Path) -> tuple[dict[str, Any], str]:
    """The fields of a built-in recipe or a TOML file, and how to name it in a message."""
    name = str(recipe)
    if name in builtin_recipes():
        text, where = (resources.files("trustmix") / "recipes" / f"{name}.toml").read_text("utf-8"), f'recipe "{name}"'
        return toml.parse(text, where), where
    with suppress(OSError, RuntimeError):  # no name of a file, or in the folder of a user who is not there
        file = Path(recipe).expanduser()
        if file.is_file():
            return toml.read(file), str(file)
    hint = did_you_mean(name, builtin_recipes())
    raise TrustmixError(
        f'There is no recipe "{name}": neither a file nor built in.{hint} Built in are: {", ".join(builtin_recipes())}.'
    )

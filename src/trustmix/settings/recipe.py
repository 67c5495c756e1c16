"""The recipe: all settings of a run, read from TOML with `--set` overrides, validated, and written as TOML.

`config` validates each section by itself; settings of different sections that do not go together are refused here.
Every error is one sentence that names the setting.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator, model_validator

from trustmix import records
from trustmix.density import DISCRIMINATOR, RATIO
from trustmix.errors import TrustmixError
from trustmix.federation.method import METHODS, Method, is_reference, resolve_method
from trustmix.registry import did_you_mean
from trustmix.settings import toml_settings as toml
from trustmix.settings.builtin import read_fields
from trustmix.settings.config import (
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
    Seed,
    SplitConfig,
    StudentConfig,
    Tau,
    TheoryConfig,
    TrackConfig,
    TrainConfig,
    WireConfig,
)
from trustmix.settings.validation import format_validation_error


class Recipe(ConfigModel):
    """All settings of a run. The same recipe gives the same numbers.

    Examples
    --------
    >>> Recipe.load("demo", ["rule=avg", "split.classes_per_client=3"]).split.classes_per_client
    3
    """

    clients: int = Field(20, ge=1, le=1_000_000, description="how many")
    rounds: Positive = Field(20, description="how many")
    seed: Seed = Field(0, description="decides everything random")
    metric: Literal["accuracy", "balanced_accuracy", "macro_f1", "auroc"] = Field(
        "accuracy", description="what runs are compared by: the best round, tables and headlines"
    )
    rule: str | Tau = Field("trust", description="a method's name, `{ tau = 0.4 }`, or package.module:Class")
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
    format: int = Field(1, ge=1, description="version of the file's format")

    @field_validator("rule")
    @classmethod
    def _rule(cls, rule: str | Tau, info: ValidationInfo) -> str | Tau:
        if isinstance(rule, str) and not is_reference(rule) and rule not in METHODS and not _is_stored(info):
            names = METHODS.names()
            raise ValueError(f'there is no rule "{rule}".{did_you_mean(rule, names)} There are: {", ".join(names)}')
        return rule

    @field_validator("model")
    @classmethod
    def _models(cls, model: ModelConfig | tuple[ModelConfig, ...]) -> ModelConfig | tuple[ModelConfig, ...]:
        if model == ():
            raise ValueError("the list of models is empty")
        return model

    @model_validator(mode="after")
    def _density_of_the_rule(self) -> "Recipe":
        """A rule brings its density; the setting stays one that was not given, so that another rule brings its own."""
        if "kind" not in self.density.model_fields_set:
            density = self.density.model_copy(update={"kind": _density_of(self.rule)})
            density.model_fields_set.discard("kind")
            object.__setattr__(self, "density", density)
        return self

    @model_validator(mode="after")
    def _mixture(self) -> "Recipe":
        if self.wire.form == "density" and (self.density.kind != "gaussians" or self.density.standardise):
            raise ValueError(
                "wire.form = density sends the Gaussians of density.kind = gaussians, without density.standardise; "
                "set wire.form = scores"
            )
        if self.wire.form == "density" and self.density.refresh != "every":
            raise ValueError("wire.form = density sends no scores to keep; leave density.refresh out")
        return self

    @model_validator(mode="after")
    def _method(self, info: ValidationInfo) -> "Recipe":
        if not _is_stored(info) and not (isinstance(self.rule, str) and is_reference(self.rule)):
            self.validate_method()
        return self

    def validate_method(self) -> None:
        """Refuse settings that the method does not read or that contradict it.

        A rule given as "package.module:Class" is imported. A recipe that is read but not run is not validated here.

        Raises
        ------
        TrustmixError
            With the setting, the reason and what would be right.

        Examples
        --------
        >>> Recipe.load("demo", ["rule=avg"]).validate_method()
        """
        method = self.method
        if method.needs_label_sets and self.wire.labels == "none":
            raise TrustmixError(
                f"{method.name} needs the clients' label sets, which they must share: set "
                "wire.labels to set or counts, or choose another rule"
            )
        if method.one_architecture and len(kinds := {str(model) for model in self.models}) > 1:
            raise TrustmixError(
                f"{method.name} averages weights, which takes one architecture; [[model]] lists {len(kinds)} models"
            )
        if method.optimizer not in (None, self.train.optimizer):
            raise TrustmixError(
                f"{method.name} corrects gradients, which {self.train.optimizer} would rescale; "
                f"set train.optimizer = {method.optimizer}"
            )
        for setting, value, reason in method.refuses:
            if self._value(setting) == value:
                raise TrustmixError(f"{method.name} does not go with {setting} = {value}: {reason}")
        for setting, reason in method.unread_settings().items():
            if self._is_set(setting):
                raise TrustmixError(f"{setting} is not read by {method.name}: {reason}; leave {setting} out")

    def _value(self, setting: str) -> object:
        """The value of a setting, by section.key."""
        section, _, key = setting.partition(".")
        found = getattr(self, section)
        return getattr(found, key) if key else found

    def _is_set(self, setting: str) -> bool:
        """Whether a setting is given with a value other than its default or off."""
        section, _, key = setting.partition(".")
        if section not in self.model_fields_set:
            return False
        found = getattr(self, section)
        if not key:
            return found is not None
        if setting == "guard.on":
            return "on" in found.model_fields_set and bool(found.on)
        return key in found.model_fields_set and getattr(found, key) != type(found).model_fields[key].default

    @model_validator(mode="after")
    def _private(self) -> "Recipe":
        if self.privacy.epsilon is None:
            return self
        if self.wire.labels == "counts" or (self.privacy.mechanism, self.wire.labels) == ("uploads", "set"):
            raise ValueError(
                f"wire.labels = {self.wire.labels} shows what privacy.mechanism = {self.privacy.mechanism} protects; "
                "set goes with training, none with both"
            )
        if self.train.stages == "mixed" and self.privacy.mechanism == "training":
            raise ValueError(
                "privacy.mechanism = training adds noise to gradients of private records, which "
                "train.stages = mixed has in one batch with public ones; set train.stages = two"
            )
        if self.wire.form != "scores":
            raise ValueError("[privacy] goes with wire.form = scores")
        if self.privacy.ratio > 0:
            self._validate_private_ratio()
        if self.density.kind == DISCRIMINATOR:
            raise ValueError("density.kind = discriminator is trained without the noise of [privacy]; choose another")
        if self.privacy.mechanism == "uploads" and self.density.refresh != "every":
            raise ValueError("privacy.mechanism = uploads sends no scores to keep; leave density.refresh out")
        if self.density.calibration != "holdout":
            raise ValueError(
                "[privacy] leaves no density.calibration to choose: scores are made of public samples alone"
            )
        return self

    def _validate_private_ratio(self) -> None:
        """Refuse privacy.ratio where no ratio is released, or more than one."""
        if (self.density.kind, self.privacy.mechanism) != (RATIO, "training"):
            raise ValueError("privacy.ratio pays for density.kind = ratio with privacy.mechanism = training")
        if self.density.refresh != "once":
            raise ValueError("privacy.ratio pays for one density ratio; set density.refresh = once")

    @model_validator(mode="after")
    def _theory(self) -> "Recipe":
        if self.theory.every is not None and self.density.refresh != "every":
            raise ValueError("theory.every measures scores of each round's models; leave density.refresh out")
        return self

    @model_validator(mode="after")
    def _calibrated(self) -> "Recipe":
        if self.train.calibrate and not self.holds_out:
            raise ValueError(
                "train.calibrate fits a temperature on held-out samples: it needs density.calibration = holdout, and "
                "no [privacy], under which no samples are held out"
            )
        return self

    @model_validator(mode="after")
    def _late(self) -> "Recipe":
        if self.participation.late == "next" and self.wire.delta:
            raise ValueError(
                "wire.delta sends differences to the last teacher, which a late upload does not know; set "
                "participation.late = drop or wire.delta = false"
            )
        return self

    @model_validator(mode="after")
    def _attack(self) -> "Recipe":
        if self.attack.kind == "labels" and self.wire.labels == "none":
            raise ValueError("attack.kind = labels lies about label sets, which wire.labels = none does not share")
        return self

    @property
    def method(self) -> Method:
        """The method of the rule; a rule given as "package.module:Class" is imported."""
        return resolve_method(self.rule if isinstance(self.rule, str) else self.rule.tau)

    @property
    def models(self) -> tuple[ModelConfig, ...]:
        """The models, which are assigned to the clients in turn."""
        return self.model if isinstance(self.model, tuple) else (self.model,)

    @property
    def holds_out(self) -> bool:
        """Whether a part of the private samples is held out of training; with [privacy] none is."""
        return self.density.calibration == "holdout" and self.privacy.epsilon is None

    @classmethod
    def load(cls, recipe: "str | Path | Mapping[str, object] | Recipe", overrides: Iterable[str] = ()) -> "Recipe":
        """Load and validate a recipe to run.

        Parameters
        ----------
        recipe : str, Path, mapping or Recipe
            The name of a built-in recipe, a TOML file, settings by key, or a recipe.
        overrides : iterable of str
            Changes, each as "key=value", such as "split.classes_per_client=3".

        Returns
        -------
        Recipe
            The recipe; settings that the method does not read have their defaults.

        Raises
        ------
        TrustmixError
            With the name of the setting, what is wrong with it and what would be right.

        Examples
        --------
        >>> Recipe.load({"data": {"name": "digits"}, "rounds": 3}, ["rule=uwa"]).rule
        'uwa'
        """
        if isinstance(recipe, Recipe):
            fields, source = recipe.model_dump(exclude_none=True, exclude_unset=True), "the recipe"
        elif isinstance(recipe, Mapping):
            fields, source = dict(recipe), "the recipe"
        else:
            fields, source = read_fields(recipe)
        for change in sorted(overrides, key=lambda text: not toml.resets_section(text)):
            toml.override(fields, change)
        records.check_format(fields.get("format", FORMAT), FORMAT, source)
        try:
            found = cls.model_validate(fields)
            return cls.model_validate(found.settings())
        except ValidationError as error:
            raise TrustmixError(f"{source}: {format_validation_error(error, setting_names())}") from error

    @classmethod
    def load_stored(cls, file: Path) -> "Recipe":
        """Read the recipe of a run directory without importing the user's code; unknown settings are ignored.

        Parameters
        ----------
        file : Path
            A recipe.toml, perhaps of a newer version.

        Returns
        -------
        Recipe
            The recipe, to read and not to run.

        Raises
        ------
        TrustmixError
            If the file is damaged, or in a format that this version does not read.
        """
        fields = toml.read(file)
        records.check_format(fields.get("format", 1), FORMAT, str(file))
        try:
            return cls.model_validate(_known_fields(cls, fields), context=STORED)
        except ValidationError as error:
            raise TrustmixError(f"{file}: {format_validation_error(error, setting_names())}") from error

    def resolve_engine(self, chosen: Mapping[str, object]) -> "Recipe":
        """Fill in the settings that the recipe leaves to the engine.

        Parameters
        ----------
        chosen : mapping of str to object
            The engine's choices, by keys of [engine].

        Returns
        -------
        Recipe
            A copy in which each setting of [engine] that was "auto" or not set has the chosen value.

        Examples
        --------
        >>> recipe = Recipe.load("demo", ["engine.device=cpu"])
        >>> resolved = recipe.resolve_engine({"mode": "stacked", "device": "cuda"}).engine
        >>> resolved.mode, resolved.device
        ('stacked', 'cpu')
        """
        left_open = {key: value for key, value in chosen.items() if getattr(self.engine, key) in ("auto", None)}
        return self.model_copy(update={"engine": self.engine.model_copy(update=left_open)})

    def settings(self) -> dict[str, Any]:
        """Return the settings that were given and that the method reads.

        Returns
        -------
        dict
            The settings by key, with values of JSON and TOML; a section is a dictionary.

        Examples
        --------
        >>> Recipe.load({"data": {"name": "digits"}, "rounds": 3}).settings()
        {'rounds': 3, 'data': {'name': 'digits'}}
        """
        return self._read_by_method(self.model_dump(mode="json", exclude_none=True, exclude_unset=True))

    def resolved_toml(self) -> str:
        """The recipe as TOML, as `toml`; a rule of the user's own is imported to know which settings it reads."""
        return toml.write(self._read_by_method(self.model_dump(mode="json", exclude_none=True), resolve=True))

    def toml(self) -> str:
        """Format the recipe as TOML, with the value of every setting that the method reads."""
        return toml.write(self._read_by_method(self.model_dump(mode="json", exclude_none=True)))

    def client_toml(self) -> str:
        """Format the recipe as TOML for a client of a deployment: without the rule, which only the server uses."""
        fields = self._read_by_method(self.model_dump(mode="json", exclude_none=True))
        return toml.write({key: value for key, value in fields.items() if key not in SERVER_SETTINGS})

    def _read_by_method(self, fields: dict[str, Any], *, resolve: bool = False) -> dict[str, Any]:
        unknown = isinstance(self.rule, str) and (is_reference(self.rule) or self.rule not in METHODS)
        if unknown and not resolve:
            return fields
        for setting in self.method.unread_settings():
            section, _, key = setting.partition(".")
            if not key:
                fields.pop(section, None)
            elif section in fields:
                fields[section].pop(key, None)
        return {key: value for key, value in fields.items() if value != {}}


SERVER_SETTINGS = ("rule", "guard", "attack", "student", "theory", "track", "participation", "faults")
"""Settings that are the server's own business."""
FORMAT = 1
"""The version of recipe.toml that this version reads and writes."""
STORED = {"stored": True}
"""The context in which a recipe is read but not run."""


def _is_stored(info: ValidationInfo) -> bool:
    return bool(info.context and info.context.get("stored"))


def _known_fields(model: type[BaseModel], fields: Mapping[str, object]) -> dict[str, object]:
    """The fields that the model and its sections have; sections that accept any key are left as they are."""
    known = {}
    for name, value in fields.items():
        if name not in model.model_fields:
            continue
        section = model.model_fields[name].annotation
        closed = (
            isinstance(section, type)
            and issubclass(section, BaseModel)
            and section.model_config.get("extra") == "forbid"
        )
        known[name] = _known_fields(section, value) if closed and isinstance(value, Mapping) else value  # type: ignore[arg-type]
    return known


def setting_names() -> list[str]:
    """List all settings.

    Returns
    -------
    list of str
        Every setting as section.key, and every section.

    Examples
    --------
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


def _density_of(rule: str | Tau) -> str:
    """The density that a rule is made for."""
    return METHODS.get(rule).density if isinstance(rule, str) and rule in METHODS else Method.density

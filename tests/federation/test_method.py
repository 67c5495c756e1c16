"""Methods: values that fit together in one registry, rules in every form, and settings that a method does not read."""

import tomllib
from collections import Counter
from pathlib import Path

import pytest
import torch

import trustmix as tm
from trustmix import Recipe, TrustmixError
from trustmix.aggregation import Accumulator, Median
from trustmix.experiment.build import build_federation
from trustmix.federation import CLIENTS, METHODS, Distillation, Method, ServerContext, resolve_method
from trustmix.federation import method as method_module
from trustmix.federation.algorithm import LocalOnly, ServerAlgorithm
from trustmix.learners import OPTIMIZERS
from trustmix.methods import DSFL, FedMD
from trustmix.registry import Registry
from trustmix.report.palette import PALETTE
from trustmix.settings.builtin import builtin_recipes
from trustmix.settings.recipe import setting_names

ALL = METHODS.names()
BUILT_IN = [METHODS.get(name) for name in ALL]


def overrides(method: Method) -> list[str]:
    """The settings without which a recipe of the method is refused."""
    labels = ["wire.labels=set"] if method.needs_label_sets else []
    optimizer = [f"train.optimizer={method.optimizer}"] if method.optimizer else []
    return [f"rule={method.name}", *labels, *optimizer]


@pytest.mark.parametrize("name", ALL)
def test_the_fields_of_a_method_fit_together(name: str) -> None:
    method = METHODS.get(name)
    assert method.name == name
    assert method.label
    assert method.client in CLIENTS
    assert method.optimizer is None or method.optimizer in OPTIMIZERS
    made = {"predictions": method.aggregator, "weights": method.algorithm}
    assert {what for what, factory in made.items() if factory is not None} == {method.exchanges} - {"nothing"}
    assert method.one_architecture == (method.exchanges == "weights")
    assert method.exchanges == "predictions" or not (method.guardable or method.needs_label_sets)
    assert method.exchanges == "nothing" or not method.pooled_data


@pytest.mark.parametrize("method", [m for m in BUILT_IN if m.aggregator is not None], ids=lambda m: m.name)
def test_a_method_promises_what_its_aggregator_does(method: Method) -> None:
    aggregator = method.make_aggregator()
    assert aggregator.n_clients == 0
    assert aggregator.needs_label_sets == method.needs_label_sets
    assert (aggregator.tau if type(aggregator) is Accumulator else None) == method.tau


@pytest.mark.parametrize("method", [m for m in BUILT_IN if m.aggregator is None], ids=lambda m: m.name)
def test_a_method_without_a_rule_for_predictions_names_what_it_exchanges(method: Method) -> None:
    with pytest.raises(TrustmixError, match=rf"^{method.name} exchanges {method.exchanges}; it has no rule"):
        method.make_aggregator()


def test_the_server_of_a_method_is_its_own_algorithm_distillation_or_none(context: ServerContext) -> None:
    def made(name: str) -> ServerAlgorithm:
        return METHODS.get(name).make_algorithm(context)

    assert type(made("alone")) is type(made("reference")) is LocalOnly
    assert not made("alone").wants_uploads
    assert type(made("suwa")) is type(made("selective-fd")) is Distillation
    assert type(made("fedavg")).__name__ == "FedAvg"


def test_no_two_methods_share_a_label_or_a_colour() -> None:
    labels = Counter(method.label.lower() for method in BUILT_IN)
    colours = Counter(method.colour for method in BUILT_IN if method.colour is not None)
    assert max(labels.values()) == max(colours.values()) == 1
    assert all(isinstance(colour, int) and 0 <= colour < len(PALETTE) for colour in colours)


def test_every_setting_that_a_method_names_exists() -> None:
    for method in BUILT_IN:
        named = [*method.unread_settings(), *(setting for setting, _, _ in method.refuses)]
        assert set(named) <= set(setting_names()), method.name


class Own(tm.SumAggregator):
    """The plain mean."""

    label, colour, needs_label_sets = "my own", "#123456", True

    def terms(self, upload: tm.Upload) -> dict[str, torch.Tensor]:
        return {"total": upload.predictions.double()}

    def from_sums(self, sums: tm.aggregation.StateDict) -> tuple[torch.Tensor, torch.Tensor]:
        mean = sums["total"] / self.n_clients
        return mean, torch.full((len(mean),), 1 / self.n_clients)


MODULE = "method_test_rules"


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with rules of a user's own."""
    text = "from trustmix import Method\nfrom trustmix.aggregation import Median\n"
    text += "class Mine(Median):\n    label = 'mine'\n    colour = '#123456'\n"
    text += "instance, method = Mine(), Method('mine', 'Mine as a method', Mine, guardable=False)\n"
    text += "def function(): return Mine()\n"
    (tmp_path / f"{MODULE}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return MODULE


def test_a_rule_is_a_name_a_tau_or_a_method() -> None:
    assert resolve_method("median") is METHODS.get("median")
    method = METHODS.get("trust")
    assert resolve_method(method) is method
    for tau in (0, 0.4, 1, float("inf")):
        found = resolve_method(tau)
        aggregator = found.make_aggregator()
        assert isinstance(aggregator, Accumulator)
        assert (found.name, found.label, found.tau, aggregator.tau) == (f"tau={tau:g}", f"tau={tau:g}", tau, tau)


def test_a_rule_is_a_class_and_every_aggregator_of_it_is_new() -> None:
    method = resolve_method(Own)
    assert (method.name, method.label, method.colour, method.needs_label_sets) == ("Own", "my own", "#123456", True)
    assert type(method.make_aggregator()) is Own
    assert method.make_aggregator() is not method.make_aggregator()
    assert resolve_method(Median).label == "Median"


def test_a_rule_is_an_instance_whose_settings_stay_and_whose_uploads_are_forgotten() -> None:
    rule = Accumulator(tau=0.7)
    rule.update([[0.9, 0.1]])
    method = resolve_method(rule)
    assert (method.label, method.tau) == ("Accumulator", 0.7)
    assert method.make_aggregator() is rule
    assert rule.n_clients == 0
    assert resolve_method(DSFL()).tau is None  # it sharpens the average, which the theory is not about


def test_a_rule_is_a_reference_to_a_class_an_instance_or_a_method(own_module: str) -> None:
    by_class = resolve_method(f"{own_module}:Mine")
    assert (by_class.name, by_class.label, by_class.colour) == (f"{own_module}:Mine", "mine", "#123456")
    assert isinstance(by_class.make_aggregator(), Median)
    by_instance = resolve_method(f"{own_module}:instance")
    assert by_instance.make_aggregator() is by_instance.make_aggregator()
    by_method = resolve_method(f"{own_module}:method")
    assert (by_method.label, by_method.guardable) == ("Mine as a method", False)


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("suva", r'^There is no rule "suva"\. Did you mean "suwa"\? There are: alone, .*\.$'),
        (-0.5, r"^tau is -0\.5; it must be 0 or more\.$"),
        (float("nan"), r"^tau is nan; it must be 0 or more\.$"),
        (float("-inf"), r"^tau is -inf; it must be 0 or more\.$"),
        (None, r"^NoneType is no rule; it must be a subclass of trustmix\.aggregation\.Aggregator\.$"),
        (dict, r"^dict is no rule; it must be a subclass of .*\.$"),
        ([0.25], r"^list is no rule; it must be a subclass of .*\.$"),
        (torch.nn.Identity(), r"^Identity is no rule; it must be a subclass of .*\.$"),
        (tm.SumAggregator, r"^SumAggregator is no rule yet; it must implement from_sums, terms\.$"),
        ("no_such_module:Rule", r'^rule is "no_such_module:Rule", but no_such_module cannot be imported \(.*\)\.$'),
        (f"{MODULE}:Other", rf'^rule is "{MODULE}:Other", but {MODULE} has no Other\.$'),
        (f"{MODULE}:function", rf'^rule is "{MODULE}:function", which is no rule; it must be a subclass of .*\.$'),
        (f"{MODULE}:Method", r"^Method is no rule; it must be a subclass of .*\.$"),
        ("module:", r'^rule is "module:"; it must look like "package\.module:name"\.$'),
    ],
)
@pytest.mark.usefixtures("own_module")
def test_anything_else_is_refused_with_a_sentence(rule: object, sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        resolve_method(rule)  # type: ignore[arg-type]


def test_registering_a_name_again_from_the_same_module_replaces_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = Registry[Method]("rule")
    monkeypatch.setattr(method_module, "METHODS", methods)
    for label, rule in (("first", Median), ("second", FedMD)):
        methods.register("mine")(Method("mine", label, rule))
    assert resolve_method("mine").label == "second"
    assert isinstance(resolve_method("mine").make_aggregator(), FedMD)
    assert methods.names() == ["mine"]


WEIGHTS, NOTHING = "it exchanges weights", "it exchanges nothing"
AVERAGES = "the theory is about weighted averages of predictions"
UNREAD = [
    ("fedavg", "wire.up=uint8", WEIGHTS),
    ("fedavg", "wire.labels=set", WEIGHTS),
    ("fedavg", "attack.kind=flip", WEIGHTS),
    ("fedavg", "attack.share=0.3", WEIGHTS),
    ("fedavg", "privacy.epsilon=8", WEIGHTS),
    ("fedavg", "privacy.clip=2", WEIGHTS),
    ("scaffold", "guard.on=true", WEIGHTS),
    ("scaffold", "guard.cap=0.6", WEIGHTS),
    ("feddf", "student.name=mlp", WEIGHTS),
    ("alone", "density.kind=kernel", NOTHING),
    ("reference", "privacy.epsilon=8", NOTHING),
    ("trust", "theory.every=1", AVERAGES),
    ("fedmd", "theory.reference=labels", AVERAGES),
    ("median", "guard.on=true", "it is a defence itself"),
    ("selective-fd", "density.standardise=true", "its clients send scores of its own"),
    ("selective-fd", "privacy.mechanism=uploads", "its clients send scores of its own"),
]


@pytest.mark.parametrize(("rule", "change", "reason"), UNREAD)
def test_a_setting_that_a_method_does_not_read_is_refused_with_the_reason(rule: str, change: str, reason: str) -> None:
    setting = change.partition("=")[0]
    setting = setting if not setting.startswith("student") else "student"
    sentence = f'recipe "digits": rule: {setting} is not read by {rule}: {reason}; leave {setting} out.'
    with pytest.raises(TrustmixError) as refused:
        Recipe.load("digits", [*overrides(METHODS.get(rule)), change])
    assert str(refused.value) == sentence


@pytest.mark.parametrize("method", BUILT_IN, ids=lambda m: m.name)
def test_every_method_can_be_run_without_a_guard_and_with_defaults_written_out(method: Method) -> None:
    recipe = Recipe.load("digits", [*overrides(method), "guard.on=false"])
    assert "guard.on" in method.unread_settings() or not recipe.guard.on
    Recipe.load("digits", [*overrides(method), "wire.up=float32", "density.kind=gaussians", "wire.delta=false"])


@pytest.mark.parametrize("name", sorted(builtin_recipes()))
def test_every_built_in_recipe_takes_every_method_that_its_models_allow(name: str) -> None:
    one_architecture = len(Recipe.load(name).models) == 1
    for method in BUILT_IN:
        if one_architecture or not method.one_architecture:
            assert Recipe.load(name, overrides(method)).method == method


@pytest.mark.parametrize("method", BUILT_IN, ids=lambda m: m.name)
def test_a_recipe_is_written_without_what_its_method_does_not_read_and_reads_back_equal(
    method: Method, tmp_path: Path
) -> None:
    recipe = Recipe.load("digits", overrides(method))
    (tmp_path / "recipe.toml").write_text(recipe.toml())
    written = tomllib.loads(recipe.toml())
    settings = {f"{section}.{key}" for section, keys in written.items() if isinstance(keys, dict) for key in keys}
    assert not {*settings, *written} & set(method.unread_settings())
    assert {"train.lr", "split.kind", "clients"} <= {*settings, *written}
    assert Recipe.load(tmp_path / "recipe.toml") == recipe


def test_the_recipe_of_a_run_of_fedavg_reads_back_equal_and_can_be_run_again(tmp_path: Path) -> None:
    small = ["clients=5", "rounds=1", "split.samples_per_client=40", "public.samples=20", "train.first_epochs=1"]
    with build_federation(Recipe.load("digits", ["rule=fedavg", "engine.mode=sequential", *small])) as experiment:
        resolved = experiment.recipe
    tm.run(resolved, out=tmp_path / "run")
    stored = tmp_path / "run" / "recipe.toml"
    for section in ("wire", "guard", "attack", "theory", "privacy", "student"):
        assert section not in tomllib.loads(stored.read_text())
    assert Recipe.load(stored) == Recipe.load_stored(stored) == resolved
    again = tm.run(stored)
    first = tm.Round.from_json((tmp_path / "run" / "rounds.jsonl").read_text())
    assert [line.accuracy for line in again.rounds] == [first.accuracy]


@pytest.fixture
def context() -> ServerContext:
    public = tm.Public(torch.rand(4, 3), classes=2)
    x, y = torch.rand(10, 3), torch.arange(10) % 2
    client = tm.Client.from_arrays("0", linear, x, y, public=public)
    return ServerContext(tm.LocalEngine([client]), public, student=client)


def linear() -> torch.nn.Module:
    return torch.nn.Linear(3, 2)

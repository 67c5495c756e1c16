"""Recipes: what is written is what runs, and what is wrong is said by its key."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from trustmix import Recipe, TrustmixError
from trustmix.settings.builtin import builtin_recipes


@pytest.mark.parametrize("name", sorted(builtin_recipes()))
def test_built_in_recipes_are_valid_and_survive_being_written_out(name: str, tmp_path: Path) -> None:
    recipe = Recipe.load(name)
    (tmp_path / "again.toml").write_text(recipe.toml())
    assert Recipe.load(tmp_path / "again.toml") == recipe
    assert builtin_recipes()[name].endswith(".")


def test_lists_of_models_own_functions_and_taus_survive_being_written_out(tmp_path: Path) -> None:
    models = [
        {"name": "mlp", "hidden": [8, 9]},
        {"source": "my.models:build", "text": 'a "quoted" \\ word', "folder": "\U0001f600\x7f", "on": True},
    ]
    fields = {"data": {"source": "my.data:load"}, "model": models, "rule": {"tau": float("inf")}}
    recipe = Recipe.load(fields)
    (tmp_path / "again.toml").write_text(recipe.toml())
    assert Recipe.load(tmp_path / "again.toml") == recipe
    assert tomllib.loads(recipe.toml())["model"][1]["text"] == 'a "quoted" \\ word'


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("clients=7", ("clients",), 7),
        ("attack.kind=nan", ("attack", "kind"), "nan"),
        ("rule=uwa", ("rule",), "uwa"),
        ("rule={tau=0.5}", ("rule", "tau"), 0.5),
        ("rule.tau=0.5", ("rule", "tau"), 0.5),
        ("train.lr=1e-4", ("train", "lr"), 1e-4),
        ("split.kind=dirichlet", ("split", "kind"), "dirichlet"),
        ("model.hidden=[3,4]", ("model", "hidden"), [3, 4]),
        ("train.keep_optimizer=false", ("train", "keep_optimizer"), False),
        ("participation.deadline = 2.5", ("participation", "deadline"), 2.5),
    ],
)
def test_overrides_reach_their_setting(override: str, path: tuple[str, ...], value: Any) -> None:
    found: Any = Recipe.load("demo", [override])
    for key in path:
        found = getattr(found, key)
    assert found == value


def test_an_option_given_before_the_name_it_belongs_to_is_kept() -> None:
    assert Recipe.load("demo", ["model.width=8", "model.name=cnn"]).models[0].model_extra == {"width": 8}


def test_another_model_name_leaves_the_old_models_options_behind() -> None:
    assert Recipe.load("demo", ["model.name=cnn"]).models[0].model_extra == {}
    assert Recipe.load("demo", ["model.name=mlp"]).models[0].model_extra == {"hidden": [64]}


def test_a_source_of_ones_own_takes_the_place_of_a_name_with_its_options() -> None:
    model = Recipe.load("demo", ["model.width=8", "model.source=my_model:wide"]).models[0]
    assert (model.name, model.source, model.model_extra) == (None, "my_model:wide", {"width": 8})
    again = Recipe.load(Recipe.load("demo", ["model.source=my_model:wide"]), ["model.name=mlp"]).models[0]
    assert (again.name, again.source, again.model_extra) == ("mlp", None, {})


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("splt.kind=classes", r'no setting "splt" in the top level\. Did you mean "split"\?'),
        (
            "split.clases_per_client=3",
            r'no setting "clases_per_client" in \[split\]\. Did you mean "classes_per_client"\?',
        ),
        ("classes_per_client=3", r"Did you mean split\.classes_per_client\?"),
        ("zzz=3", r'no setting "zzz" in the top level\. There are: clients'),
        ("rule=suva", r'rule: there is no rule "suva"\. Did you mean "suwa"\? There are: .*alone.*\.$'),
        ("rule.tau=-1", r"rule\.tau: input should be greater than or equal to 0 \(given: -1\)\."),
        ("rule.taw=1", r"rule\.tau: field required"),
        ("clients=0", r"clients: input should be greater than or equal to 1 \(given: 0\)\."),
        ("clients=many", r"clients: .*valid integer.*\(given: 'many'\)\."),
        (
            "engine.cpus=2",
            r'engine: cpus is no setting of "local", which has mode, precision, device, workers and store\.',
        ),
        ("engine.name=rey", r'engine\.name: there is no engine "rey"\. Did you mean "ray"\?'),
        ("public.samples=0", r"public\.samples: .*\(given: 0\)\."),
        ("split.kind=iid", r"split\.kind: input should be 'classes', .* or 'column' \(given: 'iid'\)\."),
        ("data.name=cifra10", r'data: there is no data set "cifra10"'),
        ("data={source='a.b:c', path='x'}", r"data: path goes with name"),
        ("data={name='digits', source='a.b:c'}", r"data: give either name or source\."),
        ("model.name=mpl", r'model: there is no model "mpl"\. Did you mean "mlp"\?'),
        ("model=[]", r"model: the list of models is empty\."),
        ("train.optimizer=adm", r'train\.optimizer: there is no optimizer "adm"'),
        ("train.public_epochs=0", r"train\.public_epochs: it is 0; give a number of epochs, 1 or more, or auto\."),
        (
            "train.public_epochs=often",
            r"train\.public_epochs: it is 'often'; give a number of epochs, 1 or more, or auto",
        ),
        ("wire.up=float8", r'wire\.up: there is no codec "float8"'),
        ("wire={form='density', up='uint4'}", r"wire: the form density sends logits: up must be float32 or float16"),
        ("wire={form='density', delta=true}", r"wire: the form density sends logits: .* and delta false"),
        ("engine.device=gpu", r"engine\.device: input should be 'auto', 'cpu', 'cuda' or 'mps' \(given: 'gpu'\)\."),
        ("engine.name=cloud", r'engine\.name: there is no engine "cloud"'),
        ("participation.fraction=1.5", r"participation\.fraction: .* less than or equal to 1 \(given: 1\.5\)\."),
        ("density.holdout=1", r"density\.holdout: .*less than 1"),
        ("density.kind=kernels", r'density\.kind: there is no density "kernels"\. Did you mean "kernel"\?'),
        ("density.refresh=0", r"density\.refresh: the number of rounds .* must be at least 1"),
        ("density.refresh=never", r"density\.refresh"),
        ("density={kind='energy', refresh='once'}", r"density: energy .* has no fit to keep; leave refresh out"),
        ("density={kind='discriminator', refresh=2}", r"density: .*refresh must be once, or left out"),
        (
            "density={kind='discriminator', calibration='augmented'}",
            r"density: .* leave calibration out",
        ),
        ("rounds", r'--set takes key=value.*not "rounds"\.'),
        ("=3", r'--set takes key=value.*not "=3"\.'),
    ],
)
def test_a_wrong_setting_is_one_sentence_with_its_key(override: str, sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence) as caught:
        Recipe.load("demo", [override])
    assert "\n" not in str(caught.value)


def test_a_rule_brings_its_density_unless_the_recipe_names_one() -> None:
    chosen = Recipe.load("fashion")
    assert (chosen.rule, chosen.density.kind) == ("trust", "ratio")
    paper = Recipe.load(chosen, ["rule=suwa"])
    assert (paper.rule, paper.density.kind) == ("suwa", "gaussians")
    assert Recipe.load(paper, ["rule=trust"]).density.kind == "ratio"
    assert Recipe.load("fashion", ["rule=uwa", "density.kind=ratio"]).density.kind == "ratio"
    assert Recipe.load(Recipe.load("fashion", ["density.kind=energy"]), ["rule=uwa"]).density.kind == "energy"
    assert 'kind = "ratio"' in chosen.resolved_toml()


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (["wire.form=density"], r"wire\.form = density sends no scores to keep; leave density\.refresh out"),
        (["theory.every=1"], r"theory\.every measures scores of each round's models; leave density\.refresh out"),
        (["privacy={epsilon=8, mechanism='uploads'}"], r"sends no scores to keep; leave density\.refresh"),
        (["rule=fedavg"], r"density\.refresh is not read by fedavg: it exchanges weights; leave density\.refresh out"),
        (["rule=selective-fd"], r"density\.refresh is not read by selective-fd: its clients send scores of its own"),
    ],
)
def test_scores_that_are_not_sent_cannot_be_kept(other: list[str], sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        Recipe.load("demo", ["density.refresh=once", *other])


def test_discriminators_are_trained_once_and_without_the_noise_of_privacy() -> None:
    recipe = Recipe.load("demo", ["density.kind=discriminator"])
    assert recipe.density.refresh == "once"
    assert Recipe.load(recipe).density == recipe.density
    with pytest.raises(TrustmixError, match=r"discriminator is trained without the noise of \[privacy\]"):
        Recipe.load("demo", ["density.kind=discriminator", "privacy.epsilon=8"])


def test_a_private_ratio_is_paid_for_and_released_once() -> None:
    private = ["privacy.epsilon=8", "privacy.ratio=0.25"]
    assert Recipe.load("demo", [*private, "density.kind=ratio", "density.refresh=once"]).privacy.ratio == 0.25
    with pytest.raises(TrustmixError, match=r"privacy\.ratio pays for one density ratio; set density\.refresh = once"):
        Recipe.load("demo", [*private, "density.kind=ratio"])
    for other in ("density.kind=gaussians", "privacy.mechanism=uploads"):
        with pytest.raises(TrustmixError, match=r"privacy\.ratio pays for density\.kind = ratio with privacy"):
            Recipe.load("demo", [*private, other])


@pytest.mark.parametrize("other", ["density.kind=kernel", "density.standardise=true"])
def test_the_form_density_sends_the_papers_density_and_no_other(other: str) -> None:
    with pytest.raises(TrustmixError, match=r"wire\.form = density sends the Gaussians .* set wire\.form = scores"):
        Recipe.load("demo", ["wire.form=density", other])


def test_a_recipe_that_cannot_be_found_or_read_is_explained(tmp_path: Path) -> None:
    with pytest.raises(TrustmixError, match=r'no recipe "fashoin".*Did you mean "fashion"'):
        Recipe.load("fashoin")
    (tmp_path / "photo.png").write_bytes(bytes(range(128, 256)))
    with pytest.raises(TrustmixError, match=r"photo\.png is not a TOML file"):
        Recipe.load(tmp_path / "photo.png")
    (tmp_path / "broken.toml").write_text("clients = = 3")
    with pytest.raises(TrustmixError, match=r"broken\.toml is not valid TOML"):
        Recipe.load(tmp_path / "broken.toml")
    (tmp_path / "no_data.toml").write_text("clients = 3")
    with pytest.raises(TrustmixError, match=r"no_data\.toml: data: field required"):
        Recipe.load(tmp_path / "no_data.toml")


def test_feddf_distils_at_the_server_which_has_no_agreement_to_go_by() -> None:
    assert Recipe.load("demo", ["train.public_epochs=auto"]).train.public_epochs == "auto"
    with pytest.raises(TrustmixError, match=r"feddf does not go with train\.public_epochs = auto: .*; give a number"):
        Recipe.load("demo", ["rule=feddf", "train.public_epochs=auto"])


def test_mixed_batches_are_refused_where_private_gradients_get_noise() -> None:
    sentence = r"train\.stages = mixed has in one batch with public ones; set train\.stages = two"
    with pytest.raises(TrustmixError, match=sentence):
        Recipe.load("demo", ["train.stages=mixed", "privacy.epsilon=8"])
    Recipe.load("demo", ["train.stages=mixed", "privacy.epsilon=50", "privacy.mechanism=uploads"])


@pytest.mark.parametrize("rule", ["alone", "fedavg", "trust"])
def test_how_clients_distil_may_stay_in_a_recipe_whose_rule_has_no_teacher(rule: str) -> None:
    settings = ["train.stages=mixed", "train.public_epochs=3", f"rule={rule}"]
    assert Recipe.load("demo", settings).train.stages == "mixed"


@pytest.mark.parametrize("other", ["density.calibration=private", "privacy.epsilon=8"])
def test_a_temperature_is_fitted_on_held_out_samples_alone(other: str) -> None:
    with pytest.raises(TrustmixError, match=r"train\.calibrate fits a temperature on held-out samples"):
        Recipe.load("demo", ["train.calibrate=true", other])

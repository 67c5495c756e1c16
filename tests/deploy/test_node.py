"""A node's own data and model: read, matched with the server's description of the run, or refused in one sentence."""

import tomllib
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from trustmix.cli import app
from trustmix.data import load
from trustmix.deploy.node import NodeConfig, build_node_client
from trustmix.deploy.node_data import load_node_data
from trustmix.deploy.node_policy import LABELS, WEIGHT_CLIENTS
from trustmix.deploy.run_info import RunInfo
from trustmix.errors import TrustmixError
from trustmix.experiment.build import build_federation
from trustmix.federation import METHODS, LabelSharing, Public, Request
from trustmix.settings.recipe import Recipe
from trustmix.transport.refusal import CLASSES, DATA, INPUTS, MESSAGE, MODEL, PATHS, NodeRefusal, not_allowed
from trustmix.wire import decode_upload

TABLE = "age,pressure,diagnosis\n" + "".join(f"{30 + i},{i % 7},{'ill' if i % 3 else 'healthy'}\n" for i in range(60))
PUBLIC = Public(torch.rand(20, 2), classes=3)


def write_node(folder: Path, text: str, data: str = TABLE) -> NodeConfig:
    (folder / "patients.csv").write_text(data)
    (folder / "node.toml").write_text(text)
    return NodeConfig.load(folder / "node.toml")


def run_info(**changes: object) -> RunInfo:
    recipe = Recipe.load("demo", ["train.first_epochs=1", "model.hidden=[4]"])
    info = RunInfo(
        run="0123456789abcdef",
        fingerprint=PUBLIC.fingerprint,
        recipe=recipe.client_toml(),
        client="distillation",
        classes=["other", "ill", "healthy"],
        mean=[0.0],
        std=[1.0],
    )
    return info.model_copy(update=changes)


OWN = 'id = "north"\ndata = "patients.csv"\nlabel = "diagnosis"\n'


def test_a_node_with_a_table_answers_with_the_servers_classes_and_its_own_model(tmp_path: Path) -> None:
    client = build_node_client(write_node(tmp_path, OWN), run_info(), PUBLIC, tmp_path / "states")
    assert set(client.private.labels.tolist()) == {1, 2}
    assert len(client.private) + len(client.calibration) == 48
    assert client.test is not None
    assert len(client.test) == 12
    reply = client.step(Request(1))
    upload = decode_upload(reply.payload or b"", PUBLIC.header("north", 1))
    assert upload.predictions.shape == (20, 3)
    assert list((tmp_path / "states").glob("*.safetensors"))


def test_features_are_taken_in_the_servers_order(tmp_path: Path) -> None:
    client = build_node_client(
        write_node(tmp_path, OWN), run_info(columns=["pressure", "age"]), PUBLIC, tmp_path / "states"
    )
    assert float(client.private.inputs[:, 0].max()) <= 6
    assert float(client.private.inputs[:, 1].min()) >= 30


def test_with_test_0_no_sample_is_kept_to_measure_accuracy(tmp_path: Path) -> None:
    client = build_node_client(write_node(tmp_path, OWN + "test = 0\n"), run_info(), PUBLIC, tmp_path / "states")
    assert client.test is None
    assert len(client.private) + len(client.calibration) == 60


def test_numbers_of_an_npz_file_count_the_servers_classes(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).random((30, 2), np.float32), np.array([0, 2] * 15)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y)
    node = write_node(tmp_path, 'id = "north"\ndata = "own.npz"\n')
    assert load_node_data(node).class_counts() == {"0": 12, "2": 12}
    client = build_node_client(node, run_info(), PUBLIC, tmp_path / "states")
    assert set(client.private.labels.tolist()) == {0, 2}


def test_a_share_is_the_client_of_the_recipes_own_split(tmp_path: Path) -> None:
    recipe = Recipe.load("demo", ["clients=3", "split.classes_per_client=4", "engine.mode=sequential"])
    experiment = build_federation(recipe)
    local = experiment.clients[2]
    node = write_node(tmp_path, "share = 2\n")
    ours = build_node_client(
        node, run_info(recipe=recipe.client_toml()), experiment.federation.context.public, tmp_path / "states"
    )
    assert ours.id == local.id == "2"
    assert torch.equal(ours.private.inputs, local.private.inputs)
    assert all(torch.equal(a, b) for a, b in zip(ours.model().parameters(), local.model().parameters(), strict=True))
    with pytest.raises(TrustmixError, match="give another public set than the server's"):
        build_node_client(node, run_info(recipe=recipe.client_toml()), PUBLIC, tmp_path / "states")


MODEL_CODE = "import torch\n\ndef build(shape, classes):\n    return torch.nn.Linear(shape[0], classes)\n"


def test_a_model_of_the_nodes_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "house_models.py").write_text(MODEL_CODE)
    monkeypatch.chdir(tmp_path)
    node = write_node(tmp_path, OWN + 'model = "house_models:build"\n')
    client = build_node_client(node, run_info(), PUBLIC, tmp_path / "states")
    assert isinstance(client.model(), torch.nn.Linear)


@pytest.mark.parametrize(
    ("text", "changes", "complaint"),
    [
        (OWN, {"classes": ["healthy", "sick"]}, 'has the class "ill", which the server does not know'),
        (OWN + 'columns = ["age"]\n', {}, r"Inputs here are \(1,\) .*those of the public set \(2,\)"),
        (OWN.replace("diagnosis", "result"), {}, 'has no column "result"'),
        (OWN + 'colour = "red"\n', {}, 'The data set "table" has no setting "colour"'),
        (OWN + 'model = "resnet999"\n', {}, 'no model "resnet999"'),
        (OWN.replace("patients", "missing"), {}, "There is no .*missing.csv"),
        ("share = 99\n", {}, "share is 99, but the recipe splits its data among 20 clients"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    tmp_path: Path, text: str, changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(TrustmixError, match=complaint):
        build_node_client(write_node(tmp_path, text), run_info(**changes), PUBLIC, tmp_path / "states")


def test_a_node_runs_no_function_that_the_server_names(tmp_path: Path) -> None:
    recipe = Recipe.load({"data": {"name": "digits"}, "model": {"source": "os:system"}})
    with pytest.raises(TrustmixError, match="set model in the node's file"):
        build_node_client(write_node(tmp_path, OWN), run_info(recipe=recipe.client_toml()), PUBLIC, tmp_path / "states")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('id = "north"\n', "give one of share, data and source"),
        ('data = "x.csv"\n', "give an id"),
        ('share = 1\nlabel = "x"\n', "label goes with data"),
        ("share = -1\n", "share: input should be greater"),
        ("share = [", "is not valid TOML"),
        (OWN + 'path = "x"\n', "path goes with share"),
        (OWN + '[allow]\nlabels = "all"\n', "allow.labels: "),
        (OWN + "[allow]\ndisc = 3\n", "disc"),
    ],
)
def test_a_file_that_is_not_a_nodes_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(TrustmixError, match=complaint):
        write_node(tmp_path, text)


def test_check_prints_classes_and_counts(tmp_path: Path) -> None:
    write_node(tmp_path, OWN)
    result = CliRunner().invoke(app, ["check", str(tmp_path / "node.toml")])
    assert result.exit_code == 0, result.output
    assert "48 samples to train on, 12 to test" in result.output
    assert "ill: 32" in result.output


def test_check_refuses_with_exit_code_2(tmp_path: Path) -> None:
    write_node(tmp_path, OWN, TABLE + "n/a,3,ill\n")
    result = CliRunner().invoke(app, ["check", str(tmp_path / "node.toml")])
    assert result.exit_code == 2
    assert 'row 61: "n/a" in column "age" is no number' in result.output.replace("\n", "")


def test_check_takes_settings_for_a_servers_recipe_and_refuses_them_for_a_nodes_file(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["check", "demo", "--set", "rounds=3", "--set", "public.samples=50"])
    assert (shown.exit_code, "Server: 50 public samples" in shown.output) == (0, True), shown.output
    assert "in each of 3 rounds" in shown.output
    file = tmp_path / "node.toml"
    file.write_text("share = 0\n")
    refused = CliRunner().invoke(app, ["check", str(file), "--set", "rounds=3"])
    assert refused.exit_code == 2
    assert "is a node's file" in " ".join(refused.output.split())


def test_a_server_makes_a_node_import_neither_a_rule_nor_a_function(tmp_path: Path) -> None:
    recipe = Recipe.load("demo", ["clients=3", "split.classes_per_client=4", "engine.mode=sequential"])
    public = build_federation(recipe).federation.context.public
    text = 'rule = "no_such_module:Rule"\n' + recipe.client_toml()
    for kind in ("", "distillation"):
        node = write_node(tmp_path, "share = 2\n")
        if kind:
            build_node_client(node, run_info(recipe=text, client=kind), public, tmp_path / "states")
        else:
            with pytest.raises(TrustmixError, match='no kind of client ""'):
                build_node_client(node, run_info(recipe=text, client=kind), public, tmp_path / "states")


@pytest.mark.parametrize(
    ("recipe", "advice"),
    [
        ('[data]\nsource = "subprocess:check_output"\n', "set path in the node's file"),
        ('[data]\nname = "npz"\npath = "/etc/secrets.npz"\n', "set path in the node's file"),
        ('[data]\nname = "yahoo"\ntokenizer = "/home/ann"\n', "set path in the node's file"),
        ('[data]\nname = "digits"\n[public]\ndata = "npz"\npath = "/etc/x.npz"\n', "use built-in public data"),
        ('[data]\nname = "digits"\n[model]\nsource = "no:model"\n', "set model in the node's file"),
        ('[data]\nname = "digits"\n[model]\nname = "resnet18"\nweights = "/etc/x"\n', "set model in the node's file"),
        ('[data]\nname = "digits"\n[[model]]\nname = "bert-tiny"\nweights = "x"\n', "set model in the node's file"),
        ('[data]\nname = "digits"\n[density]\nkind = "no:Density"\n', "set density in the node's file"),
    ],
)
def test_a_path_or_a_source_of_the_server_is_never_followed(tmp_path: Path, recipe: str, advice: str) -> None:
    with pytest.raises(NodeRefusal, match=advice) as refusal:
        build_node_client(write_node(tmp_path, "share = 2\n"), run_info(recipe=recipe), PUBLIC, tmp_path / "states")
    assert refusal.value.reason == PATHS


def test_paths_of_the_servers_data_are_nothing_to_a_node_with_data_of_its_own(tmp_path: Path) -> None:
    text = '[data]\nname = "npz"\npath = "/srv/x.npz"\n[public]\ndata = "npz"\npath = "/srv/y.npz"\n'
    node = write_node(tmp_path, OWN)
    assert build_node_client(node, run_info(recipe=text), PUBLIC, tmp_path / "states").id == "north"


def test_a_share_of_files_is_read_where_the_nodes_own_file_states(tmp_path: Path) -> None:
    data = load("digits")
    np.savez(
        tmp_path / "digits.npz",
        x_train=data.train.inputs.numpy(),
        y_train=data.train.labels.numpy(),
        x_test=data.test.inputs.numpy(),
        y_test=data.test.labels.numpy(),
    )
    settings = ["clients=3", "split.classes_per_client=4", "split.samples_per_client=100", "public.samples=50"]
    here = Recipe.load(
        {"data": {"name": "npz", "path": str(tmp_path / "digits.npz")}}, [*settings, "engine.mode=sequential"]
    )
    public = build_federation(here).federation.context.public
    there = here.client_toml().replace(str(tmp_path), "/nowhere")
    node = write_node(tmp_path, 'share = 1\npath = "digits.npz"\n')
    assert build_node_client(node, run_info(recipe=there), public, tmp_path / "states").id == "1"


@pytest.mark.parametrize(
    ("own", "settings", "kind", "setting"),
    [
        ("epsilon = 4\n", ["privacy.epsilon=8"], "distillation", "privacy.epsilon"),
        ("epsilon = 4\n", [], "distillation", "privacy.epsilon"),
        ("", ["privacy.epsilon=8", "privacy.delta=1e-3"], "distillation", "privacy.delta"),
        ("", ["wire.labels=set"], "distillation", "wire.labels"),
        ('[allow]\nlabels = "set"\n', ["wire.labels=counts"], "distillation", "wire.labels"),
        ("", ["wire.form=density"], "distillation", "wire.form"),
        ("", [], "weights", "rule"),
        ("", [], "scaffold", "rule"),
    ],
)
def test_a_node_lets_no_more_out_than_its_own_file_allows(
    tmp_path: Path, own: str, settings: list[str], kind: str, setting: str
) -> None:
    recipe = Recipe.load("demo", ["model.hidden=[4]", *settings])
    node = write_node(tmp_path, OWN + own)
    with pytest.raises(NodeRefusal, match="in the node's file") as refusal:
        build_node_client(node, run_info(recipe=recipe.client_toml(), client=kind), PUBLIC, tmp_path / "states")
    assert refusal.value.reason == not_allowed(setting)


def test_what_a_nodes_own_file_allows_may_leave_it(tmp_path: Path) -> None:
    recipe = Recipe.load("demo", ["model.hidden=[4]", "wire.labels=set", "wire.form=density"])
    node = write_node(tmp_path, OWN + '[allow]\nlabels = "counts"\nform = "density"\nweights = true\n')
    for kind in ("distillation", "weights"):
        build_node_client(node, run_info(recipe=recipe.client_toml(), client=kind), PUBLIC, tmp_path / "states")


def test_labels_that_the_server_infers_need_no_permission(tmp_path: Path) -> None:
    recipe = Recipe.load("demo", ["model.hidden=[4]", "wire.labels=inferred"])
    info = run_info(recipe=recipe.client_toml())
    assert build_node_client(write_node(tmp_path, OWN), info, PUBLIC, tmp_path / "states").labels == "inferred"


def test_every_way_to_share_labels_has_its_place() -> None:
    assert set(LABELS) == set(get_args(LabelSharing))


def test_weights_are_sent_by_every_kind_of_client_that_a_file_can_refuse() -> None:
    methods = [METHODS.get(name) for name in METHODS.names()]
    assert {method.client for method in methods if method.exchanges == "weights"} == {*WEIGHT_CLIENTS}


def test_a_server_gets_no_column_that_the_nodes_own_file_does_not_list(tmp_path: Path) -> None:
    node = write_node(tmp_path, OWN + 'columns = ["age", "pressure"]\n')
    asked = run_info(columns=["pressure", "age"])
    client = build_node_client(node, asked, PUBLIC, tmp_path / "states")
    assert float(client.private.inputs[:, 0].max()) <= 6, "the order is the server's"
    node = write_node(tmp_path, OWN + 'columns = ["age"]\n')
    with pytest.raises(NodeRefusal, match='the column "pressure", which columns in the node\'s file does not list'):
        build_node_client(node, asked, PUBLIC, tmp_path / "states")


@pytest.mark.parametrize(
    ("text", "changes", "reason"),
    [
        (OWN, {"classes": ["healthy", "sick"]}, CLASSES),
        (OWN + 'columns = ["age"]\n', {}, INPUTS),
        (OWN.replace("diagnosis", "result"), {}, DATA),
        (OWN + 'model = "no_such_module:build"\n', {}, MODEL),
        (OWN, {"recipe": "clients = ["}, MESSAGE),
        (OWN, {"recipe": "data = 3\nclients = 0"}, MESSAGE),
        ("share = 0\n", {"recipe": "data = 3"}, MESSAGE),
    ],
)
def test_the_reason_for_the_server_quotes_nothing_of_the_node(
    tmp_path: Path, text: str, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(NodeRefusal) as refusal:
        build_node_client(write_node(tmp_path, text), run_info(**changes), PUBLIC, tmp_path / "states")
    assert refusal.value.reason == reason


def test_a_promise_of_privacy_is_not_kept_by_a_client_that_sends_weights(tmp_path: Path) -> None:
    recipe = Recipe.load("demo", ["clients=3", "split.classes_per_client=4", "privacy.epsilon=8"])
    public = build_federation(Recipe.load(recipe, ["engine.mode=sequential"])).federation.context.public
    with pytest.raises(TrustmixError, match="a client of kind weights sends other things"):
        build_node_client(
            write_node(tmp_path, "share = 2\n[allow]\nweights = true\n"),
            run_info(recipe=recipe.client_toml(), client="weights"),
            public,
            tmp_path / "states",
        )


def test_the_servers_own_settings_do_not_reach_a_node() -> None:
    recipe = Recipe.load("demo", ["rule={ tau = 0.4 }", "wire.labels=set", "theory.every=1", "participation.quorum=1"])
    again = Recipe.load(tomllib.loads(recipe.client_toml()))
    assert again.theory.every is None
    assert again.participation.quorum == 0.5


def private_run(run: str = "0123456789abcdef", *changes: str) -> RunInfo:
    settings = ["train.first_epochs=1", "model.hidden=[4]", "privacy.epsilon=8", "rounds=3", *changes]
    return run_info(run=run, recipe=Recipe.load("demo", settings).client_toml())


def test_the_ledger_of_a_nodes_data_outlives_its_state_and_its_runs(tmp_path: Path) -> None:
    node = write_node(tmp_path, OWN)
    client = build_node_client(node, private_run(), PUBLIC, tmp_path / "a")
    replies = [client.step(Request(number)) for number in (1, 2, 3)]
    spent = replies[-1].epsilon or 0
    assert 7.9 < spent <= 8
    again = build_node_client(node, private_run(), PUBLIC, tmp_path / "lost")
    assert again.step(Request(3)).payload == replies[-1].payload
    with pytest.raises(TrustmixError, match=r"have spent epsilon 7.99 .* would bring it to .*, and 8 is promised"):
        build_node_client(node, private_run("f" * 16), PUBLIC, tmp_path / "b")
    renamed = write_node(tmp_path, OWN.replace("north", "south"))
    with pytest.raises(TrustmixError, match="these data have spent"):
        build_node_client(renamed, private_run("f" * 16), PUBLIC, tmp_path / "b")
    with pytest.raises(TrustmixError, match=r"the server's recipe has no \[privacy\]"):
        build_node_client(node, run_info(run="f" * 16), PUBLIC, tmp_path / "b")


def test_a_nodes_file_bounds_what_all_runs_together_may_spend(tmp_path: Path) -> None:
    node = write_node(tmp_path, OWN + "epsilon = 13\n")
    for run in ("0" * 16, "1" * 16):
        client = build_node_client(node, private_run(run), PUBLIC, tmp_path / run)
        reply = [client.step(Request(number)) for number in (1, 2, 3)][-1]
    assert 8 < (reply.epsilon or 0) < 13
    with pytest.raises(TrustmixError, match="and 13 is promised"):
        build_node_client(node, private_run("2" * 16), PUBLIC, tmp_path / "2")
    with pytest.raises(TrustmixError, match=r"has no privacy\.epsilon; epsilon = 13"):
        build_node_client(write_node(tmp_path, OWN + "epsilon = 13\n"), run_info(), PUBLIC, tmp_path / "3")
    with pytest.raises(TrustmixError, match="epsilon"):
        write_node(tmp_path, OWN + "epsilon = 0\n")


def test_under_a_promise_no_figure_of_a_nodes_own_test_records_leaves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    client = build_node_client(write_node(tmp_path, OWN), private_run(), PUBLIC, tmp_path / "states")
    assert client.test is not None
    replies = [client.step(Request(number)) for number in (1, 2)]
    for reply in [*replies, client.step(Request(3, train=False))]:
        assert (reply.accuracy, reply.local_accuracy, reply.nll, reply.ece) == (None, None, None, None)
    assert "accuracy after round 1" in caplog.text
    (tmp_path / "other").mkdir()
    open_ = build_node_client(write_node(tmp_path / "other", OWN), run_info(), PUBLIC, tmp_path / "open")
    assert open_.step(Request(1)).local_accuracy is not None

"""The model that a node has after a run: exported, loaded and used without the server."""

import csv
import json
from pathlib import Path

import pytest
import torch
import transformers
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

import trustmix as tm
from trustmix.cli import app
from trustmix.deploy.node import NodeConfig
from trustmix.deploy.node_data import load_node_data
from trustmix.deploy.run_info import RunInfo
from trustmix.deploy.supernode import make_handler
from trustmix.experiment.predict import predict
from trustmix.federation import Public
from trustmix.settings.recipe import Recipe
from trustmix.transport.flower_records import unpack_record
from trustmix.wire import encode_public_set, encode_teacher

from ..transport.flower_messages import make_message

RUN, NEXT_RUN = "0123456789abcdef", "fedcba9876543210"
CLASSES = ["other", "ill", "healthy"]
PUBLIC = Public(torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), classes=3)
LONG = ["rounds=2", "model.hidden=[8]", "train.public_epochs=100"]
OWN = 'id = "north"\ndata = "patients.csv"\nlabel = "diagnosis"\n'


def write_node(folder: Path, text: str = OWN) -> NodeConfig:
    numbers = torch.randn(150, 2, generator=torch.Generator().manual_seed(1)).tolist()
    rows = [[f"{a:.4f}", f"{b:.4f}", "ill" if a + b > 0 else "healthy"] for a, b in numbers]
    write_csv(folder / "patients.csv", ["pressure", "age", "diagnosis"], rows)
    (folder / "node.toml").write_text(text)
    return NodeConfig.load(folder / "node.toml")


def write_csv(file: Path, header: list[str], rows: list[list[str]]) -> None:
    with open(file, "w", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])


def run_info(run: str = RUN, public: Public = PUBLIC, **changes: object) -> RunInfo:
    recipe = Recipe.load("demo", ["rounds=2", "train.first_epochs=3", "model.hidden=[8]"])
    columns = ["age", "pressure"]
    info = RunInfo(
        run=run,
        fingerprint=public.fingerprint,
        recipe=recipe.client_toml(),
        classes=CLASSES,
        mean=[0.0],
        std=[1.0],
        columns=columns,
    )
    return info.model_copy(update=changes)


def play(
    node: NodeConfig, info: RunInfo, public: Public = PUBLIC, *, close: bool = True, teacher: torch.Tensor | None = None
) -> list[dict[str, object]]:
    """What a node answers to the messages of a run of two rounds, with or without the closing one."""
    handler, found = make_handler(node), []
    if teacher is None:
        teacher = torch.full((len(public.inputs), public.classes), 1 / public.classes)
    teachers = [teacher] * 2
    messages = [encode_teacher(t, public.header("server", r), "float32") for r, t in enumerate(teachers, 1)]
    requests: list[tuple[str, dict[str, object], bytes | None]] = [
        ("query.hello", info.model_dump(), None),
        ("query.public", {"run": info.run}, encode_public_set(public.inputs)),
        ("train", {"run": info.run, "round": 1, "train": True, "upload": True}, None),
        ("train", {"run": info.run, "round": 2, "train": True, "upload": True}, messages[0]),
        ("train", {"run": info.run, "round": 3, "train": False, "upload": False}, messages[1]),
    ]
    for request in requests if close else requests[:-1]:
        facts, _ = unpack_record(handler.handle(make_message(*request)).content)
        assert "failure" not in facts, facts
        found.append(facts)
    return found


def write_test_rows(node: NodeConfig, file: Path) -> None:
    """The rows that the node keeps to measure accuracy, with the columns in another order."""
    own = load_node_data(node).test
    assert own is not None
    names = load_node_data(node).class_names
    rows = [
        [names[label], *map(repr, row)] for row, label in zip(own.inputs.tolist(), own.labels.tolist(), strict=True)
    ]
    write_csv(file, ["diagnosis", "pressure", "age"], rows)


def test_at_the_end_of_a_run_the_node_predicts_with_the_model_whose_accuracy_was_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trustmix")
    node = write_node(tmp_path)
    recorded = play(node, run_info())[-1]["accuracy"]
    write_test_rows(node, tmp_path / "new.csv")
    folder = tmp_path / "north-model"
    assert predict(folder, tmp_path / "new.csv").accuracy == pytest.approx(recorded)
    assert tm.load_model(folder)(torch.zeros(5, 2)).shape == (5, 3)
    card = json.loads((folder / "card.json").read_text())
    measured = {name: card["test"][name] for name in ("samples", "accuracy", "of_recipe")}
    assert measured == {"samples": 30, "accuracy": pytest.approx(recorded), "of_recipe": False}
    assert (card["client"], card["round"], card["finished"], card["classes"]) == ("north", 2, True, CLASSES)
    assert f"the model of client north after round 2 is in {folder} (accuracy" in caplog.text
    out = str(tmp_path / "p.npz")
    printed = CliRunner().invoke(app, ["predict", str(folder), str(tmp_path / "new.csv"), "--out", out])
    assert f"Accuracy: {100 * float(str(recorded)):.1f} % (samples with a label: 30)" in printed.output
    assert (folder.stat().st_mode & 0o777) == 0o700


def test_a_node_whose_model_ends_below_what_it_had_alone_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trustmix")
    node, recipe = write_node(tmp_path), Recipe.load("demo", [*LONG, "train.first_epochs=80"])
    misleading = torch.eye(3)[torch.zeros(len(PUBLIC.inputs), dtype=torch.long)]
    answers = play(node, run_info(recipe=recipe.client_toml()), teacher=misleading)
    alone, recorded = float(str(answers[2]["local_accuracy"])), float(str(answers[-1]["accuracy"]))
    assert recorded < 0.5 < alone
    test = json.loads((tmp_path / "north-model" / "card.json").read_text())["test"]
    assert (test["alone"], test["accuracy"]) == (pytest.approx(alone), pytest.approx(recorded))
    assert f"below the {100 * alone:.1f} % that it had after training alone in round 1" in caplog.text


def test_a_node_with_one_class_and_few_samples_is_warned_that_it_learns_too_little(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trustmix")
    node = write_node(tmp_path)
    rows = [line for line in (tmp_path / "patients.csv").read_text().splitlines() if not line.endswith("ill")][:41]
    (tmp_path / "patients.csv").write_text("\n".join(rows) + "\n")
    recipe = Recipe.load("demo", [*LONG, "train.first_epochs=3"])
    others = torch.eye(3)[torch.ones(len(PUBLIC.inputs), dtype=torch.long)]
    play(node, run_info(recipe=recipe.client_toml()), teacher=others)
    assert "client north has 26 samples to train with, which is 3 training steps in the first round" in caplog.text
    assert json.loads((tmp_path / "north-model" / "card.json").read_text())["test"]["most_frequent_class"] == 1.0
    assert "below the 100.0 % of always answering the most frequent class of these samples" in caplog.text


def test_a_model_is_exported_at_any_round_and_a_later_run_does_not_replace_that_of_an_earlier_one(
    tmp_path: Path,
) -> None:
    node = write_node(tmp_path)
    file = str(tmp_path / "node.toml")
    early = CliRunner().invoke(app, ["export", file])
    assert early.exit_code == 2
    assert "north-state has no model of a run yet" in early.output
    play(node, run_info(), close=False)
    assert not (tmp_path / "north-model").exists()
    asked = CliRunner().invoke(app, ["export", file])
    assert "The model of client north after round 2 is in" in asked.output
    before = (tmp_path / "north-model" / "models" / "north.safetensors").read_bytes()
    play(node, run_info(NEXT_RUN, recipe=Recipe.load("demo", ["rounds=2", "seed=5"]).client_toml()))
    kept = tmp_path / f"north-model-{RUN}"
    assert (kept / "models" / "north.safetensors").read_bytes() == before
    assert json.loads((tmp_path / "north-model" / "card.json").read_text())["run"] == NEXT_RUN
    assert tm.load_model(kept)(torch.zeros(1, 2)).shape == (1, 3)
    assert CliRunner().invoke(app, ["export", file, "--run", "../.."]).exit_code == 2


def test_a_node_without_test_samples_and_with_a_model_of_its_own_exports_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wards_models.py").write_text(
        "import torch\n\ndef build(shape, classes):\n    return torch.nn.Linear(shape[0], classes)\n"
    )
    monkeypatch.chdir(tmp_path)
    node = write_node(tmp_path, OWN + 'test = 0\nmodel = "wards_models:build"\n')
    play(node, run_info())
    assert isinstance(tm.load_model(tmp_path / "north-model"), torch.nn.Linear)
    assert json.loads((tmp_path / "north-model" / "card.json").read_text())["test"] is None


def test_an_export_that_fails_is_logged_and_the_server_still_gets_its_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "north-model").write_text("a file in the way")
    assert play(write_node(tmp_path), run_info())[-1]["accuracy"] is not None
    assert "the model of client north was not exported, try `trustmix export`" in caplog.text


def test_where_there_are_no_models_the_error_names_the_place_where_they_are(tmp_path: Path) -> None:
    play(write_node(tmp_path), run_info(), close=False)
    with pytest.raises(tm.TrustmixError, match=r"it is the state of a node; the model is in .*north-model"):
        tm.load_model(tmp_path / "north-state")
    (tmp_path / "run").mkdir()
    served = Recipe.load("demo", ["engine.name=flower"])
    (tmp_path / "run" / "recipe.toml").write_text(served.toml())
    with pytest.raises(tm.TrustmixError, match="served to nodes, and each node has its own model in the folder ID-m"):
        predict(tmp_path / "run", "digits")


def test_a_text_model_is_exported_as_a_folder_that_transformers_opens(tmp_path: Path) -> None:
    words = ["good", "bad", "dull", "fine"]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, "the", "a"]
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")  # type: ignore[no-untyped-call]
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    rows = [[f"{words[i % 4]} {words[i // 4 % 4]}", ["ill", "healthy"][i % 2]] for i in range(40)]
    write_csv(tmp_path / "notes.csv", ["note", "diagnosis"], rows)
    (tmp_path / "node.toml").write_text(
        f'id = "north"\ndata = "notes.csv"\ntext = "note"\nlabel = "diagnosis"\ntokenizer = "{tmp_path / "bert"}"\n'
        f'length = 6\nmodel = {{ name = "encoder", weights = "{tmp_path / "bert"}" }}\n'
    )
    node = NodeConfig.load(tmp_path / "node.toml")
    public = Public(load_node_data(node).train.inputs[:10], classes=3)
    recorded = play(node, run_info(public=public, columns=None), public)[-1]["accuracy"]
    folder = tmp_path / "north-model"
    opened = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "models" / "north").eval()
    assert list(opened.config.id2label.values()) == CLASSES
    found = predict(folder, tmp_path / "notes.csv")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "models" / "north")
    batch = tokenizer([row[0] for row in rows], padding=True, return_tensors="pt")
    assert torch.allclose(opened(**batch).logits, found.logits, atol=1e-5)
    assert json.loads((folder / "card.json").read_text())["test"]["accuracy"] == pytest.approx(recorded)

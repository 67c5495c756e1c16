"""Using what a run has trained: the model that was measured is the one that is loaded, and it answers."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

import trustmix as tm
from trustmix import Recipe
from trustmix.cli import app
from trustmix.data import load
from trustmix.experiment.predict import predict
from trustmix.models import WithTemperature
from trustmix.models.transformer import TextClassifier, save_for_transformers

SMALL = {"clients": 4, "rounds": 1, "engine": {"mode": "sequential"}, "public": {"samples": 20}}
TRAIN = {"first_epochs": 1, "epochs": 1}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two architectures in turn, with a student at the server."""
    folder = tmp_path_factory.mktemp("digits") / "run"
    models = [{"name": "mlp"}, {"name": "mlp", "hidden": [32, 16]}]
    split = {"classes_per_client": 3, "samples_per_client": 120}
    recipe = {**SMALL, "data": {"name": "digits"}, "split": split, "train": {"first_epochs": 30}}
    tm.run({**recipe, "model": models, "student": {"name": "mlp"}}, out=folder)
    return folder


def last_line(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1]))


def answered(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["predict", *map(str, arguments)])


def test_the_loaded_model_is_the_one_whose_accuracy_was_recorded(digits: Path) -> None:
    data, line = load("digits"), last_line(digits)
    for client in range(4):
        model = tm.load_model(digits, client=client)
        assert not model.training
        right = (model(data.test.inputs).argmax(1) == data.test.labels).double().mean()
        assert float(right) == pytest.approx(line["accuracy"][str(client)], abs=1e-9)
    student = tm.load_model(digits, client="student")
    right = (student(data.test.inputs).argmax(1) == data.test.labels).double().mean()
    assert float(right) == pytest.approx(line["student_accuracy"], abs=1e-9)


def test_predict_writes_probabilities_logits_classes_and_the_accuracy(digits: Path, tmp_path: Path) -> None:
    data = load("digits")
    np.savez(tmp_path / "new.npz", x=data.test.inputs.numpy().astype(np.float64), y=data.test.labels.numpy())
    by_name = answered(digits, "digits", "--client", "3", "--out", tmp_path / "p.npz")
    by_file = answered(digits, "--client", "3", tmp_path / "new.npz", "--out", tmp_path / "q.npz")
    accuracy = f"Accuracy: {100 * last_line(digits)['accuracy']['3']:.1f} % (samples with a label: {len(data.test)})"
    assert accuracy in by_name.output, by_name.output
    assert accuracy in by_file.output, by_file.output
    with np.load(tmp_path / "p.npz") as named, np.load(tmp_path / "q.npz") as found:
        logits = tm.load_model(digits, client=3)(data.test.inputs).detach()
        np.testing.assert_allclose(found["logits"], logits, atol=1e-5)
        np.testing.assert_allclose(found["predictions"], torch.softmax(logits, 1), atol=1e-6)
        assert (found["predicted"] == logits.argmax(1).numpy()).all()
        assert found["classes"].tolist() == list(data.class_names)
        assert all((named[key] == found[key]).all() for key in found.files)


def test_predictions_of_clients_can_be_mixed_and_are_then_better_than_theirs(digits: Path, tmp_path: Path) -> None:
    files = [str(tmp_path / f"{client}.npz") for client in range(4)]
    for client, file in enumerate(files):
        assert answered(digits, "digits", "--client", str(client), "--out", file).exit_code == 0
    assert CliRunner().invoke(app, ["mix", *files, "--out", str(tmp_path / "teacher.npz")]).exit_code == 0
    with np.load(tmp_path / "teacher.npz") as teacher:
        mixed = float((teacher["predictions"].argmax(1) == load("digits").test.labels.numpy()).mean())
        assert float(teacher["effective_clients"].mean()) < 3.9  # by scores, not by plain averaging
    trust = CliRunner().invoke(app, ["mix", *files, "--rule", "trust", "--out", str(tmp_path / "trust.npz")])
    assert trust.exit_code == 0, trust.stderr
    assert mixed > last_line(digits)["accuracy_mean"]


def test_scores_are_by_the_density_of_the_recipe(digits: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(digits, tmp_path / "run")
    ratios = predict(folder, "digits", 1).trust["scores"]
    recipe = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(recipe.replace('kind = "ratio"', 'kind = "energy"'))
    answers = predict(folder, "digits", 1)
    torch.testing.assert_close(answers.trust["scores"].float(), answers.logits.logsumexp(1), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(ratios.float(), answers.trust["scores"].float())
    (folder / "recipe.toml").write_text(recipe.replace("[privacy]", "[privacy]\nepsilon = 8.0"))
    assert predict(folder, "digits", 1).trust == {}  # calibration samples are private


def test_without_the_training_data_predictions_have_no_scores(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 5)).astype(np.float32), np.arange(80) % 2
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10], classes=["no", "yes"])
    data = {"name": "npz", "path": str(tmp_path / "data.npz")}
    tm.run({**SMALL, "data": data, "split": {"samples_per_client": 20}}, out=tmp_path / "run")
    assert predict(tmp_path / "run", tmp_path / "data.npz", 1).trust["scores"].shape == (10,)
    np.savez(tmp_path / "new.npz", x=x[:7])
    (tmp_path / "data.npz").unlink()
    answers = predict(tmp_path / "run", tmp_path / "new.npz", 1)
    assert (answers.trust, answers.accuracy, answers.classes) == ({}, None, ("no", "yes"))


def test_images_are_scaled_and_labelled_by_their_folder(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, colour in (("red", (200, 40, 40)), ("blue", (40, 40, 200))):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(24):
            noise = rng.integers(-30, 30, (12, 10, 3))
            pixels = (np.array(colour) + noise).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    data = {"name": "images", "path": str(tmp_path / "photos"), "size": 8}
    recipe = {**SMALL, "data": data, "clients": 2, "public": {"samples": 8}, "split": {"samples_per_client": 20}}
    tm.run({**recipe, "train": {"first_epochs": 10}}, out=tmp_path / "run")
    shutil.copytree(tmp_path / "photos", tmp_path / "new")
    Image.new("L", (30, 30), 90).save(tmp_path / "new" / "grey.jpg")
    result = answered(tmp_path / "run", tmp_path / "new", "--out", tmp_path / "p.npz")
    assert "samples: 49, classes: 2" in result.output
    assert "(samples with a label: 48)" in result.output
    with np.load(tmp_path / "p.npz") as found:
        assert found["id"].tolist()[0] == "blue/0.png"
        labels = {name: int(label) for name, label in zip(found["id"], found["labels"], strict=True)}
        assert (labels["blue/0.png"], labels["red/0.png"], labels["grey.jpg"]) == (0, 1, -1)
        assert (found["predicted"] == found["labels"])[found["labels"] >= 0].mean() > 0.9
    one = answered(tmp_path / "run", tmp_path / "new" / "red" / "3.png", "--out", tmp_path / "p.npz")
    assert re.search(r"^3\.png: red \(\d+ %\)$", one.output, re.M), one.output


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "goal", "match", "song", "band", "the", "a"]
TINY: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
}


@pytest.fixture
def bert(tmp_path: Path) -> str:
    folder = tmp_path / "bert"
    transformers.BertModel(transformers.BertConfig(**TINY)).save_pretrained(folder)  # type: ignore[no-untyped-call]
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return str(folder)


def test_text_models_are_opened_by_transformers_with_their_tokenizer(tmp_path: Path, bert: str) -> None:
    rows = [
        (f"the {word}{' a' * (i % 5)}", topic)
        for i in range(10)
        for word, topic in (("goal", "sport"), ("match", "sport"), ("song", "music"), ("band", "music"))
    ]
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    data = {"name": "text", "path": str(tmp_path / "t.csv"), "tokenizer": bert, "length": 6}
    model = {"name": "encoder", "weights": bert}
    recipe = {**SMALL, "data": data, "model": model, "clients": 2, "public": {"samples": 6}, "train": TRAIN}
    tm.run({**recipe, "split": {"samples_per_client": 10}}, out=tmp_path / "run")
    opened = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "models" / "1").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "models" / "1")
    texts = [text for text, _ in rows]
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    theirs = opened(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.detach()
    assert opened.config.id2label == {0: "music", 1: "sport"}
    answers = predict(tmp_path / "run", tmp_path / "t.csv", 1)
    torch.testing.assert_close(answers.logits, theirs, rtol=1e-4, atol=1e-5)
    assert answers.samples.labels.tolist() == [int(label == "sport") for _, label in rows]
    (tmp_path / "bert" / "model.safetensors").unlink()  # what training began with is not needed any more
    tokens = torch.where(batch["attention_mask"].bool(), batch["input_ids"], -1)
    torch.testing.assert_close(tm.load_model(tmp_path / "run", client=1)(tokens), theirs, rtol=1e-4, atol=1e-5)


def test_a_classifier_is_only_saved_for_transformers_where_it_computes_the_same(tmp_path: Path) -> None:
    tokens = torch.tensor([[5, 6, 7], [8, 5, 6]])
    config = transformers.RobertaConfig(**TINY, max_position_embeddings=16, pad_token_id=1)
    roberta = transformers.RobertaModel(config)  # type: ignore[no-untyped-call]
    model = TextClassifier(roberta, 3).eval()
    assert save_for_transformers(model, tmp_path / "roberta", ["a", "b", "c"])
    opened = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "roberta").eval()
    torch.testing.assert_close(opened(tokens).logits, model(tokens), rtol=1e-4, atol=1e-5)
    other = transformers.DistilBertModel(transformers.DistilBertConfig(vocab_size=11, dim=8, n_layers=1, n_heads=1))
    assert not save_for_transformers(TextClassifier(other, 3), tmp_path / "distil", ["a", "b", "c"])
    assert not (tmp_path / "distil").exists()


def test_predictions_as_csv_are_those_of_the_npz_file_and_can_be_mixed(digits: Path, tmp_path: Path) -> None:
    for name in ("p.npz", "p.csv"):
        assert answered(str(digits), "digits", "--client", "1", "--out", str(tmp_path / name)).exit_code == 0
    rows = [line.split(",") for line in (tmp_path / "p.csv").read_text().splitlines()]
    assert rows[0] == ["id", *map(str, range(10)), "predicted", "label", "score"]
    with np.load(tmp_path / "p.npz") as arrays:
        assert [row[-3] for row in rows[1:]] == [str(index) for index in arrays["predicted"]]
        np.testing.assert_allclose([list(map(float, row[1:11])) for row in rows[1:]], arrays["predictions"])
        np.testing.assert_allclose([float(row[-1]) for row in rows[1:]], arrays["scores"])
    mixed = ["mix", str(tmp_path / "p.csv"), "--out", str(tmp_path / "teacher.csv")]
    assert CliRunner().invoke(app, mixed).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere", "digits"], "nowhere holds no models: it is no run directory"),
        (["RUN", "digits", "--client", "9"], 'has no model of client "9"; there are 0, 1, 2, 3, student'),
        (["RUN", "digitz"], "neither a file or folder nor a data set"),
        (["RUN", "wrong.npz"], "has inputs (3,) of float32, but the model takes inputs (1, 8, 8) of float32"),
        (["RUN", "empty.npz"], "has no array x (inputs) or x_test"),
        (["RUN", "words.npz"], "inputs must be numbers"),
        (["RUN", "labels.npz"], "2 inputs but labels of shape (3,)"),
        (["RUN", "t.csv"], "is a table, but the model takes inputs (1, 8, 8)"),
        (["RUN", "t.doc"], "is neither an npz file"),
        (["RUN", "."], "holds no images"),
        (["RUN", "digits", "--out", "p.txt"], "must end in .npz or .csv"),
        (["RUN", "wrong.npz", "--out", "wrong.npz"], "is one of the files to read"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], sentence: str, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("wrong.npz", x=np.zeros((2, 3), np.float32))
    np.savez("empty.npz", z=np.zeros(2))
    np.savez("words.npz", x=np.array(["a", "b"]))
    np.savez("labels.npz", x=np.zeros((2, 1, 8, 8), np.float32), y=np.zeros(3, int))
    (tmp_path / "t.csv").write_text("text\nhello\n")
    (tmp_path / "t.doc").write_text("hello")
    result = answered(*(str(digits) if argument == "RUN" else argument for argument in arguments))
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_unfinished_run_is_told_so(tmp_path: Path, digits: Path) -> None:
    shutil.copy(digits / "recipe.toml", tmp_path)
    with pytest.raises(tm.TrustmixError, match="not finished; go on with --resume"):
        tm.load_model(tmp_path)


def test_a_calibrated_model_is_loaded_with_its_temperature_and_scores_as_without(tmp_path: Path) -> None:
    small = ["clients=5", "rounds=2", "split.samples_per_client=60", "public.samples=60", "engine.mode=sequential"]
    for name, calibrate in (("plain", "false"), ("calibrated", "true")):
        tm.run(Recipe.load("demo", [*small, f"train.calibrate={calibrate}"]), out=tmp_path / name)
    plain, calibrated = (tm.load_model(tmp_path / name, client=2) for name in ("plain", "calibrated"))
    assert isinstance(calibrated, WithTemperature)
    assert not isinstance(plain, WithTemperature)
    test = tm.data.load("digits").test
    with torch.no_grad():
        logits, sharpened = plain(test.inputs), calibrated(test.inputs)
    torch.testing.assert_close(logits / calibrated.temperature, sharpened)
    one, other = (predict(tmp_path / name, "digits", client=2) for name in ("plain", "calibrated"))
    torch.testing.assert_close(one.logits / calibrated.temperature, other.logits)
    assert all(torch.equal(one.trust[key], other.trust[key]) for key in ("scores", "held"))

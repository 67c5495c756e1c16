"""The paper's experiments: the full-size recipes start, and what they need of a run does what it says."""

import csv
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import trustmix as tm
from trustmix import Recipe, TrustmixError
from trustmix.cli import app
from trustmix.experiment.build import build_federation
from trustmix.federation import Request
from trustmix.federation.client import Client
from trustmix.learners import TrainingJob
from trustmix.learners.training import predict
from trustmix.wire import encode_teacher

SMALL = [
    *("clients=6", "rounds=2", "split.samples_per_client=40", "public.samples=60", "train.public_epochs=1"),
    "engine.mode=sequential",
]


def pictures(path: Path, classes: int, each: int) -> Path:
    """A made-up data set of CIFAR's shape, large enough for the paper's sizes."""
    labels = np.arange(classes * each) % classes
    pixels = np.zeros((len(labels), 3, 32, 32), np.uint8)
    pixels[:, 0, 0, 0] = labels
    np.savez(path, x_train=pixels, y_train=labels, x_test=pixels[:classes], y_test=labels[:classes])
    return path


def encoder_folder(folder: Path) -> Path:
    """BERT-tiny and its tokenizer as Hugging Face keeps them."""
    transformers: Any = importlib.import_module("transformers")
    config = transformers.BertConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512, vocab_size=30522
    )
    transformers.BertModel(config).save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "won", "the", "match"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


def yahoo_csv(folder: Path) -> Path:
    folder.mkdir()
    for part, each in (("train", 800), ("test", 2)):
        with open(folder / f"{part}.csv", "w", newline="") as file:
            rows = ([i % 10 + 1, "who won", "the match\\n" * (i % 7), "the match"] for i in range(10 * each))
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    return folder


def few_steps(client: Client) -> None:
    """A step of two samples of the private and of the public stage, and a look at some public samples."""
    first = client.step_jobs(Request(1, None, train=True, upload=True))
    job = next(first)
    assert isinstance(job, TrainingJob)
    assert job.inputs is client.private.inputs
    assert len(job.order[0]) == client.training.batch
    job.order = [job.order[0][:2]]
    job.run()
    logits = predict(job.model, client.public.inputs[:2], client.hardware)
    assert logits.shape == (2, client.public.classes)
    first.close()
    teacher = torch.full((len(client.public.inputs), client.public.classes), 1 / client.public.classes)
    message = encode_teacher(teacher, client.public.header("server", 1), "float32")
    job = next(client.step_jobs(Request(2, message, train=True, upload=True)))
    assert isinstance(job, TrainingJob)
    assert job.inputs is client.public.inputs
    job.order = [job.order[0][:2]]
    job.run()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "cifar100", "yahoo", "homogeneous", "ablation-yahoo"])
def test_recipes_at_the_papers_full_size_start(name: str, tmp_path: Path) -> None:
    if "yahoo" in name:
        folder = encoder_folder(tmp_path / "bert")
        changes = [f"data.path={yahoo_csv(tmp_path / 'csv')}", f"data.tokenizer={folder}", f"model.weights={folder}"]
    else:
        classes, each = (100, 230) if name == "cifar100" else (10, 2200)
        changes = [f"data.path={pictures(tmp_path / 'd.npz', classes, each)}"]
    if name == "cifar100":
        weights = tmp_path / "resnet.pth"
        torch.save(tm.models.resnet18((3, 224, 224), 1000, stem="imagenet").state_dict(), weights)
        changes += [f"model.weights={weights}"]
    recipe = Recipe.load(name, changes)
    experiment = build_federation(Recipe.load(recipe, ["engine.mode=sequential", "engine.store=memory"]))
    clients = list(experiment.clients)
    assert len(clients) == 20
    assert len(clients[0].private) + len(clients[0].calibration) == recipe.split.samples_per_client
    few_steps(clients[0])
    assert experiment.recipe.rounds == recipe.rounds


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("yahoo", (50, 1500, 2000, "adamw", 2e-5, 32, 3, 1)),
        ("cifar10", (50, 5000, 5000, "adam", 1e-3, 128, 20, 2)),
        ("cifar100", (50, 5000, 5000, "adam", 1e-4, 128, 1, 1)),
    ],
)
def test_recipes_have_the_papers_hyperparameters(name: str, facts: tuple[Any, ...]) -> None:
    r = Recipe.load(name)
    t = r.train
    found = (
        r.rounds,
        r.split.samples_per_client,
        r.public.samples,
        t.optimizer,
        t.lr,
        t.batch,
        t.first_epochs,
        t.epochs,
    )
    assert found == facts
    assert (r.clients, r.method.name) == (20, "suwa")


def test_the_reference_is_one_model_with_labels_of_all_classes() -> None:
    experiment = build_federation(Recipe.load("demo", [*SMALL, "rule=reference"]))
    [client] = experiment.clients
    assert len(client.private) + len(client.calibration) == 40 + 60
    assert len(client.calibration) == 10
    assert sorted(torch.unique(client.private.labels).tolist()) == list(range(10))
    assert experiment.recipe.rule == "reference"
    assert experiment.recipe.clients == 6
    history = tm.run(Recipe.load("demo", [*SMALL, "rule=reference"]))
    alone = tm.run(Recipe.load("demo", [*SMALL, "rule=alone"]))
    assert history.rounds[-1].method == "reference"
    assert (history.best_accuracy or 0) > (alone.best_accuracy or 1)
    assert history.summary()["bytes_up"] == 0


def test_a_public_set_from_elsewhere_is_unlabelled_and_of_the_same_kind(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.random((90, 1, 8, 8), np.float32)
    np.savez(tmp_path / "o.npz", x_train=images, y_train=np.arange(90) % 3, x_test=images, y_test=np.arange(90) % 3)
    recipe = Recipe.load("demo", [*SMALL, "public.data=npz", f"public.path={tmp_path / 'o.npz'}"])
    experiment = build_federation(recipe)
    context = experiment.federation.context
    public = context.public.inputs
    known = {image.tobytes() for image in images}
    assert len(public) == 60
    assert all(one.numpy().tobytes() in known for one in public)
    assert context.public_labels is not None
    assert bool((context.public_labels == -1).all())
    line = tm.run(recipe).rounds[-1]
    assert line.teacher_accuracy is None
    assert line.density_auc is None
    np.savez(
        tmp_path / "o.npz",
        x_train=images[:, :, :4],
        y_train=np.zeros(90, int),
        x_test=images[:, :, :4],
        y_test=np.zeros(90, int),
    )
    with pytest.raises(
        TrustmixError, match=r'public.data "npz" has inputs \(1, 4, 8\) .* the private data \(1, 8, 8\)'
    ):
        build_federation(recipe)
    with pytest.raises(TrustmixError, match=r"public.data is the private data set itself"):
        build_federation(Recipe.load("demo", ["public.data=digits"]))
    with pytest.raises(TrustmixError, match=r"path goes with public.data"):
        Recipe.load("demo", ["public.path=x"])


def test_augmented_calibration_takes_the_private_images_themselves() -> None:
    recipe = Recipe.load("demo", [*SMALL, "density.calibration=augmented", "train.augment=crop"])
    experiment = build_federation(recipe)
    for client in experiment.clients:
        assert len(client.private) == 40
        assert torch.equal(client.calibration.inputs, client.private.inputs)
        assert client.augment_calibration
    one, two = tm.run(recipe), tm.run(recipe)
    assert one.rounds[-1].accuracy == two.rounds[-1].accuracy
    plain = tm.run(Recipe.load("demo", SMALL))
    assert one.rounds[-1].concentration != plain.rounds[-1].concentration


def test_private_calibration_fits_the_density_on_what_was_trained_on(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((400, 4), np.float32)
    np.savez(tmp_path / "t.npz", x_train=rows, y_train=np.arange(400) % 4, x_test=rows, y_test=np.arange(400) % 4)
    recipe = {"data": {"name": "npz", "path": str(tmp_path / "t.npz")}, "split": {"samples_per_client": 20}}
    experiment = build_federation(
        Recipe.load(recipe, ["public.samples=20", "clients=5", "density.calibration=private"])
    )
    for client in experiment.clients:
        assert len(client.private) == 20
        assert torch.equal(client.calibration.inputs, client.private.inputs)
        assert not client.augment_calibration


def test_augmentation_is_refused_for_what_are_no_images(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((200, 4), np.float32)
    np.savez(tmp_path / "t.npz", x_train=rows, y_train=np.arange(200) % 2, x_test=rows, y_test=np.arange(200) % 2)
    for change, setting in (("train.augment=crop", "train.augment"), ("density.calibration=augmented", "density.cal")):
        recipe = {"data": {"name": "npz", "path": str(tmp_path / "t.npz")}, "split": {"samples_per_client": 20}}
        with pytest.raises(TrustmixError, match=rf"{setting}.* asks for augmented images, but the inputs .* \(4,\)"):
            build_federation(Recipe.load(recipe, ["public.samples=20", change]))


def test_test_samples_measure_on_a_part() -> None:
    experiment = build_federation(Recipe.load("demo", [*SMALL, "split.test_samples=50"]))
    assert {len(client.test or []) for client in experiment.clients} == {50}


def test_the_density_tells_own_classes_on_the_demo() -> None:
    line = tm.run(Recipe.load("demo", SMALL)).rounds[-1]
    assert line.density_auc is not None
    assert line.density_auc > 0.65


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["data.name=text", "data.path=t.csv", "data.label=kind"], 't.csv has no column "kind"'),
        (["data.name=text", "data.path=latin.csv"], "latin.csv, line 2: this is not UTF-8"),
        (["data.name=cifar10", "data.path=cut.tar.gz"], "cut.tar.gz could not be read"),
        (["data.name=images", "data.path=pictures"], "b/broken.png is not a whole image"),
        (["model.name=resnet18", "model.weights=bert.pth"], "holds weights of another architecture"),
        (["data.name=npz", "data.path=none.npz"], "data.path is none.npz, and there is nothing there"),
    ],
)
def test_bad_files_are_one_sentence_and_exit_code_2(
    changes: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("text,label\nhello,a\n")
    Path("latin.csv").write_bytes(b"text,label\nh\xe9,a\n")
    Path("cut.tar.gz").write_bytes(b"\x1f\x8b\x08\x00garbage")
    for name in "ab":
        Path("pictures", name).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(f"pictures/{name}/0.png")
    Path("pictures/b/broken.png").write_bytes(b"\x89PNG broken")
    torch.save({"embeddings.weight": torch.ones(2)}, "bert.pth")
    options = [part for change in changes for part in ("--set", change)]
    result = CliRunner().invoke(app, ["run", "demo", *options, "--out", "run"])
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("run", "rounds.jsonl").exists()


def test_a_federation_learns_from_a_table_of_texts_with_weights_from_a_folder(tmp_path: Path) -> None:
    rows = [
        {"text": word * (i % 5 + 1), "label": label} for i in range(40) for label, word in enumerate(("who ", "won "))
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = encoder_folder(tmp_path / "bert")
    changes = ["clients=2", "rounds=1", "split.samples_per_client=16", "public.samples=16", "train.first_epochs=1"]
    changes += ["data.name=text", f"data.path={tmp_path / 't.jsonl'}", f"data.tokenizer={folder}"]
    changes += ["model.name=bert-tiny", f"model.weights={folder}", "engine.mode=sequential"]
    history = tm.run(Recipe.load("demo", changes))
    assert 0 <= (history.best_accuracy or -1) <= 1

"""Mixing files of predictions: the same teacher as from arrays, in both formats; a bad file is one sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from scipy.special import softmax
from typer.testing import CliRunner

import trustmix as tm
from trustmix.aggregation import Upload
from trustmix.cli import app
from trustmix.density import DensityRatio
from trustmix.federation import resolve_method

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(3, 40, 4)) * 3
PREDICTIONS = softmax(LOGITS, -1)
SCORES = RNG.normal(size=(3, 40)) * 5


def mixed(folder: Path, *arguments: str) -> Result:
    files = [str(file) for file in sorted(folder.glob("client*"))]
    return CliRunner().invoke(app, ["mix", *files, *arguments])


def save(folder: Path, number: int, **arrays: Any) -> None:
    np.savez(folder / f"client{number}.npz", **arrays)


def save_csv(folder: Path, number: int, header: str, *columns: Any) -> None:
    rows = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    (folder / f"client{number}.csv").write_text("\n".join([header, *rows]) + "\n")


@pytest.mark.parametrize(("options", "tau"), [([], 0.25), (["--rule", "uwa"], 1.0), (["--tau", "0.4"], 0.4)])
def test_files_and_arrays_give_the_same_teacher(options: list[str], tau: float, tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path, number, predictions=PREDICTIONS[number], scores=SCORES[number])
    result = mixed(tmp_path, "--out", str(tmp_path / "teacher.npz"), *options)
    assert result.exit_code == 0, result.output
    assert "files: 3, samples: 40, classes: 4" in result.output
    wanted = tm.mix(PREDICTIONS, SCORES, tau=tau)
    with np.load(tmp_path / "teacher.npz") as found:
        np.testing.assert_allclose(found["predictions"], wanted.probabilities, atol=1e-12)
        np.testing.assert_allclose(found["effective_clients"], wanted.effective_clients, atol=1e-9)


def test_csv_goes_in_and_out_with_the_names_of_classes_and_samples(tmp_path: Path) -> None:
    ids = [f"s{index}" for index in range(40)]
    for number in range(3):
        save_csv(tmp_path, number, "id,cat,dog,owl,fox,score", ids, *PREDICTIONS[number].T, SCORES[number])
    assert mixed(tmp_path, "--out", str(tmp_path / "teacher.csv")).exit_code == 0
    lines = [line.split(",") for line in (tmp_path / "teacher.csv").read_text().splitlines()]
    assert lines[0] == ["id", "cat", "dog", "owl", "fox", "predicted", "effective_clients"]
    wanted = tm.mix(PREDICTIONS, SCORES).probabilities
    assert [line[5] for line in lines[1:]] == [("cat", "dog", "owl", "fox")[index] for index in wanted.argmax(1)]
    np.testing.assert_allclose([list(map(float, line[1:5])) for line in lines[1:]], wanted, atol=1e-12)
    assert [line[0] for line in lines[1:]] == ids
    again = CliRunner().invoke(
        app, ["mix", str(tmp_path / "teacher.csv"), str(tmp_path / "client0.csv"), "--out", str(tmp_path / "x.npz")]
    )
    assert "client0.csv has scores, but" in again.stderr  # a teacher's file is read; it has no scores


def test_calibration_logits_become_scores_by_the_density(tmp_path: Path) -> None:
    labels = [np.arange(30) % 2 + number for number in range(3)]
    known = [np.eye(4)[own] * 4 + RNG.normal(size=(30, 4)) for own in labels]
    for number in range(3):
        save(
            tmp_path,
            number,
            logits=LOGITS[number],
            calibration_logits=known[number],
            calibration_labels=labels[number],
        )
    assert mixed(tmp_path, "--out", str(tmp_path / "teacher.npz"), "--rule", "uwa").exit_code == 0
    scores = [tm.ClassGaussians.fit(z, y).log_prob(public) for z, y, public in zip(known, labels, LOGITS, strict=True)]
    with np.load(tmp_path / "teacher.npz") as found:
        np.testing.assert_allclose(
            found["predictions"], tm.mix(PREDICTIONS, np.stack(scores), tau=1.0).probabilities, atol=1e-9
        )


def test_trust_takes_the_density_ratio_and_the_classes_from_the_calibration(tmp_path: Path) -> None:
    labels = [np.arange(30) % 2 + number for number in range(3)]
    known = [np.eye(4)[own] * 4 + RNG.normal(size=(30, 4)) for own in labels]
    for number in range(3):
        arrays = {"calibration_logits": known[number], "calibration_labels": labels[number]}
        save(tmp_path, number, logits=LOGITS[number], **arrays)
    assert mixed(tmp_path, "--out", str(tmp_path / "teacher.npz"), "--rule", "trust").exit_code == 0
    mixer = resolve_method("trust").make_aggregator()
    for number in range(3):
        scores = DensityRatio.fit(known[number], labels[number]).log_prob(LOGITS[number])
        held = np.bincount(labels[number], minlength=4)
        mixer.update(Upload.from_arrays(str(number), PREDICTIONS[number], scores, class_counts=held))
    with np.load(tmp_path / "teacher.npz") as found:
        np.testing.assert_allclose(found["predictions"], mixer.compute().probabilities, atol=1e-9)


def test_without_scores_all_are_trusted_alike_and_that_is_said(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path, number, logits=LOGITS[number])
    result = mixed(tmp_path, "--out", str(tmp_path / "teacher.npz"))
    assert "all are trusted alike" in result.output
    with np.load(tmp_path / "teacher.npz") as found:
        np.testing.assert_allclose(found["predictions"], PREDICTIONS.mean(0), atol=1e-12)


GOOD = {"predictions": PREDICTIONS[0], "scores": SCORES[0]}


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"probs": PREDICTIONS[0]}, "holds neither predictions nor logits (N, C); it has probs"),
        ({"predictions": LOGITS[0], "scores": SCORES[0]}, "they must be probabilities"),
        ({"predictions": PREDICTIONS[0]}, "either all files have them or none"),
        ({"predictions": PREDICTIONS[0][:, :3] / 0.5, "scores": SCORES[0]}, "row 1 of the predictions sums to"),
        ({"predictions": PREDICTIONS[0], "scores": SCORES[0][:7]}, "scores have the shape (7,)"),
        ({"predictions": np.array([["a", "b"]]), "scores": [1.0]}, "it must hold numbers"),
        ({"logits": LOGITS[0][0], "scores": SCORES[0]}, "logits have the shape (4,)"),
        ({**GOOD, "logits": LOGITS[0], "calibration_logits": LOGITS[0]}, "Leave one of them out"),
        ({"logits": LOGITS[0], "calibration_logits": LOGITS[0]}, "but no calibration_labels"),
        ({"predictions": PREDICTIONS[0], "calibration_logits": LOGITS[0], "calibration_labels": [0]}, "but no logits"),
        ({"logits": LOGITS[0], "calibration_logits": LOGITS[0], "calibration_labels": [0, 1]}, "40 rows of logits"),
        ({"logits": LOGITS[0], "calibration_logits": LOGITS[0], "calibration_labels": [9] * 40}, "from 0 to 3"),
        ({"predictions": np.full((5, 4), 0.25), "scores": np.zeros(5)}, "those before had (40, 4)"),
    ],
)
def test_a_bad_npz_file_is_one_sentence_that_names_it(arrays: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    save(tmp_path, 0, **GOOD)
    save(tmp_path, 1, **arrays)
    result = mixed(tmp_path, "--out", str(tmp_path / "teacher.npz"))
    assert_sentence(result, sentence, tmp_path)
    assert "client1.npz" in result.stderr


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "cat,dog,score\n0.5,0.5,0\n0.5,half,0\n",
            'row 2, column "dog": "half" is not a number',
        ),
        ("id,score\na,1\n", "has no column of a class"),
        ("id,cat,dog,score\nx,0.5,0.5,0\nz,0.5,0.5,0\n", 'name other samples: "y" is in one of them alone (2 such'),
        ("id,cat,cow,score\nx,0.5,0.5,0\ny,0.5,0.5,0\n", 'name other classes: "cow" is in one of them alone (2 such'),
        ("id,cat,dog,score\ny,0.5,0.5,0\ny,0.5,0.5,0\n", "a name twice, so they cannot be aligned"),
        ("cat,dog,score\n0.5,0.5\n", "2 fields, but the columns are"),
        ("", "holds no rows"),
    ],
)
def test_a_bad_csv_file_is_one_sentence_that_names_it(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "client0.csv").write_text("id,cat,dog,score\nx,0.5,0.5,0\ny,0.5,0.5,0\n")
    (tmp_path / "client1.csv").write_text(text)
    result = mixed(tmp_path, "--out", str(tmp_path / "teacher.npz"))
    assert_sentence(result, sentence, tmp_path)
    assert "client1.csv" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--out", "teacher.txt"], "teacher.txt (--out) must end in .npz or .csv"),
        (["--rule", "swua"], 'Did you mean "suwa"?'),
        (["--rule", "uwa", "--tau", "1"], "exclude each other"),
        (["--tau", "-1"], "tau is -1.0"),
    ],
)
def test_bad_options_are_one_sentence(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    save(tmp_path, 0, **GOOD)
    assert_sentence(mixed(tmp_path, *arguments), sentence, tmp_path)


def test_rows_are_aligned_by_id_and_classes_by_name(tmp_path: Path) -> None:
    (tmp_path / "client0.csv").write_text("id,cat,dog,score\nx,0.9,0.1,0\ny,0.2,0.8,-90\n")
    (tmp_path / "client1.csv").write_text("id,dog,score,cat\ny,0.3,0,0.7\nx,0.6,-90,0.4\n")
    assert mixed(tmp_path, "--rule", "uwa", "--out", str(tmp_path / "teacher.csv")).exit_code == 0
    rows = [line.split(",") for line in (tmp_path / "teacher.csv").read_text().splitlines()[1:]]
    assert [(row[0], float(row[1]), float(row[2]), row[3]) for row in rows] == [
        ("x", 0.9, 0.1, "cat"),
        ("y", 0.7, 0.3, "cat"),
    ]


def test_an_input_is_not_written_over(tmp_path: Path) -> None:
    save(tmp_path, 0, **GOOD)
    before = (tmp_path / "client0.npz").read_bytes()
    result = mixed(tmp_path, "--out", str(tmp_path / "client0.npz"))
    assert_sentence(result, "is one of the files to read; choose another name", tmp_path)
    assert (tmp_path / "client0.npz").read_bytes() == before


def test_a_teacher_can_be_mixed_again(tmp_path: Path) -> None:
    (tmp_path / "client0.csv").write_text("id,cat,dog\nx,0.75,0.25\n")
    assert mixed(tmp_path, "--out", str(tmp_path / "client1.csv")).exit_code == 0
    assert mixed(tmp_path, "--out", str(tmp_path / "teacher.csv")).exit_code == 0
    assert (tmp_path / "teacher.csv").read_text().splitlines()[1] == "x,0.75,0.25,cat,2.0"


SETS = "file,d,c,b,a\nclient0.npz,0,0,2,5\nclient1.npz,0,3,3,0\nclient2.npz,4,1,0,0\n"


def test_label_sets_from_a_csv_file_are_those_of_arrays(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path, number, predictions=PREDICTIONS[number], scores=SCORES[number], classes=["a", "b", "c", "d"])
    (tmp_path / "sets.csv").write_text(SETS)
    result = mixed(tmp_path, "--label-sets", str(tmp_path / "sets.csv"), "--out", str(tmp_path / "teacher.npz"))
    assert result.exit_code == 0, result.output
    mixer = resolve_method("trust").make_aggregator()
    counts = [[5, 2, 0, 0], [0, 3, 3, 0], [0, 0, 1, 4]]
    for number in range(3):
        mixer.update(Upload.from_arrays(str(number), PREDICTIONS[number], SCORES[number], class_counts=counts[number]))
    with np.load(tmp_path / "teacher.npz") as found:
        np.testing.assert_allclose(found["predictions"], mixer.compute().probabilities, atol=1e-12)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("file,a,b,c\nclient0.npz,1,1,1\n", 'has no column "d"; it needs file and a, b, c, d'),
        ("file,a,b,c,d\nclient9.npz,1,1,1,1\n", "has 0 rows with client0.npz in the column file"),
        ("file,a,b,c,d\nclient0.npz,1,1,1,many\n", 'row 1, column "d": "many" is not a number'),
        ("file,a,b,c,d\nclient0.npz,0,0,0,0\n", "some of them above 0"),
    ],
)
def test_a_bad_table_of_label_sets_is_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    save(tmp_path, 0, **GOOD, classes=["a", "b", "c", "d"])
    (tmp_path / "sets.csv").write_text(text)
    result = mixed(tmp_path, "--label-sets", str(tmp_path / "sets.csv"), "--out", str(tmp_path / "teacher.npz"))
    assert_sentence(result, sentence, tmp_path)


def assert_sentence(result: Result, sentence: str, folder: Path) -> None:
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (folder / "teacher.npz").exists()

"""Commands that use trained models and their predictions: predict, mix."""

from pathlib import Path
from typing import Annotated

import typer

from trustmix.cli.app import AllowCode, app, confirm_code, handle_errors
from trustmix.errors import TrustmixError

MAX_PRINTED = 10
"""The predictions of at most this many samples are printed."""


@app.command("predict")
@handle_errors
def predict_command(
    folder: Annotated[Path, typer.Argument(help="The run directory, or the model folder of a node.")],
    data: Annotated[str, typer.Argument(help="An npz file, a table, a folder of images, or a data set's name.")],
    client: Annotated[
        str | None, typer.Option(help="Whose model: a client's number, or student; 0 if there are several.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The file of the predictions, npz or csv.")] = Path(
        "predictions.npz"
    ),
    allow_code: AllowCode = False,
) -> None:
    """Predict the classes of new samples with a trained model.

    Example: trustmix predict runs/uwa digits --client 3 --out predictions.csv
    """
    from trustmix.experiment.predict import predict
    from trustmix.experiment.prediction_files import validate_output_name, write_csv, write_npz

    validate_output_name(out, [Path(data)])
    allowed = confirm_code([folder / "recipe.toml"], allow_code=allow_code)
    result = predict(folder, data, client, allow_code=allowed)
    if out.suffix == ".csv":
        write_csv(out, result.columns())
    else:
        write_npz(out, result.arrays())
    labelled = int((result.samples.labels >= 0).sum())
    typer.echo(f"samples: {len(result.logits)}, classes: {len(result.classes)}")
    for name, label, probability in result.lines() if len(result.logits) <= MAX_PRINTED else ():
        typer.echo(f"{name}: {label} ({100 * probability:.0f} %)")
    if result.accuracy is not None:
        typer.echo(f"Accuracy: {100 * result.accuracy:.1f} % (samples with a label: {labelled})")
    typer.echo(f"Predictions: {out}")


@app.command("mix")
@handle_errors
def mix_command(
    files: Annotated[list[Path], typer.Argument(help="Files of predictions, npz or csv, one a client.")],
    out: Annotated[Path, typer.Option("--out", help="The teacher's file, npz or csv.")] = Path("teacher.npz"),
    rule: Annotated[
        str | None,
        typer.Option(help="A rule's name: avg, uwa, suwa (the default), trust (the default with --label-sets) ..."),
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(help="Instead of a rule: how much scores count, from 0 (not) to inf (the best only)."),
    ] = None,
    label_sets: Annotated[
        Path | None,
        typer.Option(
            "--label-sets",
            help="A csv file: columns file and one per class, with how many samples of it a client holds.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Mix the predictions of several models into one teacher.

    A prediction counts by how much its model knows about such samples. Rows are aligned by the column id, classes
    by their names.

    Example: trustmix mix a.npz b.npz c.npz --out teacher.npz
    """
    from trustmix.experiment.prediction_files import mix_files, validate_output_name, write_teacher

    if tau is not None and rule is not None:
        raise TrustmixError("--rule and --tau exclude each other; give one of them.")
    validate_output_name(out, [*files, *([label_sets] if label_sets else [])])
    default = "suwa" if label_sets is None else "trust"
    teacher, names = mix_files(files, rule or default if tau is None else tau, label_sets)
    write_teacher(out, teacher, names)
    samples, classes = teacher.probabilities.shape
    typer.echo(f"files: {teacher.clients}, samples: {samples}, classes: {classes}")
    if names.scores is None:
        typer.echo("No file has scores or calibration logits, so all are trusted alike.")
    else:
        typer.echo(f"A label rests on {float(teacher.effective_clients.mean()):.1f} of them, effectively.")
    typer.echo(f"Teacher: {out}")

"""Commands that use what models predict: mix."""

from pathlib import Path
from typing import Annotated

import typer

from trustmix.cli.app import app, in_a_sentence
from trustmix.errors import TrustmixError
from trustmix.study.predictions import check_ending, mix_files, write_teacher


@app.command("mix")
@in_a_sentence
def mix_command(
    files: Annotated[list[Path], typer.Argument(help="Files of predictions, npz or csv, one a client.")],
    out: Annotated[Path, typer.Option("--out", help="The teacher's file, npz or csv.")] = Path("teacher.npz"),
    rule: Annotated[
        str | None, typer.Option(help="A rule's name: avg, uwa, suwa (the default), most-confident ...")
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(help="Instead of a rule: how much scores count, from 0 (not) to inf (the best only)."),
    ] = None,
) -> None:
    """Mix the predictions of several models, sample by sample, by how much each knows about such samples.

    Example: trustmix mix a.npz b.npz c.npz --out teacher.npz
    """
    if tau is not None and rule is not None:
        raise TrustmixError("--rule and --tau exclude each other; give one of them.")
    check_ending(out)
    teacher, names = mix_files(files, rule or "suwa" if tau is None else tau)
    write_teacher(out, teacher, names)
    samples, classes = teacher.probabilities.shape
    typer.echo(f"{teacher.clients} files, {samples} samples, {classes} classes")
    if names.scores is None:
        typer.echo("No file has scores or calibration logits, so all are trusted alike.")
    else:
        typer.echo(f"A label rests on {float(teacher.effective_clients.mean()):.1f} of them, effectively.")
    typer.echo(f"Teacher: {out}")

"""Commands that study finished runs: report, theory."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trustmix.cli.app import app, in_a_sentence
from trustmix.errors import TrustmixError
from trustmix.study.report import report
from trustmix.study.theory import examine, page


@app.command("report")
@in_a_sentence
def report_command(
    folders: Annotated[list[Path], typer.Argument(help="One or several run directories.")],
    out: Annotated[Path, typer.Option("--out", help="The HTML file.")] = Path("report.html"),
) -> None:
    """Write one HTML page about one or several runs.

    Example: trustmix report runs/avg3 runs/suwa3 --out compare.html
    """
    typer.echo(f"Report: {report(folders, out)}")


@app.command("theory")
@in_a_sentence
def theory_command(
    folders: Annotated[list[Path], typer.Argument(help="Finished runs, or folders of runs; seeds of one recipe.")],
    out: Annotated[Path, typer.Option("--out", help="The HTML file.")] = Path("theory.html"),
    reference: Annotated[
        str | None,
        typer.Option(help="What counts as the truth: model or labels; the recipe's theory.reference if not set."),
    ] = None,
) -> None:
    """Measure the teacher of finished runs: its error, bias and variance, and the floor the theory predicts.

    Example: trustmix theory runs/suwa0 runs/suwa1 runs/suwa2 --out theory.html
    """
    if reference not in (None, "model", "labels"):
        raise TrustmixError(f'--reference is "{reference}"; it must be model or labels.')
    findings, console = examine(folders, reference), Console()
    console.print(findings.table())
    console.print(findings.verdict(), soft_wrap=True, highlight=False)
    console.print(f"Page: {page(findings, out)}", soft_wrap=True, highlight=False)

"""Commands that study finished runs: report, theory."""

from pathlib import Path
from typing import Annotated

import typer

from trustmix.cli.app import AllowCode, app, confirm_code, handle_errors, make_console, print_text
from trustmix.errors import TrustmixError


@app.command("report")
@handle_errors
def report_command(
    folders: Annotated[list[Path], typer.Argument(help="Run directories, sweep directories, or both.")],
    out: Annotated[Path, typer.Option("--out", help="The HTML file.")] = Path("report.html"),
    figures_out: Annotated[
        Path | None,
        typer.Option("--figures", help="Also a folder of figures: PDF, SVG, PNG and CSV.", show_default=False),
    ] = None,
) -> None:
    """Write one HTML page about runs or sweeps; it opens offline.

    Example: trustmix report sweeps/rules --out rules.html --figures figures
    """
    from trustmix.report import load_study, write_figures, write_report

    study = load_study(folders)
    names = write_figures(study, figures_out) if figures_out else []
    typer.echo(f"Report: {write_report(study, out)}")
    if names:
        typer.echo(f"Figures: {figures_out} ({len(names)}, each as PDF, SVG, PNG and CSV)")


@app.command("theory")
@handle_errors
def theory_command(
    folders: Annotated[list[Path], typer.Argument(help="Finished runs, or folders of runs; seeds of one recipe.")],
    out: Annotated[Path, typer.Option("--out", help="The HTML file.")] = Path("theory.html"),
    reference: Annotated[
        str | None,
        typer.Option(help="What counts as the truth: model or labels; the recipe's theory.reference if not set."),
    ] = None,
    allow_code: AllowCode = False,
) -> None:
    """Measure the teacher's error in finished runs.

    The page has its bias and variance, and the floor that the theory predicts.

    Example: trustmix theory runs/suwa0 runs/suwa1 runs/suwa2 --out theory.html
    """
    from trustmix.experiment.theory import analyze_runs
    from trustmix.report.theory_page import write_theory_page

    if reference not in (None, "model", "labels"):
        raise TrustmixError(f'--reference is "{reference}"; it must be model or labels.')
    recipes = [file for folder in folders for file in sorted(folder.rglob("recipe.toml"))]
    allowed = confirm_code(recipes, allow_code=allow_code)
    findings, console = analyze_runs(folders, reference, allow_code=allowed), make_console()
    console.print(findings.table())
    print_text(console, findings.verdict())
    console.print(f"Page: {write_theory_page(findings, out)}", soft_wrap=True, highlight=False)

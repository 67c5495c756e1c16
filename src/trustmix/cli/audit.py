"""The command that attacks finished runs: audit."""

from pathlib import Path
from typing import Annotated

import typer

from trustmix.cli.app import AllowCode, app, confirm_code, handle_errors, make_console, print_text
from trustmix.errors import TrustmixError


@app.command("audit")
@handle_errors
def audit_command(
    folders: Annotated[list[Path], typer.Argument(help="One or several finished runs.")],
    shadows: Annotated[
        int, typer.Option(min=0, help="Shadow models of each client for the attack LiRA, an even number; 0: none.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also a csv file with a row per run and attack.", show_default=False)
    ] = None,
    allow_code: AllowCode = False,
) -> None:
    """Attack finished runs to measure what they reveal.

    The tables show how well each attack finds the private samples and the labels of clients.

    Example: trustmix audit runs/digits runs/digits-private --shadows 8 --out audit.csv
    """
    from rich.table import Column, Table

    from trustmix.experiment.audit import audit
    from trustmix.experiment.prediction_files import write_csv

    if out is not None and out.suffix != ".csv":
        raise TrustmixError(f"{out} (--out) must end in .csv.")
    allowed = confirm_code([folder / "recipe.toml" for folder in folders], allow_code=allow_code)
    console, rows = make_console(), []
    for folder in folders:
        audited = audit(folder, shadows=shadows, allow_code=allowed)
        labels, results = audited.labels, [*audited.findings, *audited.labels.results]
        rows += [
            (folder, audited.epsilon, audited.accuracy, r.attack, *(round(x, 6) for x in (r.auc, r.low, r.high, r.tpr)))
            for r in results
        ]
        table = Table("attack on", *(Column(name, justify="right") for name in ("AUC", "95 %", "caught")))
        for result in results:
            interval = f"{result.low:.3f} to {result.high:.3f}"
            table.add_row(result.attack, f"{result.auc:.3f}", interval, f"{100 * result.tpr:.1f} %")
        epsilon = "no promise of privacy" if audited.epsilon is None else f"promised epsilon {audited.epsilon:g}"
        accuracy = "" if audited.accuracy is None else f", accuracy {100 * audited.accuracy:.1f} %"
        console.print(f"{folder}: {epsilon}{accuracy}", highlight=False, soft_wrap=True)
        console.print(table)
        print_text(
            console,
            f"Guessed label histograms are {labels.distance:.2f} from the true ones, from 0 to 1; the mean of "
            f"all clients as the guess is {labels.baseline:.2f} from them.",
        )
    print_text(
        console,
        "caught: members found at 1 % false alarms. AUC 0.5 and 1 % caught are guessing; AUC 1 knows every member.",
    )
    if out is not None:
        names = ("run", "epsilon", "accuracy", "attack", "auc", "auc_low", "auc_high", "caught_at_1_percent")
        write_csv(out, dict(zip(names, zip(*rows, strict=True), strict=True)))
        console.print(f"Table: {out}", soft_wrap=True, highlight=False)

"""The command that attacks finished runs: audit."""

from pathlib import Path
from typing import Annotated

import typer

from trustmix.cli.app import AllowCode, app, confirm_code, handle_errors, make_console


@app.command("audit")
@handle_errors
def audit_command(
    folders: Annotated[list[Path], typer.Argument(help="One or several finished runs.")],
    shadows: Annotated[
        int, typer.Option(min=0, help="Shadow models of each client for the attack LiRA, an even number; 0: none.")
    ] = 0,
    allow_code: AllowCode = False,
) -> None:
    """Attack finished runs, and print how well each attack finds the private samples and the labels of clients.

    Example: trustmix audit runs/digits runs/digits-private --shadows 8
    """
    from rich.table import Table

    from trustmix.experiment.audit import audit

    table = Table("run", "promised epsilon", "accuracy", "attack on", "AUC", "95 %", "caught at 1 % false alarms")
    for column in (1, 2, 4, 5, 6):
        table.columns[column].justify = "right"
    allowed = confirm_code([folder / "recipe.toml" for folder in folders], allow_code=allow_code)
    distances = []
    for folder in folders:
        audited = audit(folder, shadows=shadows, allow_code=allowed)
        epsilon = "none" if audited.epsilon is None else f"{audited.epsilon:g}"
        accuracy = "-" if audited.accuracy is None else f"{100 * audited.accuracy:.1f} %"
        run = [str(folder), epsilon, accuracy]
        labels = audited.labels
        distances.append(f"{folder}: {labels.distance:.2f} ({labels.baseline:.2f})")
        for result in [*audited.findings, *labels.results]:
            interval = f"{result.low:.3f} to {result.high:.3f}"
            table.add_row(*run, result.attack, f"{result.auc:.3f}", interval, f"{100 * result.tpr:.1f} %")
            run = ["", "", ""]
    console = make_console()
    console.print(table)
    console.print("AUC 0.5 and 1 % caught are guessing; AUC 1 knows every member.", highlight=False)
    console.print(
        "Distance of the guessed from the true label histogram of a client, from 0 to 1 (the mean as the guess): "
        + ", ".join(distances),
        highlight=False,
        soft_wrap=True,
    )

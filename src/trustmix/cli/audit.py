"""The command that attacks finished runs: audit."""

from pathlib import Path
from typing import Annotated

import typer

from trustmix.cli.app import app, handle_errors


@app.command("audit")
@handle_errors
def audit_command(folders: Annotated[list[Path], typer.Argument(help="One or several finished runs.")]) -> None:
    """Try to find out who was in the private data of finished runs, and say how well that goes.

    Example: trustmix audit runs/digits runs/digits-private
    """
    from rich.console import Console
    from rich.table import Table

    from trustmix.experiment.audit import audit

    table = Table("run", "promised epsilon", "accuracy", "attack on", "AUC", "95 %", "caught at 1 % false alarms")
    for column in (1, 2, 4, 5, 6):
        table.columns[column].justify = "right"
    for folder in folders:
        found = audit(folder)
        promised = "none" if found.epsilon is None else f"{found.epsilon:g}"
        accuracy = "-" if found.accuracy is None else f"{100 * found.accuracy:.1f} %"
        run = [str(folder), promised, accuracy]
        for one in found.findings:
            table.add_row(
                *run, one.attack, f"{one.auc:.3f}", f"{one.low:.3f} to {one.high:.3f}", f"{100 * one.tpr:.1f} %"
            )
            run = ["", "", ""]
    console = Console()
    console.print(table)
    console.print("AUC 0.5 and 1 % caught are guessing; AUC 1 knows every member.", highlight=False)

"""The command for membership inference against finished runs: audit."""

from pathlib import Path
from typing import Annotated

import typer

from trustmix.cli.app import AllowCode, app, confirm_code, handle_errors, make_console


@app.command("audit")
@handle_errors
def audit_command(
    folders: Annotated[list[Path], typer.Argument(help="One or several finished runs.")],
    allow_code: AllowCode = False,
) -> None:
    """Attack finished runs by membership inference, and print how well each attack finds the private samples.

    Example: trustmix audit runs/digits runs/digits-private
    """
    from rich.table import Table

    from trustmix.experiment.audit import audit

    table = Table("run", "promised epsilon", "accuracy", "attack on", "AUC", "95 %", "caught at 1 % false alarms")
    for column in (1, 2, 4, 5, 6):
        table.columns[column].justify = "right"
    allowed = confirm_code([folder / "recipe.toml" for folder in folders], allow_code=allow_code)
    for folder in folders:
        audited = audit(folder, allow_code=allowed)
        epsilon = "none" if audited.epsilon is None else f"{audited.epsilon:g}"
        accuracy = "-" if audited.accuracy is None else f"{100 * audited.accuracy:.1f} %"
        run = [str(folder), epsilon, accuracy]
        for result in audited.findings:
            interval = f"{result.low:.3f} to {result.high:.3f}"
            table.add_row(*run, result.attack, f"{result.auc:.3f}", interval, f"{100 * result.tpr:.1f} %")
            run = ["", "", ""]
    console = make_console()
    console.print(table)
    console.print("AUC 0.5 and 1 % caught are guessing; AUC 1 knows every member.", highlight=False)

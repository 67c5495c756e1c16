"""Commands that run federations: demo, run, resume, sweep."""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trustmix.cli.app import (
    AllowCode,
    Out,
    Overrides,
    Quiet,
    RecipeName,
    app,
    confirm_code,
    handle_errors,
    log_to_console,
    make_console,
    print_text,
)
from trustmix.errors import TrustmixError
from trustmix.paths import expand_user

if TYPE_CHECKING:
    from rich.console import Console

    from trustmix.settings.recipe import Recipe


@app.command("demo")
@handle_errors
def demo_command(
    out: Annotated[
        Path, typer.Option("--out", help="Where the five runs and the report go; replaced if it exists.")
    ] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Another seed: another split, other initial models.")] = 0,
) -> None:
    """Compare five methods on built-in data, and leave a report.

    The methods are training alone, AVG, UWA, sUWA and trust.

    Example: trustmix demo
    """
    from trustmix.cli.progress import comparison_table, run_display
    from trustmix.experiment.demo import demo, verdict
    from trustmix.federation import method_label
    from trustmix.report import load_study, write_report
    from trustmix.settings.recipe import Recipe

    recipe = Recipe.load("demo", [f"seed={seed}", "train.calibrate=true"])
    console = make_console()
    held = f"{recipe.split.classes_per_client} digit classes each"
    print_text(console, f"{recipe.clients} clients, {held}, {recipe.rounds} rounds")
    begin = time.perf_counter()
    histories = demo(
        recipe, out, lambda rule, at, of: run_display(console, title=f"method {at} of {of}, {method_label(rule)}:")
    )
    console.print(comparison_table({method_label(name): history for name, history in histories.items()}))
    print_text(console, verdict(histories, recipe, classes=10))
    print_text(console, f"All five took {time.perf_counter() - begin:.0f} seconds, with their preparation.")
    page = write_report(load_study([out / method for method in histories]), out / "report.html")
    console.print(f"Report: {page}", soft_wrap=True, highlight=False)


@app.command("run")
@handle_errors
def run_command(
    recipe: RecipeName,
    overrides: Overrides = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the directory.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start the run in the directory anew.")] = False,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
) -> None:
    """Run a recipe into a run directory.

    Ctrl-C leaves a run that `trustmix resume` goes on with.

    Example: trustmix run fashion --set split.classes_per_client=3 --set rule=avg --out runs/avg3
    """
    from trustmix.settings.recipe import Recipe

    changes = overrides or []
    loaded = Recipe.load(recipe, changes)
    confirm_code([expand_user(recipe)], allow_code=allow_code, recipe=loaded)
    folder = out or Path("runs") / _default_name(recipe, changes)
    console = make_console(quiet=quiet)
    _run_and_report(loaded, folder, console, resume=resume, overwrite=overwrite)


@app.command("resume")
@handle_errors
def resume_command(
    folder: Annotated[Path, typer.Argument(help="The run directory of a run that was stopped.")],
    allow_code: AllowCode = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that was stopped.

    The recipe is that of the run directory.

    Example: trustmix resume runs/avg3
    """
    from trustmix.settings.own_code import load_run_recipe

    file = folder / "recipe.toml"
    if not file.is_file():
        raise TrustmixError(f"{folder} holds no run: there is no {file}.")
    allowed = confirm_code([file], allow_code=allow_code)
    recipe = load_run_recipe(folder, allow_code=allowed)
    _run_and_report(recipe, folder, make_console(quiet=quiet), resume=True)


def _run_and_report(
    recipe: "Recipe", folder: Path, console: "Console", *, resume: bool = False, overwrite: bool = False
) -> None:
    """Run a recipe into a directory, write the report, and print the table."""
    from trustmix.cli.progress import comparison_table, run_display
    from trustmix.experiment.run import run
    from trustmix.report import load_study, write_report
    from trustmix.report.headline import warnings

    with run_display(console) as callbacks, log_to_console(console):
        history = run(recipe, out=folder, resume=resume, overwrite=overwrite, callbacks=callbacks)
    study = load_study([folder])
    page = write_report(study, folder / "report.html")
    console.print(comparison_table({study.runs[0].label: history}))
    for warning in warnings(study):
        print_text(console, warning)
    left_out = sum(len(line.failed) for line in history)
    if left_out:
        answers = "1 answer was" if left_out == 1 else f"{left_out} answers were"
        print_text(console, f"{answers} left out; rounds.jsonl and the report state why.")
    console.print(f"Run: {folder}\nReport: {page}", soft_wrap=True, highlight=False)


@app.command("sweep")
@handle_errors
def sweep_command(
    recipe: RecipeName,
    over: Annotated[
        list[str], typer.Option("--over", help="Values to try: key=value,value; the last one given makes the columns.")
    ],
    seeds: Annotated[str, typer.Option(help="How many seeds, counted from 0, or a list such as 3,4,5.")] = "1",
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option("--out", help="The sweep's directory.", show_default=False)] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs side by side; if not set, what cores and memory allow.")
    ] = None,
    hours: Annotated[
        float | None, typer.Option(help="Time for this call; what is left is printed, and the same command goes on.")
    ] = None,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
) -> None:
    """Run a recipe with all combinations of values; make a table.

    The same command again goes on where a sweep was stopped.

    Example: trustmix sweep digits --over rule=avg,uwa,suwa --over split.classes_per_client=2,3,5 --seeds 3
    """
    from trustmix.cli.progress import sweep_display
    from trustmix.sweeps.grid import parse_over, parse_seeds
    from trustmix.sweeps.sweep import sweep
    from trustmix.sweeps.table_formats import to_markdown, to_rich_table

    swept, changes = parse_over(over), overrides or []
    confirm_code([expand_user(recipe)], allow_code=allow_code)
    folder = out or Path("sweeps") / _default_name(recipe, [*swept, *changes])
    console = make_console(quiet=quiet)
    with sweep_display(console) as show_progress:
        result = sweep(recipe, swept, parse_seeds(seeds), folder, changes, jobs, show_progress, hours)
    if console.is_terminal:
        console.print(to_rich_table(result.table))
    else:
        console.print(to_markdown(result.table), markup=False, soft_wrap=True)
    console.print(f"Tables: {folder}/table.md, table.tex, table.csv, runs.csv", soft_wrap=True, highlight=False)
    if result.left:
        print_text(console, f"Left: {len(result.left)} runs; the same command goes on with them.")
        for name in result.left:
            console.print(name, soft_wrap=True, highlight=False, markup=False)
    if result.failed:
        reasons = [f"{name}: {reason}" for name, reason in result.failed.items()]
        typer.echo("\n".join([f"Failed: {len(reasons)}. The same command tries again.", *reasons]), err=True)
        raise typer.Exit(1)


def _default_name(recipe: str, changes: Sequence[str]) -> str:
    """A directory name made of the recipe and its changes; a long name is cut and ends in a hash."""
    name = ",".join([Path(recipe).stem, *changes]).replace("/", "_")
    return name if len(name.encode()) <= 200 else f"{name[:50]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"

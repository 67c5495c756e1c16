"""Commands about recipes: recipes, settings, plan."""

from typing import Annotated

import typer

from trustmix.cli.app import (
    AllowCode,
    Overrides,
    RecipeName,
    app,
    complete_recipe,
    confirm_code,
    handle_errors,
    make_console,
    print_text,
    wrap_text,
)
from trustmix.paths import expand_user

WIDTH = 80
"""Columns that texts are wrapped to."""


@app.command("recipes")
@handle_errors
def recipes_command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A built-in recipe, which is printed with its comments.",
            show_default=False,
            autocompletion=complete_recipe,
        ),
    ] = None,
) -> None:
    """List the built-in recipes, or print one of them.

    Example: trustmix recipes digits > mine.toml
    """
    from trustmix.settings.builtin import builtin_recipes, recipe_text

    if name is not None:
        typer.echo(recipe_text(name), nl=False)
        return
    for recipe, line in builtin_recipes().items():
        typer.echo(wrap_text(line, WIDTH, first=f"{recipe:15} ", indent=" " * 16))
    note = "`trustmix recipes NAME` prints a recipe; the guard is on in each that does not state guard.on = false."
    typer.echo(wrap_text(note, WIDTH))


@app.command("settings")
@handle_errors
def settings_command(
    section: Annotated[
        str | None, typer.Argument(help="A section, such as split or train; all if not given.", show_default=False)
    ] = None,
) -> None:
    """List the settings of a recipe, with their meanings.

    Example: trustmix settings split
    """
    from trustmix.settings.reference import describe_settings

    for part in describe_settings(section):
        typer.echo(wrap_text(f"[{part.name}] {part.text}", WIDTH, indent="  "))
        for setting in part.settings:
            typer.echo(f"  {setting.path} = {setting.default}")
            listed = f"; one of {', '.join(setting.choices)}" if setting.choices else ""
            indent = " " * 6
            typer.echo(wrap_text(f"{setting.meaning}{listed}", WIDTH, first=indent, indent=indent))
        typer.echo()


@app.command("plan")
@handle_errors
def plan_command(
    recipe: RecipeName,
    overrides: Overrides = None,
    allow_code: AllowCode = False,
) -> None:
    """Estimate the time, memory and bytes of a run.

    A few steps are timed; nothing is written. Where clients are made on demand, short trial runs are made. For a
    server's recipe, the time is that of one node.

    Example: trustmix plan fashion --set rounds=50
    """
    from rich.table import Column, Table

    from trustmix.cli.progress import format_bytes, format_duration
    from trustmix.experiment.estimate import estimate_cost
    from trustmix.experiment.resources import BUSY, machine_load
    from trustmix.settings.recipe import Recipe

    console = make_console()
    loaded = Recipe.load(recipe, overrides or [])
    confirm_code([expand_user(recipe)], allow_code=allow_code, recipe=loaded)
    cost = estimate_cost(loaded)
    models = ", ".join(f"{count:,}" for count in cost.parameters)
    print_text(console, f"{cost.clients} clients, {cost.rounds} rounds, parameters: {models}")
    print_text(console, f"engine: {cost.engine}")
    stages = f"{format_duration(cost.training_seconds)} training, {format_duration(cost.predicting_seconds)} predicting"
    about = "up to" if loaded.train.public_epochs == "auto" else "about"
    print_text(console, f"time: {about} {format_duration(cost.seconds)} ({stages})")
    if cost.node_samples is not None:
        print_text(
            console,
            "The data of the nodes are not here: the time is that of one node with a machine like this one and "
            f"{cost.node_samples} samples (split.samples_per_client); the memory is the server's.",
        )
    if (load := machine_load()) > BUSY:
        print_text(
            console, f"The machine is busy, with {load:.0f} times the load of its cores; free cores take less time."
        )
    if cost.cpu_seconds is not None:
        print_text(console, f"CPU time of all processes, by trial runs: about {cost.cpu_seconds:.0f} s")
    print_text(console, f"memory: up to {cost.memory / 1e9:.1f} GB")
    if cost.epsilon is not None:
        first, later, total = cost.epsilon
        print_text(
            console, f"privacy: epsilon {first:.3g} in the first round, {later:.3g} in a later one, {total:.3g} in all"
        )
    table = Table("one client, all rounds", Column("sends", justify="right"), Column("receives", justify="right"))
    for name, (up, down) in {**cost.messages, **cost.weights}.items():
        table.add_row(name, format_bytes(up), format_bytes(down))
    console.print(table)

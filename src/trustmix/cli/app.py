"""What all commands share: the app they belong to, how mistakes become sentences, common options.

Exit code 0 on success, 1 when runs of a sweep failed, 2 on bad input with one sentence, 130 on Ctrl-C.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, ParamSpec

import typer
from rich.console import Console

import trustmix
from trustmix.errors import TrustmixError

app = typer.Typer(
    help="Federated distillation that knows who to trust.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

P = ParamSpec("P")

HINTS = {
    "run_command": " The same command with --resume goes on from the last finished round.",
    "sweep_command": " The same command goes on where it stopped.",
    "serve_command": " The same command goes on from the last finished round.",
    "join_command": " The same command takes part again, from this node's last state.",
}
"""What to say after Ctrl-C."""


def handle_errors(command: Callable[P, None]) -> Callable[P, None]:
    """A user's mistake is one sentence and exit code 2, Ctrl-C a hint and 130; neither is a traceback."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
        try:
            command(*args, **kwargs)
        except TrustmixError as error:
            console.print(f"Error: {' '.join(str(error).split())}")  # what it quotes may have lines of its own
            raise typer.Exit(2) from error
        except KeyboardInterrupt as stop:
            console.print(f"Stopped.{HINTS.get(command.__name__, '')}")
            raise typer.Exit(130) from stop

    return wrapped


RecipeName = Annotated[str, typer.Argument(help="A built-in recipe (see `trustmix recipes`) or a TOML file.")]
Out = Annotated[Path | None, typer.Option("--out", help="The run directory.", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting: key=value; may be repeated.", show_default=False)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


@contextmanager
def log_to_console(console: Console) -> Iterator[None]:
    """Print what the package logs for the user, such as how the engine runs clients."""
    handler = logging.Handler()
    handler.emit = lambda record: console.print(record.getMessage(), soft_wrap=True, highlight=False)  # type: ignore[method-assign]
    logger = logging.getLogger("trustmix")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _version(show: bool) -> None:
    if show:
        typer.echo(trustmix.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated distillation that knows who to trust."""

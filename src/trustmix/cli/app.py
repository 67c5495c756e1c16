"""The parts that all commands share: the app, the handling of errors, common options.

Modules of commands import rich and the rooms inside the command functions, so that help and completion answer at once.
Exit code 0 on success, 1 when runs of a sweep failed, 2 on bad input with one sentence, 130 on Ctrl-C.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer
import typer.core

from trustmix.errors import TrustmixError

if TYPE_CHECKING:
    from rich.console import Console

    from trustmix.settings.recipe import Recipe

typer.core.HAS_RICH = False  # help is plain text; otherwise typer imports rich for it and prints "\\[required]"

app = typer.Typer(
    help="Federated distillation that knows who to trust.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    suggest_commands=False,  # click does it
)

P = ParamSpec("P")

MAX_ERROR = 1000
"""Characters of an error that are printed."""

HINTS = {
    "run_command": " The same command with --resume, or `trustmix resume DIR`, goes on from the last finished round.",
    "resume_command": " The same command goes on from the last finished round.",
    "sweep_command": " The same command goes on where it stopped.",
    "serve_command": " The same command goes on from the last finished round.",
    "join_command": " The same command takes part again, from this node's last state.",
}
"""What is printed after Ctrl-C, by the name of the command's function."""


def handle_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Return the command with errors as sentences instead of tracebacks.

    Parameters
    ----------
    command
        The function of a command.

    Returns
    -------
    Callable
        The same function; a user's mistake ends it with one sentence and exit code 2, Ctrl-C with a hint and 130.
    """

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except TrustmixError as error:
            typer.echo(f"Error: {_shorten(' '.join(str(error).split()))}", err=True)  # it may quote lines of others
            raise typer.Exit(2) from error
        except BrokenPipeError:
            raise  # the reader of a pipe has what it wants, as in `trustmix settings | head`; click ends quietly
        except (OSError, MemoryError) as error:  # such as a name that is too long, or no permission
            typer.echo(f"Error: {_describe(error)}", err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as stop:
            typer.echo(f"Stopped.{HINTS.get(command.__name__, '')}", err=True)
            raise typer.Exit(130) from stop

    return wrapped


def _shorten(text: str) -> str:
    """A text that may quote names of any length, and bytes that are no UTF-8."""
    shown = printable(text)
    return shown if len(shown) <= MAX_ERROR else f"{shown[:MAX_ERROR]} ..."


def _describe(error: OSError | MemoryError) -> str:
    """An error of the operating system as one sentence."""
    if isinstance(error, MemoryError):
        return "There is not enough memory for this."
    reason = error.strerror or str(error)
    return _shorten(f"{error.filename}: {reason}." if error.filename else f"{reason}.")


def complete_recipe(incomplete: str) -> list[str]:
    """The names of built-in recipes that begin so, for completion in a shell, which offers files if there is none.

    >>> complete_recipe("cifar100")
    ['cifar100', 'cifar100-small']
    """
    from importlib import resources

    files = [file.name for file in (resources.files("trustmix") / "recipes").iterdir()]
    names = [name.removesuffix(".toml") for name in files if name.endswith(".toml")]
    return sorted(name for name in names if name.startswith(incomplete))


RecipeName = Annotated[
    str,
    typer.Argument(help="A built-in recipe (see `trustmix recipes`) or a TOML file.", autocompletion=complete_recipe),
]
Out = Annotated[Path | None, typer.Option("--out", help="The run directory.", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting: key=value; may be repeated.", show_default=False)
]
AllowCode = Annotated[
    bool,
    typer.Option("--allow-code", help="Run code that a recipe or run directory from elsewhere names."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def confirm_code(files: Iterable[Path], *, allow_code: bool, recipe: "Recipe | None" = None) -> bool:
    """Ask whether recipes from elsewhere may run code; without a terminal, refuse them.

    Parameters
    ----------
    files
        Recipes as TOML files; names of built-in recipes and files that do not exist are passed over.
    allow_code
        Whether the user has allowed it.
    recipe
        The recipe of the file with the user's changes.

    Returns
    -------
    bool
        True: code is allowed.

    Raises
    ------
    TrustmixError
        If a file names code, and it is not allowed.
    """
    from trustmix.settings.own_code import foreign_code, validate_code

    for file in files if not allow_code else ():
        if file.is_file() and (found := foreign_code(file, recipe)):
            names = ", ".join(f"{key} = {reference}" for key, reference in found.items())
            question = printable(f"{file} is not below the current directory and runs code: {names}. Run it?")
            if not (sys.stdin.isatty() and typer.confirm(question, err=True)):
                validate_code(file, recipe)
    return True


def make_console(*, quiet: bool = False) -> "Console":
    """Make a console that prints texts as they are: brackets and colons in them are no markup and no emoji.

    Parameters
    ----------
    quiet
        Whether the console prints nothing.

    Returns
    -------
    Console
        The console of the standard output.
    """
    from rich.console import Console

    return Console(markup=False, emoji=False, quiet=quiet)


def wrap_text(text: str, width: int, *, first: str = "", indent: str = "") -> str:
    """Break a text into lines, neither inside of a word nor between a number and its per cent sign.

    Parameters
    ----------
    text
        The text; line breaks in it count as spaces.
    width
        The number of columns.
    first, indent
        What the first line and the other ones begin with.

    Returns
    -------
    str
        The lines.

    Examples
    --------
    >>> print(wrap_text("Random-forest reaches 90.5 % of it.", 27))
    Random-forest reaches
    90.5 % of it.
    """
    from textwrap import fill

    joined = " ".join(text.split()).replace(" %", "\N{NO-BREAK SPACE}%")
    lines = fill(
        joined,
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def print_text(console: "Console", text: str) -> None:
    """Print sentences within the width of a console; they may quote another party.

    Parameters
    ----------
    console
        Where they are printed.
    text
        The sentences.
    """
    console.print(wrap_text(printable(text), console.width), soft_wrap=True, highlight=False, markup=False)


def printable(text: str) -> str:
    r"""Replace characters that would control a terminal: what is printed may quote another party.

    Parameters
    ----------
    text
        Any text.

    Returns
    -------
    str
        The text with a question mark in place of each such character; line breaks stay.

    Examples
    --------
    >>> printable("north: \x1b[2J[/x]")
    'north: ?[2J[/x]'
    """
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


CONTINUED = "\n    "
"""Between the lines of one record of the log: a text of another party cannot pass for a record of its own."""
MAX_LOG_BYTES, LOG_FILES = 10 * 2**20, 5
"""The size of a log file from which on a new one is begun, and how many older ones are kept."""


@contextmanager
def log_to_console(console: "Console", level: str = "info", file: Path | None = None) -> Iterator[None]:
    """Print the log of the package, such as how the engine runs clients.

    Parameters
    ----------
    console
        The console that the records are printed to.
    level
        The least important records: debug, info, warning or error.
    file
        For services: a file that the records are also written to, and that is rotated. Records then have timestamps.
    """
    handler = logging.Handler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s" if file else "%(message)s", "%Y-%m-%d %H:%M:%S"))

    def emit(record: logging.LogRecord) -> None:
        text = printable(handler.format(record)).replace("\n", CONTINUED)
        console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)

    handler.emit = emit  # type: ignore[method-assign]
    handlers = [handler, *([_file_handler(file)] if file else [])]
    logger = logging.getLogger("trustmix")
    for each in handlers:
        logger.addHandler(each)
    before = logger.level
    logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.setLevel(before)
        for each in handlers:
            logger.removeHandler(each)
            each.close()


def _file_handler(file: Path) -> logging.Handler:
    """Writes records to a file that only its owner can read, with times of UTC; old files are kept under numbers."""
    from logging.handlers import RotatingFileHandler

    from trustmix import storage

    class PrintableFormatter(logging.Formatter):
        @staticmethod
        def converter(seconds: float | None) -> time.struct_time:
            return time.gmtime(seconds)

        def format(self, record: logging.LogRecord) -> str:
            return printable(super().format(record)).replace("\n", CONTINUED)

    storage.make_private_directory(file.parent)
    handler = RotatingFileHandler(file, maxBytes=MAX_LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8")
    handler.setFormatter(PrintableFormatter("%(asctime)sZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S"))
    return handler


def _version(show: bool) -> None:
    if show:
        from trustmix import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated distillation that knows who to trust."""

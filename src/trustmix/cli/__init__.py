"""The command line: parses, calls, prints. One file for each group of commands, all on the app of `cli/app.py`."""

# Each module adds its commands; help lists them in this order.
# isort: off
from trustmix.cli import run, report, predict, audit, deploy  # noqa: F401
# isort: on

from trustmix.cli.app import app

__all__ = ["app"]

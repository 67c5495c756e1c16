"""The command line: parses, calls, prints. Each module adds one group of commands to the app of `cli/app.py`."""

# Each module adds its commands; help lists them in this order.
# isort: off
from trustmix.cli import run, recipes, report, predict, audit, deploy  # noqa: F401
# isort: on

from trustmix.cli.app import app

__all__ = ["app"]

"""The command line: parses, calls, prints. One file a group of commands, all on the app of `cli/app.py`."""

from trustmix.cli import predict, report, run  # noqa: F401 - they add their commands, in this order

# isort: split
from trustmix.cli import audit, deploy  # noqa: F401 - and so do these
from trustmix.cli.app import app

__all__ = [
    "app",
]

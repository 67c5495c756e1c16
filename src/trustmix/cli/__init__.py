"""The command line: parses, calls, prints. One file a group of commands, all on the app of `cli/app.py`."""

from trustmix.cli import auditing, deploying, running, studying, using  # noqa: F401 - they add their commands
from trustmix.cli.app import app

__all__ = ["app"]

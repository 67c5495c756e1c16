"""Tests run side by side, so each keeps to one thread; so do the processes they start.

Temporary files of the tests, of the examples and of their processes lie in one folder, which goes when the tests end.
"""

import os
import shutil
import tempfile

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
TEMPORARY = tempfile.mkdtemp(prefix="trustmix-tests-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"])
os.environ["TMPDIR"] = tempfile.tempdir = TEMPORARY
os.environ["XDG_CACHE_HOME"] = TEMPORARY

import torch

torch.set_num_threads(1)
from hypothesis import HealthCheck, settings

# how long an example takes, or takes to be drawn, says nothing on a busy machine
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

from collections import Counter

import pytest

BROWSER = "open_page"
"""The fixture of tests that need a browser, all of which are slow."""
HEART = {"aggregation", "density"}
"""The rooms whose coverage is measured."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in a browser belong to the slow tier; the heart is covered by its own tests, so that others are not traced.

    Tracing makes code that calls many small functions slower by a third.
    """
    for item in items:
        if BROWSER in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
        if item.path.parent.name not in HEART:
            item.add_marker(pytest.mark.no_cover)


def pytest_unconfigure() -> None:
    """Nothing stays behind in the folder for temporary files."""
    shutil.rmtree(TEMPORARY, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line says what was skipped, why, and how to enable it; another which tier was left out."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    reasons = Counter(str(why[2] if isinstance(why, tuple) else why).removeprefix("Skipped: ") for why in skipped)
    if reasons:
        text = "; ".join(f"{count} because {reason}" for reason, count in sorted(reasons.items()))
        terminalreporter.write_line(f"Skipped: {text}.")
    if terminalreporter.config.option.markexpr == "not slow":
        terminalreporter.write_line("The slow tests were left out; `make test-all` runs them too.")

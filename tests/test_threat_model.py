"""The threat model of the documentation: each promise names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/security.md").read_text("utf-8")
TABLES = PAGE[PAGE.index("## Threat model") : PAGE.index("## Privacy")]
PROMISES = [line for line in TABLES.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
TESTS = {
    name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
}


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_names_tests_that_exist(promise: str) -> None:
    named = re.findall(r"`(test_\w+)`", promise)
    assert named
    assert set(named) <= TESTS

"""Nodes in this process, without a network."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .flower_link import FlowerLink


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator["FlowerLink"]:
    """Flower's link state, polled often."""
    from trustmix.deploy import flower_engine, membership

    from .flower_link import FlowerLink

    monkeypatch.setattr(flower_engine, "POLL_INTERVAL", 0.01)
    monkeypatch.setattr(membership, "NODE_POLL_INTERVAL", 0.01)
    link = FlowerLink()
    yield link
    link.closed.set()

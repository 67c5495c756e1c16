"""When a node's connection ends: the node tries again, or gives up with the reason."""

import json
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from trustmix.deploy import supernode as module
from trustmix.deploy.superlink import NODE_ID_FILE
from trustmix.deploy.supernode import DISCONNECT_TIMEOUT, _restart
from trustmix.errors import TrustmixError
from trustmix.transport.flower_processes import SuperNode

from .flower_link import make_handler

UNREGISTERED = "ERROR : Failed to initialize. Client error '406 Not Acceptable' for url 'https://localhost:9092'"
CLOCK = "ERROR : Failed to initialize. Client error '417 Expectation Failed' for url 'https://localhost:9092'"
IN_USE = "ERROR : Exit Code: 305 Failed to initialize. [code: 2004] Failed to activate SuperNode."
CERTIFICATE = "ERROR : SSL/TLS handshake error detected."


class EndedSuperNode:
    """A SuperNode that has ended with this line in its log."""

    server, keys = "localhost:9092", None

    def __init__(self, line: str) -> None:
        self.line, self.launched = line, 0

    def log_tail(self) -> str:
        return self.line

    def launch(self) -> None:
        self.launched += 1


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART_DELAY", 0.0)


def restart(folder: Path, line: str, elapsed: float = 0.0) -> int:
    """How often the SuperNode was started again."""
    ended = EndedSuperNode(line)
    _restart(cast(SuperNode, ended), make_handler("north", folder), elapsed, "")
    return ended.launched


def accept(folder: Path) -> None:
    """Leave what a node keeps that the server has accepted before."""
    (folder / "north").mkdir()
    (folder / "north" / NODE_ID_FILE).write_text(json.dumps(7))


def test_a_node_whose_key_is_not_registered_gives_up_even_if_it_was_accepted_before(tmp_path: Path) -> None:
    accept(tmp_path)
    with pytest.raises(TrustmixError, match=r"the key of client north in .* is not registered there"):
        restart(tmp_path, UNREGISTERED)


def test_a_node_that_was_killed_waits_until_the_server_counts_it_as_gone(tmp_path: Path) -> None:
    assert restart(tmp_path, IN_USE) == 1
    with pytest.raises(TrustmixError, match="another node uses the key of client north"):
        restart(tmp_path, IN_USE, DISCONNECT_TIMEOUT + 1)


def test_a_node_that_was_accepted_before_tries_again_and_a_new_one_gives_up(tmp_path: Path) -> None:
    with pytest.raises(TrustmixError, match="the certificate is not the server's"):
        restart(tmp_path, CERTIFICATE)
    accept(tmp_path)
    assert restart(tmp_path, CERTIFICATE, DISCONNECT_TIMEOUT + 1) == 1


def test_a_node_whose_clock_is_wrong_is_told_so_and_tries_again_if_it_was_accepted_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trustmix")
    with pytest.raises(TrustmixError, match="the clock of this machine and that of the server differ by minutes"):
        restart(tmp_path, CLOCK)
    accept(tmp_path)
    assert restart(tmp_path, CLOCK) == 1
    assert "client north is refused, and tries again: the clock of this machine" in caplog.text


def test_what_a_restart_means_is_logged_in_plain_words_and_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trustmix")
    accept(tmp_path)
    ended, handler = cast(SuperNode, EndedSuperNode(CERTIFICATE)), make_handler("north", tmp_path)
    logged = _restart(ended, handler, 0.0, "")
    assert logged == "client north has lost the connection to the server; trying again"
    assert _restart(ended, handler, 1.0, logged) == logged
    handler.finished = "0123456789abcdef"
    over = _restart(ended, handler, 2.0, logged)
    assert over == "the run is over; client north waits for the next one (Ctrl-C ends)"
    in_use = _restart(cast(SuperNode, EndedSuperNode(IN_USE)), handler, 3.0, over)
    assert [record.message for record in caplog.records] == [logged, over, in_use]
    assert "305" not in caplog.text

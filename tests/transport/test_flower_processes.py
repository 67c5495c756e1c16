"""What a SuperNode's log tells `join`."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from trustmix.transport.flower_processes import SuperNode


def test_a_reply_that_flower_gave_up_is_noticed_once_and_a_line_that_is_being_written_later(tmp_path: Path) -> None:
    supernode = SuperNode(tmp_path, "localhost:9092", None)
    assert not supernode.has_lost_reply()
    with open(supernode.log_file, "a") as log:
        for text, lost in (
            ("INFO : Sending: train message\n", False),
            ("ERROR : Failed to send message 46", False),
            ("0a: the connection broke\n", True),
            ("INFO : Received successfully\n", False),
        ):
            log.write(text)
            log.flush()
            assert supernode.has_lost_reply() is lost, text
    supernode.log_file.write_text("ERROR : Failed to send message 1: in a log that was begun anew\n")
    assert supernode.has_lost_reply()

"""How a served run is doing: the status in its directory, what is printed of it, and the operator's HTTP interface."""

import json
import logging
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from trustmix.cli import app
from trustmix.cli.app import log_to_console, make_console
from trustmix.deploy.membership import Membership
from trustmix.deploy.monitor import run_monitor
from trustmix.deploy.status import StatusWriter, describe_status, format_metrics, read_status
from trustmix.errors import TrustmixError
from trustmix.federation import Round

from .flower_link import PUBLIC_SET, RUN_INFO, FlowerLink, make_handler

LINE = Round(1, "trust", accuracy_mean=0.8, bytes_up=1000, bytes_down=300, epsilon=2.5)


@pytest.fixture
def writer(link: FlowerLink, tmp_path: Path) -> StatusWriter:
    """A run with one client that is connected and one whose key has not been used yet."""
    link.add_node(make_handler("north", tmp_path).handle)
    membership = Membership(link.grid, RUN_INFO, PUBLIC_SET, tmp_path / "nodes.json")
    end = time.monotonic() + 300
    while "north" not in membership.connected and time.monotonic() < end:
        membership.poll_nodes()
        for message in link.grid.pull_messages(list(membership.handshakes)):
            membership.handle_reply(message)
    membership.poll_nodes()
    made = StatusWriter(tmp_path, 3, membership, ["north", 'so"uth'], certificate_expires=2e9)
    made.begin([])
    return made


def test_the_status_names_who_is_awaited_who_is_absent_and_what_was_spent(writer: StatusWriter) -> None:
    refused = {"east": "it has a class that the server does not know", "north": "it has joined since"}
    writer.add(replace(LINE, refused=refused))
    writer.write(["north"])
    status = read_status(writer.folder)
    now = float(str(status["updated"]))
    lines = describe_status(status, now)
    assert lines[0] == "round 2 of 3 (1 recorded), 1 of 2 clients connected"
    assert lines[1].startswith("  north: computing, heard ")
    assert lines[2:7] == [
        '  so"uth: absent, never heard',
        "  east: refused, it has a class that the server does not know",
        "bytes: 1,000 up, 300 down",
        "epsilon spent: 2.5",
        "accuracy, mean over clients: 80.0 %",
    ]
    assert describe_status(status, now + 1000)[0] == "stopped after round 1 of 3; the same `trustmix serve` goes on"
    for number in (2, 3):
        writer.add(replace(LINE, round=number))
    assert read_status(writer.folder)["bytes_up"] == 3000
    assert describe_status(read_status(writer.folder), now)[0] == "round 3 of 3 (3 recorded), 1 of 2 clients connected"
    (writer.folder / "summary.json").write_text("{}")
    assert describe_status(read_status(writer.folder), now + 1000)[0] == "finished: 3 rounds"


def test_metrics_are_what_prometheus_reads(writer: StatusWriter) -> None:
    parser = pytest.importorskip(
        "prometheus_client.parser", reason="prometheus_client is not installed: pip install prometheus-client"
    )
    writer.add(LINE)
    text = format_metrics(read_status(writer.folder), time.time())
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert families["trustmix_round"].samples[0].value == 1
    connected = {sample.labels["client"]: sample.value for sample in families["trustmix_client_connected"].samples}
    assert connected == {"north": 1.0, 'so"uth': 0.0}
    assert families["trustmix_upload_bytes"].type == "counter"
    assert families["trustmix_certificate_expiry_timestamp_seconds"].samples[0].value == 2e9


def test_the_monitor_answers_health_status_and_metrics_and_nothing_else(writer: StatusWriter, tmp_path: Path) -> None:
    with run_monitor("127.0.0.1", 0, tmp_path) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        assert (client.get("/health").status_code, client.get("/health").text) == (200, "ok\n")
        assert client.get("/status").json()["rounds"] == 3
        assert "trustmix_rounds 3" in client.get("/metrics").text
        assert [client.get("/..%2frecipe.toml").status_code, client.get("/").status_code] == [404, 404]
        assert client.post("/health").status_code == 501
        printed = CliRunner().invoke(app, ["status", f"127.0.0.1:{port}"])
        assert printed.output.startswith("round 1 of 3 (0 recorded), 1 of 2 clients connected")
        in_folder = CliRunner().invoke(app, ["status", str(tmp_path)])
        assert re.sub(r"\d+ s ago", "", printed.output) == re.sub(r"\d+ s ago", "", in_folder.output)
        old = json.loads((tmp_path / "status.json").read_text()) | {"updated": 0.0}
        (tmp_path / "status.json").write_text(json.dumps(old))
        assert client.get("/health").status_code == 503
        with pytest.raises(TrustmixError, match="choose another address"), run_monitor("127.0.0.1", port, tmp_path):
            pass


def test_what_has_no_status_is_an_error_with_the_reason(tmp_path: Path) -> None:
    for run, reason in ((str(tmp_path), "it is no run directory"), ("127.0.0.1:1", "does not answer with the status")):
        found = CliRunner().invoke(app, ["status", run])
        assert (found.exit_code, reason in found.output) == (2, True), found.output


def test_the_log_of_a_service_has_times_is_rotated_and_cannot_control_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules["trustmix.cli.app"], "MAX_LOG_BYTES", 300)
    file, log = tmp_path / "logs" / "serve.log", logging.getLogger("trustmix.deploy.test")
    with log_to_console(make_console(), "warning", file):
        log.info("not shown")
        for number in range(60):
            log.warning("client \x1b[2Jnorth %d", number)
    assert len(list(file.parent.glob("serve.log*"))) == 6
    assert all(place.stat().st_size <= 300 for place in file.parent.iterdir())
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ WARNING client \?\[2Jnorth 59", file.read_text().splitlines()[-1]
    )
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d client \?\[2Jnorth 0\n", capsys.readouterr().out)

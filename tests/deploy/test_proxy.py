"""Keys and the server's reverse proxy: real TLS on loopback, and only nodes' requests are forwarded."""

import re
import shutil
import ssl
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

import httpx
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata
from flwr.proto.node_pb2 import Node
from typer.testing import CliRunner

from trustmix.cli import app
from trustmix.deploy.flower_processes import free_port
from trustmix.deploy.keys import NodeKeys, ServerKeys, make_keys
from trustmix.deploy.proxy import MAX_BODY_BYTES, run_proxy
from trustmix.errors import TrustmixError


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "keys"
    make_keys(folder, ["trustmix.example.org"], ["north", "south"])
    return folder


@pytest.fixture(scope="module")
def proxy(keys: Path) -> Iterator[str]:
    """A proxy without a SuperLink behind it."""
    ports = [free_port(), free_port()]
    with run_proxy("127.0.0.1", ports[0], f"127.0.0.1:{ports[1]}", ServerKeys(keys / "server")) as ready:
        ready.set()
        yield f"https://127.0.0.1:{ports[0]}"


def post(keys: Path, url: str, content: bytes = b"") -> int:
    context = ssl.create_default_context(cafile=str(keys / "north" / "ca.crt"))
    return httpx.post(url, content=content, verify=context).status_code


REFUSED = (
    "/v1/control/start-run",
    "/v1/control/register-node",
    "/v1/runtime/acquire-task",
    "/v1/fleet/register-node",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1/fleet/pull-messages/../../control/start-run",
    "/docs",
    "/",
)


def test_requests_of_nodes_are_forwarded_and_all_others_are_not_found(keys: Path, proxy: str) -> None:
    assert post(keys, f"{proxy}/v1/fleet/pull-messages") == 503  # forwarded: no SuperLink answers
    for path in REFUSED:
        assert post(keys, proxy + path) == 404, path
    assert post(keys, f"{proxy}/v1/fleet/push-object", b"x" * (MAX_BODY_BYTES + 1)) == 413


def test_messages_in_another_nodes_name_are_refused(keys: Path, proxy: str) -> None:
    for source, status in ((7, 503), (8, 403)):
        message = ProtoMessage(metadata=Metadata(src_node_id=source))
        request = PushMessagesRequest(node=Node(node_id=7), messages_list=[message])
        assert post(keys, f"{proxy}/v1/fleet/push-messages", request.SerializeToString()) == status
    assert post(keys, f"{proxy}/v1/fleet/push-messages", b"no protobuf") == 403


def test_a_server_with_another_authoritys_certificate_is_refused(keys: Path, proxy: str, tmp_path: Path) -> None:
    make_keys(tmp_path / "other", ["trustmix.example.org"], ["north"])
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        post(tmp_path / "other", f"{proxy}/v1/fleet/pull-messages")


@pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx on this machine: apt-get install nginx")
def test_the_documented_nginx_forwards_the_same_requests_and_no_more(keys: Path, tmp_path: Path) -> None:
    document = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    found = re.search(r"```nginx\n(.*?)```", document, re.DOTALL)
    assert found
    front, behind = free_port(), free_port()
    config = found[1].replace("/etc/trustmix", str(keys / "server"))
    config = config.replace("listen 9092", f"listen 127.0.0.1:{front}").replace("127.0.0.1:8000", f"127.0.0.1:{behind}")
    place = f"pid {tmp_path}/pid; error_log {tmp_path}/error.log; daemon off; events {{}}"
    (tmp_path / "nginx.conf").write_text(f"{place} http {{ access_log off; {TEMPORARY} {config} }}")
    command = ["nginx", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as nginx:
        try:
            end = time.monotonic() + 120
            while not (tmp_path / "pid").exists():
                assert nginx.poll() is None, nginx.stderr and nginx.stderr.read()
                assert time.monotonic() < end, "nginx has not started"
                time.sleep(0.05)
            assert post(keys, f"https://127.0.0.1:{front}/v1/fleet/pull-messages") == 502  # no SuperLink answers
            for path in REFUSED:
                assert post(keys, f"https://127.0.0.1:{front}{path}") == 404, path
        finally:
            nginx.terminate()


TEMPORARY = " ".join(f"{kind}_temp_path temp;" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))


def test_private_keys_are_readable_by_their_owner_only(keys: Path) -> None:
    for file in (keys / "ca.key", keys / "server" / "server.key", keys / "north" / "node.key"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(ServerKeys(keys / "server").node_public_keys()) == ["north", "south"]
    assert not (keys / "server" / "ca.key").exists()


def test_nodes_are_added_and_keys_never_overwritten(keys: Path) -> None:
    before = NodeKeys(keys / "north").private_key.read_bytes()
    result = CliRunner().invoke(app, ["keys", str(keys), "--nodes", "west"])
    assert result.exit_code == 0, result.output
    assert "west" in ServerKeys(keys / "server").node_public_keys()
    with pytest.raises(TrustmixError, match="exists already"):
        make_keys(keys, [], ["north"])
    assert NodeKeys(keys / "north").private_key.read_bytes() == before


def test_a_folder_without_keys_and_a_taken_port_are_refused(keys: Path, proxy: str, tmp_path: Path) -> None:
    with pytest.raises(TrustmixError, match=r"lacks ca\.crt, server\.crt, server\.key, nodes"):
        ServerKeys(tmp_path)
    port = int(proxy.rpartition(":")[2])
    with pytest.raises(TrustmixError, match="Could not listen"), run_proxy("127.0.0.1", port, "127.0.0.1:1", None):
        pass


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["serve", "demo"], "Give either --keys"),
        (["serve", "demo", "--insecure", "--address", "0.0.0.0:9092"], "--insecure is for loopback only"),
        (["join", "example.org:9092", "--node", "n.toml", "--insecure"], "--insecure is for loopback only"),
        (["join", "example.org", "--node", "n.toml", "--insecure"], "is no address"),
        (["keys", "k", "--nodes", "a/b"], "is no client id"),
        (["keys", "k", "--nodes", "a"], "Give the name or address"),
        (["serve", "demo", "--insecure", "--set", "rule=alone"], "there is nothing to serve"),
        (["serve", "demo", "--insecure", "--set", "attack.kind=flip"], "[attack] is for simulated clients"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert complaint in result.output.replace("\n", " ")

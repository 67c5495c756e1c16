"""Keys and the server's reverse proxy: real TLS on loopback, and only nodes' requests are forwarded."""

import asyncio
import re
import shutil
import socket
import ssl
import stat
import subprocess
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from starlette.responses import Response
from typer.testing import CliRunner

from trustmix.cli import app
from trustmix.errors import TrustmixError
from trustmix.transport.flower_processes import free_port
from trustmix.transport.keys import NodeKeys, ServerKeys, make_keys
from trustmix.transport.node_auth import UNKNOWN_KEY, WRONG_CLOCK
from trustmix.transport.proxy import MAX_BODY_BYTES, MAX_QUERY_BYTES, _listen, run_proxy
from trustmix.transport.quota import UploadQuota

TIMEOUT = 300
"""Seconds until a proxy that does not answer is given up."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "keys"
    make_keys(folder, ["trustmix.example.org"], ["north", "south"])
    return folder


@pytest.fixture(scope="module")
def proxy(keys: Path) -> Iterator[str]:
    """A proxy without a SuperLink behind it."""
    port = free_port()
    with silent_port() as behind, run_proxy("127.0.0.1", port, behind, ServerKeys(keys / "server")) as ready:
        ready.set()
        yield f"https://127.0.0.1:{port}"


@contextmanager
def silent_port() -> Iterator[str]:
    """An address that nobody listens at, nor will as long as this lasts."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def quota() -> UploadQuota:
    return UploadQuota()


@pytest.fixture
def counting_proxy(keys: Path, quota: UploadQuota) -> Iterator[str]:
    """A proxy with a quota for each node, without a SuperLink behind it."""
    port = free_port()
    with silent_port() as behind, run_proxy("127.0.0.1", port, behind, ServerKeys(keys / "server"), quota) as ready:
        ready.set()
        yield f"https://127.0.0.1:{port}"


def signed_headers(keys: Path, node: str = "north", signed_at: datetime | None = None) -> dict[str, str]:
    """The headers by which a node shows its key."""
    key = load_ssh_private_key(NodeKeys(keys / node).private_key.read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    timestamp = (signed_at or datetime.now(UTC)).isoformat()
    return {
        "flwr-public-key": b64encode(public_key_to_bytes(key.public_key())).decode(),
        "flwr-timestamp": timestamp,
        "flwr-signature": b64encode(sign_message(key, timestamp.encode())).decode(),
    }


def post(keys: Path, url: str, content: bytes | Iterator[bytes] = b"", headers: dict[str, str] | None = None) -> int:
    """The status of the response to a request; by default one that node north has signed."""
    context = ssl.create_default_context(cafile=str(keys / "north" / "ca.crt"))
    headers = signed_headers(keys) if headers is None else headers
    return httpx.post(url, content=content, headers=headers, verify=context, timeout=TIMEOUT).status_code


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
    assert post(keys, f"{proxy}/v1/fleet/pull-messages", b"x" * (MAX_QUERY_BYTES + 1)) == 413
    assert post(keys, f"{proxy}/v1/fleet/pull-messages", iter([b"of", b"unknown", b"length"])) == 411


def test_a_request_that_no_registered_key_has_signed_is_refused_before_its_body_is_read(
    keys: Path, proxy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "trustmix")
    monkeypatch.setattr("trustmix.transport.proxy.LOG_INTERVAL", -1.0)
    make_keys(tmp_path / "other", ["trustmix.example.org"], ["stranger"])
    old, early = (datetime.now(UTC) + timedelta(minutes=minutes) for minutes in (-10, 60))
    signed = signed_headers(keys)
    wrong = signed_headers(keys, "south")["flwr-signature"]
    for headers, status in (
        ({}, UNKNOWN_KEY),
        (signed_headers(tmp_path / "other", "stranger"), UNKNOWN_KEY),
        ({**signed, "flwr-public-key": "no base64"}, UNKNOWN_KEY),
        (signed_headers(keys, signed_at=old), WRONG_CLOCK),
        (signed_headers(keys, signed_at=early), WRONG_CLOCK),
        ({**signed_headers(keys, signed_at=old), "flwr-signature": wrong}, 401),
        ({**signed, "flwr-signature": wrong}, 401),
        ({**signed, "flwr-timestamp": "yesterday"}, 401),
    ):
        assert post(keys, f"{proxy}/v1/fleet/pull-messages", headers=headers) == status
    assert "node north at 127.0.0.1 is refused: its clock is 10 min behind the clock of this server" in caplog.text
    assert "its clock is 60 min ahead of the clock of this server" in caplog.text
    head = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 32000000\r\n\r\n"
    with connect(keys, proxy) as connection:
        connection.sendall(head)
        assert connection.recv(1000).startswith(b"HTTP/1.1 406")
        with pytest.raises(OSError, match=r"EOF|reset|[Bb]roken"):
            send_slowly(connection)


def connect(keys: Path, proxy: str) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(keys / "north" / "ca.crt"))
    raw = socket.create_connection(("127.0.0.1", int(proxy.rpartition(":")[2])), timeout=TIMEOUT)
    return context.wrap_socket(raw, server_hostname="127.0.0.1")


def send_slowly(connection: ssl.SSLSocket) -> None:
    """Send until the other side ends the connection, at most for two minutes."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        connection.sendall(b"x" * 1000)
        time.sleep(0.1)


def test_connections_without_a_key_are_few_and_end_soon(
    keys: Path, counting_proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trustmix.transport.proxy.MAX_STRANGERS", 5)
    monkeypatch.setattr("trustmix.transport.proxy.STRANGER_TIMEOUT", 10 * TIMEOUT)  # it ends none of them here
    with ExitStack() as stack:
        strangers = [stack.enter_context(connect(keys, counting_proxy)) for _ in range(20)]
        assert post(keys, f"{counting_proxy}/v1/fleet/pull-messages") == 503, "a node is still served"
        for stranger in strangers[:14]:
            assert is_closed(stranger)
        monkeypatch.setattr("trustmix.transport.proxy._end_handshake", lambda _: None)  # a slow handshake may end
        monkeypatch.setattr("trustmix.transport.proxy.STRANGER_TIMEOUT", 0.1)
        assert is_closed(stack.enter_context(connect(keys, counting_proxy)))


def test_connections_that_begin_no_handshake_are_few_and_end_soon(
    keys: Path, counting_proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trustmix.transport.proxy.MAX_STRANGERS", 5)
    monkeypatch.setattr("trustmix.transport.proxy.STRANGER_TIMEOUT", 10 * TIMEOUT)  # it ends none of them here
    address = ("127.0.0.1", int(counting_proxy.rpartition(":")[2]))
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(address, timeout=40)) for _ in range(20)]
        for connection in silent[:15]:
            assert is_closed(connection)
        assert post(keys, f"{counting_proxy}/v1/fleet/pull-messages") == 503, "a node is still served"
        monkeypatch.setattr("trustmix.transport.proxy.STRANGER_TIMEOUT", 0.1)
        assert is_closed(stack.enter_context(socket.create_connection(address, timeout=40)))  # asyncio waits 60 s


def test_a_body_in_chunks_is_refused_whatever_length_it_announces(
    keys: Path, counting_proxy: str, quota: UploadQuota
) -> None:
    quota.grant("north", 1000)
    lines = [f"{name}: {value}" for name, value in signed_headers(keys).items()]
    framing = ["Content-Length: 10", "Transfer-Encoding: chunked"]
    head = "\r\n".join(["POST /v1/fleet/push-object HTTP/1.1", "Host: x", *framing, *lines, "", ""])
    with connect(keys, counting_proxy) as connection:
        connection.sendall(head.encode() + b"a\r\n0123456789\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 411")


def test_a_node_has_few_connections(keys: Path, counting_proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trustmix.transport.proxy.MAX_CONNECTIONS_PER_NODE", 2)
    lines = [f"{name}: {value}" for name, value in signed_headers(keys).items()]
    head = "\r\n".join(["POST /v1/fleet/push-object HTTP/1.1", "Host: x", "Content-Length: 900", *lines, "", ""])
    over = threading.Event()

    async def wait(*_: object) -> Response:
        while not over.is_set():
            await asyncio.sleep(0.01)
        return Response()

    monkeypatch.setattr("trustmix.transport.proxy.Proxy._forward", wait)
    with ExitStack() as stack:
        stack.callback(over.set)
        connections = [stack.enter_context(connect(keys, counting_proxy)) for _ in range(4)]
        for connection in connections:
            connection.sendall(head.encode())
        assert is_closed(connections[0])
        assert is_closed(connections[1])
        connections[3].settimeout(0.5)
        assert not is_closed(connections[3])


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side ends the connection before the time of the socket is over."""
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_a_node_sends_no_more_than_the_answer_to_its_last_request_needs(
    keys: Path, counting_proxy: str, quota: UploadQuota
) -> None:
    url = f"{counting_proxy}/v1/fleet/push-object"
    assert post(keys, url, b"x") == 413
    quota.grant("north", 1000)
    assert post(keys, url, b"x" * 600) == 503  # forwarded
    assert post(keys, url, b"x" * 600) == 413
    assert post(keys, url, b"x" * 400) == 503
    assert post(keys, url, b"x", signed_headers(keys, "south")) == 413, "a quota is a node's own"
    assert post(keys, f"{counting_proxy}/v1/fleet/pull-messages", b"x") == 503


def test_a_body_that_does_not_come_ends_the_request(
    keys: Path, counting_proxy: str, quota: UploadQuota, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trustmix.transport.proxy.BODY_TIMEOUT", 0.1)
    quota.grant("north", 1000)
    lines = [f"{name}: {value}" for name, value in signed_headers(keys).items()]
    head = "\r\n".join(["POST /v1/fleet/push-object HTTP/1.1", "Host: x", "Content-Length: 900", *lines, "", ""])
    with connect(keys, counting_proxy) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")


def test_one_node_cannot_take_all_of_the_proxys_time(
    keys: Path, counting_proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trustmix.transport.proxy.MAX_REQUESTS_PER_NODE", 0)
    assert post(keys, f"{counting_proxy}/v1/fleet/pull-messages") == 429


def test_messages_in_another_nodes_name_are_refused(keys: Path, proxy: str) -> None:
    for source, status in ((7, 503), (8, 403)):
        message = ProtoMessage(metadata=Metadata(src_node_id=source))
        request = PushMessagesRequest(node=Node(node_id=7), messages_list=[message])
        assert post(keys, f"{proxy}/v1/fleet/push-messages", request.SerializeToString()) == status
    assert post(keys, f"{proxy}/v1/fleet/push-messages", b"no protobuf") == 403


def nest(depth: int) -> ObjectTree:
    """A tree in which each object has the next one twice, the second time without its own children."""
    if depth == 0:
        return ObjectTree(object_id="0")
    return ObjectTree(object_id=str(depth), children=[nest(depth - 1), ObjectTree(object_id=str(depth - 1))])


def chain(depth: int) -> ObjectTree:
    return ObjectTree(object_id=str(depth), children=[chain(depth - 1)] if depth else [])


def test_a_short_tree_of_objects_that_unfolds_to_an_endless_one_is_refused(keys: Path, proxy: str) -> None:
    for tree, status in ((chain(4), 503), (nest(3), 403), (chain(50), 403)):
        request = PushMessagesRequest(message_object_trees=[tree])
        assert post(keys, f"{proxy}/v1/fleet/push-messages", request.SerializeToString()) == status


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


def test_an_address_of_a_family_that_is_off_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without IPv6 has ::1 for localhost all the same; 192.0.2.1 is an address that no machine has."""
    port, stream = free_port(), (socket.AF_INET, socket.SOCK_STREAM, 0, "")
    found = [(*stream, ("192.0.2.1", port)), (*stream, ("127.0.0.1", port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    (listener,) = _listen("localhost", port)
    with listener:
        assert listener.getsockname() == ("127.0.0.1", port)
    del found[1]
    with pytest.raises(TrustmixError, match=f"Could not listen on localhost:{port}: is the port in use"):
        _listen("localhost", port)

"""The operator's HTTP interface to a served run: /health, /status (JSON) and /metrics (Prometheus), read-only.

It reads `status.json` of the run directory and nothing else, on a port of its own, by default of loopback. There is no
password: bind it to other addresses only where those who reach it may know the names and figures of the run.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from trustmix.deploy.status import format_metrics, is_alive, read_status
from trustmix.errors import TrustmixError

REQUEST_TIMEOUT = 10
"""Seconds that a request may take."""


@contextmanager
def run_monitor(host: str, port: int, folder: Path) -> Iterator[int]:
    """Answer requests about a run until the block ends.

    Parameters
    ----------
    host, port : str, int
        The address to listen on; with port 0 any free one.
    folder : Path
        The run directory.

    Yields
    ------
    int
        The port.

    Raises
    ------
    TrustmixError
        If the address is in use or is not one of this machine.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT
        server_version, sys_version = "trustmix", ""

        def do_GET(self) -> None:
            code, kind, text = _answer(self.path.partition("?")[0], folder)
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the interface
            """Requests are not logged: one comes every few seconds."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise TrustmixError(f"--monitor {host}:{port}: {error.strerror}; choose another address.") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(path: str, folder: Path) -> tuple[int, str, str]:
    """The code, the type and the body of a response."""
    if path not in ("/health", "/status", "/metrics"):
        return HTTPStatus.NOT_FOUND, "text/plain", "/health, /status or /metrics\n"
    try:
        status, now = read_status(folder), time.time()
    except TrustmixError:
        return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", "the run has not begun\n"
    if path == "/metrics":
        return HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", format_metrics(status, now)
    if path == "/status":
        return HTTPStatus.OK, "application/json", json.dumps(status)
    if is_alive(status, now):
        return HTTPStatus.OK, "text/plain", "ok\n"
    return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", "stopped\n"

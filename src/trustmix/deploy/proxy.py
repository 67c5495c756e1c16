"""The door of a server: what nodes need passes to the SuperLink behind it, everything else is turned away.

In Flower 1.41 the interfaces for nodes, for operators and for apps share one port, and the operators' one knows no
password: whoever reaches it can register a key or start a run. So the SuperLink listens on loopback, and only this
door, which knows the nodes' few requests, listens where others can reach it.
"""

import asyncio
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trustmix.deploy.keys import ServerKeys
from trustmix.errors import TrustmixError

NODES = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
"""What a node with a registered key asks for."""
UNAUTHENTICATED_ROUTES = ("register-node", "unregister-node")
"""What a node without a key needs in addition."""
LARGEST = 32 * 2**20
"""Bytes of a request: Flower cuts payloads into chunks of five megabytes."""


@contextmanager
def run_proxy(host: str, port: int, behind: str, keys: ServerKeys | None) -> Iterator[threading.Event]:
    """Listen on the address and pass nodes' requests on to the SuperLink at `behind`, until the block ends.

    Nodes wait outside until the event is set: a SuperLink that does not know their keys yet would refuse them.
    """
    door = Proxy(behind, keys)
    config = uvicorn.Config(
        Starlette(routes=[Route("/v1/fleet/{action}", door.pass_on, methods=["POST"])]),
        host=host,
        port=port,
        log_level="critical",
        ws="none",
        access_log=False,
        ssl_certfile=None if keys is None else str(keys.certificate),
        ssl_keyfile=None if keys is None else str(keys.key),
    )
    server = uvicorn.Server(config)
    failed: list[BaseException] = []

    def serve() -> None:
        try:
            server.run()
        except BaseException as error:  # noqa: BLE001 - uvicorn ends its thread by SystemExit when the port is taken
            failed.append(error)

    thread = threading.Thread(target=serve, name="gate", daemon=True)
    thread.start()
    while not server.started:
        if failed or not thread.is_alive():
            reason = "is the port in use, or the address another's?"
            if failed and not isinstance(failed[0], SystemExit):
                reason = str(failed[0])
            raise TrustmixError(f"Could not listen on {host}:{port}: {reason}")
        time.sleep(0.05)
    try:
        yield door.ready
    finally:
        server.should_exit = True
        thread.join(5)


class Proxy:
    """Passes on what nodes may ask."""

    def __init__(self, behind: str, keys: ServerKeys | None) -> None:
        self._allowed = NODES if keys is not None else NODES + UNAUTHENTICATED_ROUTES
        self._base = f"{'http' if keys is None else 'https'}://{behind}/v1/fleet/"
        self._verify = False if keys is None else ssl.create_default_context(cafile=str(keys.authority))
        self._client: httpx.AsyncClient | None = None
        self.ready = threading.Event()

    async def pass_on(self, request: Request) -> Response:
        """The SuperLink's response, or a refusal."""
        action = request.path_params["action"]
        if action not in self._allowed:
            return Response(status_code=404)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > LARGEST:
                return Response(status_code=413)
        if self._client is None:
            self._client = httpx.AsyncClient(verify=self._verify, timeout=60)
        headers = {key: value for key, value in request.headers.items() if key not in ("host", "content-length")}
        try:
            if not self.ready.is_set():
                raise httpx.ConnectError("not yet")
            found = await self._client.post(self._base + action, content=bytes(body), headers=headers)
        except httpx.HTTPError:
            await asyncio.sleep(0.2)
            return Response(status_code=503)  # a node tries again
        kept = {key: value for key, value in found.headers.items() if key not in DROPPED}
        return Response(found.content, found.status_code, kept)


DROPPED = ("content-length", "content-encoding", "transfer-encoding", "connection", "server", "date")
"""Headers that belong to one hop only."""

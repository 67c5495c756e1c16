"""The server's reverse proxy: forwards the requests of nodes to the SuperLink and refuses all others.

In Flower 1.41 the interfaces for nodes, for operators and for apps share one port, and the operators' one needs no
password: every host that reaches it can register a key or start a run. So the SuperLink listens on loopback, and only
this proxy, which knows the few requests of nodes, listens on the server's address.
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
from trustmix.deploy.superlink import sends_own_messages
from trustmix.errors import TrustmixError

NODE_ROUTES = (
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
"""Requests of a node with a registered key."""
UNAUTHENTICATED_ROUTES = ("register-node", "unregister-node")
"""Further requests of a node without a key."""
MAX_BODY_BYTES = 32 * 2**20
"""The largest request: Flower cuts payloads into chunks of five megabytes."""
HOP_HEADERS = ("content-length", "content-encoding", "transfer-encoding", "connection", "server", "date")
"""Headers of a response that belong to one connection only."""
UPSTREAM_TIMEOUT = 60.0
"""Seconds that the SuperLink may take for a response."""


@contextmanager
def run_proxy(host: str, port: int, upstream: str, keys: ServerKeys | None) -> Iterator[threading.Event]:
    """Forward nodes' requests to the SuperLink until the block ends.

    Parameters
    ----------
    host, port : str, int
        The address to listen on.
    upstream : str
        The SuperLink's address, HOST:PORT.
    keys : ServerKeys, optional
        The server's keys; without them there is no TLS.

    Yields
    ------
    threading.Event
        Requests are forwarded while it is set. Before, nodes are asked to try again later: a SuperLink that does not
        know their keys yet would refuse them.

    Raises
    ------
    TrustmixError
        If the address cannot be listened on.
    """
    proxy = Proxy(upstream, keys)
    config = uvicorn.Config(
        Starlette(routes=[Route("/v1/fleet/{action}", proxy.forward, methods=["POST"])]),
        host=host,
        port=port,
        log_level="critical",
        ws="none",
        access_log=False,
        ssl_certfile=None if keys is None else str(keys.certificate),
        ssl_keyfile=None if keys is None else str(keys.private_key),
    )
    server = uvicorn.Server(config)
    thread = _start(server, f"{host}:{port}")
    try:
        yield proxy.ready
    finally:
        server.should_exit = True
        thread.join(5)


def _start(server: uvicorn.Server, address: str) -> threading.Thread:
    """Run the server in a thread, and wait until it listens."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            server.run()
        except BaseException as error:  # noqa: BLE001 - uvicorn ends its thread by SystemExit when the port is taken
            errors.append(error)

    thread = threading.Thread(target=run, name="proxy", daemon=True)
    thread.start()
    while not server.started:
        if errors or not thread.is_alive():
            reason = "is the port in use, or the address another host's?"
            if errors and not isinstance(errors[0], SystemExit):
                reason = str(errors[0])
            raise TrustmixError(f"Could not listen on {address}: {reason}")
        time.sleep(0.05)
    return thread


class Proxy:
    """Forwards the requests that nodes may send.

    Parameters
    ----------
    upstream : str
        The SuperLink's address, HOST:PORT.
    keys : ServerKeys, optional
        The server's keys; without them there is no TLS.
    """

    def __init__(self, upstream: str, keys: ServerKeys | None) -> None:
        self._routes = NODE_ROUTES if keys is not None else NODE_ROUTES + UNAUTHENTICATED_ROUTES
        self._base = f"{'http' if keys is None else 'https'}://{upstream}/v1/fleet/"
        self._verify = False if keys is None else ssl.create_default_context(cafile=str(keys.ca_certificate))
        self._client: httpx.AsyncClient | None = None
        self.ready = threading.Event()

    async def forward(self, request: Request) -> Response:
        """Forward a request.

        Parameters
        ----------
        request : Request
            A request of HTTP.

        Returns
        -------
        Response
            The SuperLink's response, 404 for a request that nodes do not send, 413 for one that is too large, 403 for
            messages in another node's name, or 503 while the SuperLink is not ready.
        """
        action = request.path_params["action"]
        if action not in self._routes:
            return Response(status_code=404)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                return Response(status_code=413)
        if action == "push-messages" and not sends_own_messages(bytes(body)):
            return Response(status_code=403)
        if self._client is None:
            self._client = httpx.AsyncClient(verify=self._verify, timeout=UPSTREAM_TIMEOUT)
        headers = {key: value for key, value in request.headers.items() if key not in ("host", "content-length")}
        try:
            if not self.ready.is_set():
                raise httpx.ConnectError("not ready")
            response = await self._client.post(self._base + action, content=bytes(body), headers=headers)
        except httpx.HTTPError:
            await asyncio.sleep(0.2)
            return Response(status_code=503)  # a node tries again
        kept = {key: value for key, value in response.headers.items() if key not in HOP_HEADERS}
        return Response(response.content, response.status_code, kept)

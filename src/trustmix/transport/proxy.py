"""The server's reverse proxy: forwards the requests of nodes to the SuperLink and refuses all others.

In Flower 1.41 the interfaces for nodes, for operators and for apps share one port, and the operators' one needs no
password: every host that reaches it can register a key or start a run. So the SuperLink listens on loopback, and only
this proxy, which knows the few requests of nodes, listens on the server's address. It reads the body of a request only
after a registered key has signed the request, and only as many bytes as that node may send.
"""

import asyncio
import errno
import logging
import os
import socket
import ssl
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakValueDictionary

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from trustmix.errors import TrustmixError
from trustmix.transport.keys import ServerKeys
from trustmix.transport.node_auth import UNKNOWN_KEY, WRONG_CLOCK, NodeAuthenticator, sends_own_messages
from trustmix.transport.quota import UploadQuota

log = logging.getLogger(__name__)

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
UPLOAD_ROUTES = ("push-messages", "push-object")
"""Requests that carry answers; they count against the node's quota."""
MAX_QUERY_BYTES = 2**16
"""The largest of all other requests, which are a few numbers and names."""
MAX_LENGTH_DIGITS = 12
"""Digits of the length of a request."""
MAX_HEADER_BYTES = 2**14
"""The largest head of a request."""
MAX_STRANGERS = 64
"""Connections that have shown no key yet, and those in their TLS handshake; a further one ends the oldest of them."""
STRANGER_TIMEOUT = 20.0
"""Seconds after which a connection that has shown no key ends."""
FAMILY_OFF = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""Errors of an address whose family is off: "localhost" is also ::1 on a machine without IPv6."""
LOG_INTERVAL = 1.0
"""Seconds between two lines of the log about requests that no key has signed."""
REFUSAL_TIMEOUT = 1.0
"""Seconds in which a client can read a refusal before the connection ends."""
BODY_TIMEOUT = 120.0
"""Seconds that the body of a request may take."""
MAX_CONNECTIONS_PER_NODE = 16
"""Connections of one node; a further one ends the oldest of them, which may hold a response that is not read."""
MAX_REQUESTS_PER_NODE = 16
"""Requests of one node at the same time; Flower's nodes have up to four."""
HOP_HEADERS = ("content-length", "content-encoding", "transfer-encoding", "connection", "server", "date")
"""Headers of a response that belong to one connection only."""
UPSTREAM_TIMEOUT = 60.0
"""Seconds that the SuperLink may take for a response."""


@contextmanager
def run_proxy(
    host: str, port: int, upstream: str, keys: ServerKeys | None, quota: UploadQuota | None = None
) -> Iterator[threading.Event]:
    """Forward nodes' requests to the SuperLink until the block ends.

    Parameters
    ----------
    host, port : str, int
        The address to listen on.
    upstream : str
        The SuperLink's address, HOST:PORT.
    keys : ServerKeys, optional
        The server's keys; without them there is no TLS, and requests are not authenticated.
    quota : UploadQuota, optional
        The bytes that each node may send; without it, only the size of each request is limited.

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
    proxy = Proxy(upstream, keys, quota)
    config = uvicorn.Config(
        Starlette(routes=[Route("/v1/fleet/{action}", proxy.forward, methods=["POST"])]),
        log_level="critical",
        http=_Connection,
        loop="asyncio",
        ws="none",
        access_log=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ssl_certfile=None if keys is None else str(keys.certificate),
        ssl_keyfile=None if keys is None else str(keys.private_key),
    )
    server = uvicorn.Server(config)
    thread = _start(server, _listen(host, port), f"{host}:{port}")
    try:
        yield proxy.ready
    finally:
        server.should_exit = True
        thread.join(5)


def _listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of the host; of several, those of a family that is off are left out.

    Raises
    ------
    TrustmixError
        If an address cannot be listened on.
    """
    listeners: list[socket.socket] = []
    off: OSError | None = None
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            try:
                listeners.append(_bind(family, kind, protocol, address))
            except OSError as error:
                if error.errno not in FAMILY_OFF:
                    raise
                off = error
        if not listeners and off is not None:
            raise off
    except OSError as error:
        for listener in listeners:
            listener.close()
        reason = f"is the port in use, or the address another host's? ({error.strerror})"
        raise TrustmixError(f"Could not listen on {host}:{port}: {reason}") from error
    return listeners


def _bind(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    """A socket with this address."""
    listener = _Listener(family, kind, protocol)
    try:
        if os.name != "nt":  # there it would let another process listen on the same port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


_HANDSHAKES: "WeakValueDictionary[int, socket.socket]" = WeakValueDictionary()
"""Connections that have not finished their TLS handshake, by the numbers of their files, the oldest first."""


class _Listener(socket.socket):
    """A listening socket: connections that have not finished their TLS handshake are few and end soon."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; if too many have not finished their handshake, end the oldest of them."""
        found, address = super().accept()
        _HANDSHAKES.pop(found.fileno(), None)  # of a connection that is closed
        _HANDSHAKES[found.fileno()] = found
        unfinished = [known for known in _HANDSHAKES.values() if known.fileno() >= 0]
        if len(unfinished) > MAX_STRANGERS:
            _end_handshake(weakref.ref(unfinished[0]))
        asyncio.get_running_loop().call_later(STRANGER_TIMEOUT, _end_handshake, weakref.ref(found))
        return found, address


def _end_handshake(connection: "weakref.ref[socket.socket]") -> None:
    """End a connection that has not finished its handshake; the loop sees its end and closes it."""
    found = connection()
    if found is not None and _HANDSHAKES.get(found.fileno()) is found:
        del _HANDSHAKES[found.fileno()]
        with suppress(OSError):  # it has ended by itself
            found.shutdown(socket.SHUT_RDWR)


def _start(server: uvicorn.Server, sockets: list[socket.socket], address: str) -> threading.Thread:
    """Run the server in a thread, and wait until it listens."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            server.run(sockets)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, name="proxy", daemon=True)
    thread.start()
    while not server.started:
        if errors or not thread.is_alive():
            reason = str(errors[0]) if errors else "the proxy ended"
            raise TrustmixError(f"Could not listen on {address}: {reason}")
        time.sleep(0.05)
    return thread


class _Connection(H11Protocol):
    """A connection that ends soon unless a registered key shows up on it; a node has few of them."""

    _node: str | None = None
    """The node whose key has shown up, or None."""
    _expiry: asyncio.TimerHandle | None = None
    _since: float = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a key."""
        super().connection_made(transport)
        _HANDSHAKES.pop(transport.get_extra_info("socket").fileno(), None)
        self.app_state = {**self.app_state, "connection": self}
        self._since = self.loop.time()
        self._expiry = self.loop.call_later(STRANGER_TIMEOUT, transport.abort)
        self._limit(MAX_STRANGERS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._cancel_expiry()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """End a connection that is refused soon, even if the client goes on sending."""
        super().on_response_complete()
        if self.transport.is_closing():
            self.loop.call_later(REFUSAL_TIMEOUT, self.transport.abort)

    def admit(self, node: str) -> None:
        """Let the connection stay: the key of a node has signed a request on it."""
        self._cancel_expiry()
        self._node = node
        if node:
            self._limit(MAX_CONNECTIONS_PER_NODE)

    def _limit(self, most: int) -> None:
        """End the oldest connection of the same node, or without one, if there are too many."""
        alike = [found for found in self.connections if isinstance(found, _Connection) and found._node == self._node]
        if len(alike) > most:
            oldest = min(alike, key=lambda found: found._since)
            self.connections.discard(oldest)
            oldest.transport.abort()

    def _cancel_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None


class Proxy:
    """Forwards the requests that nodes may send.

    Parameters
    ----------
    upstream : str
        The SuperLink's address, HOST:PORT.
    keys : ServerKeys, optional
        The server's keys; without them there is no TLS, and requests are not authenticated.
    quota : UploadQuota, optional
        The bytes that each node may send.
    """

    def __init__(self, upstream: str, keys: ServerKeys | None, quota: UploadQuota | None = None) -> None:
        self._routes = NODE_ROUTES if keys is not None else NODE_ROUTES + UNAUTHENTICATED_ROUTES
        self._base = f"{'http' if keys is None else 'https'}://{upstream}/v1/fleet/"
        self._verify = False if keys is None else ssl.create_default_context(cafile=str(keys.ca_certificate))
        self._authenticator = None if keys is None else NodeAuthenticator(keys.node_public_keys())
        self._quota = quota
        self._active: Counter[str] = Counter()
        self._last_logged = -LOG_INTERVAL
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
            The SuperLink's response, or a refusal: 404 for a request that nodes do not send, UNKNOWN_KEY for one
            without a registered key, WRONG_CLOCK for one that was signed at another time, 401 for one whose signature
            is wrong, 403 for messages in another node's name, 411 for a request without its length, 413 for one that is
            too large or beyond the node's quota, 408
            for one that takes too long, 429 for one too many at the same time, 503 while the SuperLink is not ready.
        """
        action = request.path_params["action"]
        if action not in self._routes:
            return _refuse(404)
        node = "" if self._authenticator is None else self._authenticator.authenticate(request.headers)
        if node is None:
            return self._refuse_stranger(request)
        request.state.connection.admit(node)
        if node and self._active[node] >= MAX_REQUESTS_PER_NODE:
            return _refuse(429)
        self._active[node] += 1
        try:
            return await self._forward(request, action, node)
        finally:
            self._active[node] -= 1

    def _refuse_stranger(self, request: Request) -> Response:
        """Refuse a request that no registered key has signed; the log names who sent it, at most once a second."""
        known = self._authenticator is not None and self._authenticator.knows_key(request.headers)
        signed = None if self._authenticator is None else self._authenticator.signature_age(request.headers)
        if time.monotonic() - self._last_logged > LOG_INTERVAL:
            self._last_logged = time.monotonic()
            host = request.client.host if request.client else "unknown"
            reason = "its signature is wrong" if known else "its key is not registered"
            if signed is not None:
                name, age = signed
                log.info("node %s at %s is refused: its clock is %s", name, host, describe_clock(age))
            else:
                log.info("a node at %s is refused: %s", host, reason)
        return _refuse(WRONG_CLOCK if signed is not None else 401 if known else UNKNOWN_KEY)

    async def _forward(self, request: Request, action: str, node: str) -> Response:
        """Read the body of an authenticated request, if it may be read, and forward it."""
        length = request.headers.get("content-length", "")
        if "transfer-encoding" in request.headers or not (length.isdecimal() and len(length) <= MAX_LENGTH_DIGITS):
            return _refuse(411)  # a body in chunks ends where its sender likes, whatever length is announced
        if int(length) > (MAX_BODY_BYTES if action in UPLOAD_ROUTES else MAX_QUERY_BYTES):
            return _refuse(413)
        if action in UPLOAD_ROUTES and node and self._quota and not self._quota.take(node, int(length)):
            return _refuse(413)
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                body = await request.body()
        except TimeoutError:
            return _refuse(408)
        if action == "push-messages" and not sends_own_messages(body):
            return _refuse(403)
        return await self._send(request, action, body)

    async def _send(self, request: Request, action: str, body: bytes) -> Response:
        """The SuperLink's response to a request."""
        if self._client is None:
            self._client = httpx.AsyncClient(verify=self._verify, timeout=UPSTREAM_TIMEOUT)
        headers = {key: value for key, value in request.headers.items() if key not in ("host", "content-length")}
        try:
            if not self.ready.is_set():
                raise httpx.ConnectError("not ready")
            response = await self._client.post(self._base + action, content=body, headers=headers)
        except httpx.HTTPError:
            await asyncio.sleep(0.2)
            return Response(status_code=503)  # a node tries again
        kept = {key: value for key, value in response.headers.items() if key not in HOP_HEADERS}
        return Response(response.content, response.status_code, kept)


def describe_clock(age: float) -> str:
    """How far another machine's clock is from this one's.

    Parameters
    ----------
    age : float
        Seconds by which it is behind; below 0 if it is ahead.

    Returns
    -------
    str

    Examples
    --------
    >>> describe_clock(3600.4), describe_clock(-90.0)
    ('60 min behind the clock of this server', '1.5 min ahead of the clock of this server')
    """
    return f"{abs(age) / 60:.3g} min {'behind' if age > 0 else 'ahead of'} the clock of this server"


def _refuse(status: int) -> Response:
    """A refusal that ends the connection: what the client still sends is not read."""
    return Response(status_code=status, headers={"connection": "close"})

"""The app's part of a run, played by this process instead of one that Flower would start.

Flower hands its tasks to the holder of the program's secret. On a node every message is a task, answered by a
`MessageHandler`; on the server the one task is the run, whose grid is what `FlowerEngine` asks nodes by (see `run`).
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.common.constant import SubStatus
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PushTaskOutputRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

from trustmix import storage
from trustmix.deploy.flower_processes import SuperNode
from trustmix.deploy.keys import NodeKeys
from trustmix.deploy.message_handler import MessageHandler
from trustmix.errors import TrustmixError

log = logging.getLogger(__name__)

POLL = 0.5
"""Seconds between two looks for a task."""
HEARTBEAT = 20.0
"""Seconds between two signs of life of a task; Flower gives up on a task after a minute."""
REQUEST_TIMEOUT = 300.0
"""Seconds that the program beside this process may take for one request; on a busy machine that is long."""
RESTART_DELAY = 3.0
"""Seconds before a SuperNode is started again."""


def serve_node(supernode: SuperNode, desk: MessageHandler) -> None:
    """Answer the messages that the SuperNode brings, for ever; start it again whenever it ends.

    A key that the server never accepted is refused by an error; one that it knew is tried again until it does.
    """
    supernode.launch()
    while True:
        if not supernode.alive:
            _revive(supernode, desk.folder)
        try:
            token = acquire(supernode.address, supernode.secret, None, TaskType.CLIENT_APP)
        except httpx.HTTPError as error:
            log.debug("the SuperNode does not answer: %s", error)
            token = None
        if token is None:
            time.sleep(POLL)
            continue
        try:
            _answer(supernode, token, desk)
        except (httpx.HTTPError, ObjectPullError, ObjectPushError, RuntimeError) as error:
            # half an answer would keep it waiting for the other half for ever
            log.info("an answer could not be handed over (%s)", error)
            supernode.stop()


def _revive(supernode: SuperNode, folder: Path) -> None:
    """Start a SuperNode that has ended."""
    known = folder / "node.json"
    if not known.exists():
        raise TrustmixError(
            f"The server at {supernode.server} does not let this node in: its key is not registered there, another "
            f"node uses it, or the certificate is not the server's. flower-supernode said: {supernode.last_words()}"
        )
    log.info("the link to the server was lost; trying again (%s)", supernode.last_words())
    if supernode.keys is not None:
        _deactivate(supernode.server, supernode.keys, int(storage.read_json(known)))
    time.sleep(RESTART_DELAY)
    supernode.launch()


def _deactivate(server: str, keys: NodeKeys, node: int) -> None:
    """Tell the server that a SuperNode which was killed is gone: until then its key counts as in use."""
    key = load_ssh_private_key(keys.key.read_bytes(), None)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise TrustmixError(f"{keys.key} is no key of a node; `trustmix keys` makes one.")
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    with FleetHttpClient.from_server_address(server, False, str(keys.authority), interceptors) as client:
        try:
            client.DeactivateNode(DeactivateNodeRequest(node_id=node))
        except (httpx.HTTPError, RuntimeError) as error:
            log.debug("no goodbye: %s", error)


def _answer(supernode: SuperNode, token: str, desk: MessageHandler) -> None:
    """Answer the message of a task."""
    with task_client(supernode.address, token) as client:
        message, context, _, _ = pull_task_input(client)
        storage.write_json(desk.folder / "node.json", context.node_id)
        with heartbeat(client):
            reply = desk.answer(message)
        push_message(client, reply, context)
        client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))


def acquire(address: str, secret: bytes, authority: str | None, kind: TaskType) -> str | None:
    """The token of a task that waits to be done, if there is one."""
    found = _executor(address, secret, authority).AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
    return str(found.token) if found.HasField("task") and found.token else None


@lru_cache(maxsize=2)
def _executor(address: str, secret: bytes, authority: str | None) -> RuntimeHttpClient:
    """Who asks for tasks, several times a second."""
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="SuperExec"),
        SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=["/flwr.proto.Runtime/AcquireTask"]),
    ]
    return RuntimeHttpClient.from_server_address(address, authority is None, authority, interceptors)


@contextmanager
def task_client(address: str, token: str) -> Iterator[RuntimeHttpClient]:
    """Who does a task, towards the SuperNode."""
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
        RuntimeTokenHttpInterceptor(token),
    ]
    client = RuntimeHttpClient.from_server_address(address, True, None, interceptors)
    client._client.timeout = REQUEST_TIMEOUT
    try:
        yield client
    finally:
        client.close()


@contextmanager
def heartbeat(client: RuntimeHttpClient) -> Iterator[None]:
    """Signs of life while a task is being done."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(HEARTBEAT):
            try:
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except (httpx.HTTPError, RuntimeError) as error:
                log.debug("no heartbeat: %s", error)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

"""Flower's tasks, done by this process instead of one that Flower starts.

Flower gives tasks to the process that has the program's secret. The server's one task is the run; its grid is what
`FlowerEngine` sends requests by (`open_run`). On a node every message is a task (`handle_next_message`). If the
SuperLink ends, callers get `SuperLinkUnavailable`; the run directory has all that is needed to continue with another.
"""

import hashlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import resources
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from trustmix import storage
from trustmix.deploy.message_handler import MessageHandler
from trustmix.errors import TrustmixError
from trustmix.transport.flower_internals import (
    AcquireTaskRequest,
    ControlHttpClient,
    DeactivateNodeRequest,
    Fab,
    FleetHttpClient,
    ListRunsRequest,
    NodeAuthHttpInterceptor,
    ObjectPullError,
    ObjectPushError,
    ProtobufClientInterceptor,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    RegisterNodeRequest,
    RuntimeHttpClient,
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SendTaskHeartbeatRequest,
    StartRunRequest,
    SubStatus,
    SuperExecAuthHttpInterceptor,
    TaskIdentity,
    TaskType,
    build_fab_from_disk,
    fab_to_proto,
    public_key_to_bytes,
    pull_task_input,
    push_message,
    run_from_proto,
)
from trustmix.transport.flower_processes import SuperLink, SuperNode, wait_until_ready
from trustmix.transport.keys import NodeKeys
from trustmix.transport.node_auth import parse_public_key
from trustmix.transport.run_grid import MAX_REPLY_BYTES, RunGrid, superlink_errors

log = logging.getLogger(__name__)

START_TIMEOUT = 300.0
"""Seconds that a SuperLink may take to start; on a busy machine that is minutes."""
REQUEST_TIMEOUT = 300.0
"""Seconds that the program beside this process may take for one request; on a busy machine that is long."""
HEARTBEAT_INTERVAL = 20.0
"""Seconds between two heartbeats of a task; Flower gives up a task after a minute without one."""
NODE_ID_FILE = "node.json"
"""The file in a node's folder with the id that the SuperLink gave the node."""


class ReplyNotDelivered(ConnectionError):  # noqa: N818 - it is what happened
    """A message could not be fetched from the SuperNode, or its reply could not be delivered."""


@contextmanager
def open_run(link: SuperLink, max_reply_bytes: int = MAX_REPLY_BYTES) -> Iterator[RunGrid]:
    """Start the SuperLink, register the nodes' keys and start a run; the SuperLink stops when the block ends.

    Parameters
    ----------
    link : SuperLink
        The SuperLink, not started.
    max_reply_bytes : int
        The largest reply of a node that is taken.

    Yields
    ------
    RunGrid
        The run's connection to the nodes.

    Raises
    ------
    SuperLinkUnavailable
        If the SuperLink ends before the block does.
    TrustmixError
        If the SuperLink does not start, or gives no task for the run.
    """
    ca_file = None if link.keys is None else str(link.keys.ca_certificate)
    link.launch()
    interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
    control = ControlHttpClient.from_server_address(link.address, ca_file is None, ca_file, interceptors)
    try:
        with superlink_errors():
            wait_until_ready(link, lambda: _is_reachable(control), START_TIMEOUT)
            _register_nodes(control, link)
            content = build_fab_from_disk(app_folder())
            fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
            control.StartRun(StartRunRequest(fab=fab_to_proto(fab)))
            token = _acquire_task(link.address, link.secret, ca_file, TaskType.SERVER_APP)
            if token is None:
                raise TrustmixError("The SuperLink accepted the run but gives no task for it.")
            with _run_task(link, token, max_reply_bytes) as grid:
                yield grid
    finally:
        control.close()
        link.stop()


def app_folder() -> Path:
    """The app folder that `flwr run` takes.

    Returns
    -------
    Path

    Examples
    --------
    >>> [file.name for file in app_folder().iterdir()]
    ['pyproject.toml']
    """
    return Path(str(resources.files("trustmix") / "flower"))


@contextmanager
def _run_task(link: SuperLink, token: str, max_reply_bytes: int) -> Iterator[RunGrid]:
    """The task of a run, from its input to the report of its status."""
    ca_certificate = None if link.keys is None else link.keys.ca_certificate.read_bytes()
    grid = RunGrid(link.address, ca_certificate, token, max_reply_bytes)
    client = grid._runtime_client
    client._client.timeout = REQUEST_TIMEOUT
    task = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
    TaskIdentity.node_id = task.context.node_id
    grid.set_run(run_from_proto(task.run))
    status, details = SubStatus.FAILED, "interrupted"
    try:
        with _heartbeat(client):
            yield grid
        status, details = SubStatus.COMPLETED, ""
    finally:
        try:
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        except httpx.HTTPError as error:
            log.debug("the status of the run could not be reported: %s", error)
        grid.close()


def _is_reachable(control: ControlHttpClient) -> bool:
    try:
        control.ListRuns(ListRunsRequest())
    except httpx.TransportError:
        return False
    return True


def _register_nodes(control: ControlHttpClient, link: SuperLink) -> None:
    """Register the nodes' public keys, each under the node's client id."""
    for name, text in (link.keys.node_public_keys() if link.keys else {}).items():
        key = public_key_to_bytes(parse_public_key(name, text))
        control.RegisterNode(RegisterNodeRequest(public_key=key, name=name))


def handle_next_message(supernode: SuperNode, handler: MessageHandler) -> bool:
    """Handle one message that the SuperNode has fetched, if there is one.

    Parameters
    ----------
    supernode : SuperNode
        The SuperNode, started.
    handler : MessageHandler
        Answers the messages.

    Returns
    -------
    bool
        Whether there was a message.

    Raises
    ------
    ReplyNotDelivered
        If the reply is not, or only in part, delivered to the SuperNode.
    """
    try:
        token = _acquire_task(supernode.address, supernode.secret, None, TaskType.CLIENT_APP)
    except httpx.HTTPError as error:
        log.debug("the SuperNode does not answer: %s", error)
        return False
    if token is None:
        return False
    try:
        with _task_client(supernode.address, token) as client:
            message, context, _, _ = pull_task_input(client)
            storage.write_json(handler.folder / NODE_ID_FILE, context.node_id)
            with _heartbeat(client):
                reply = handler.handle(message)
            push_message(client, reply, context)
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))
    except (httpx.HTTPError, ObjectPullError, ObjectPushError, RuntimeError) as error:
        raise ReplyNotDelivered(f"a reply could not be delivered ({error})") from error
    return True


def deactivate_node(server: str, keys: NodeKeys, node: int) -> None:
    """Report to the server that a SuperNode was killed: until then its key counts as in use.

    Parameters
    ----------
    server : str
        The server's address, HOST:PORT.
    keys : NodeKeys
        The node's keys.
    node : int
        The id that the SuperLink gave the node.

    Raises
    ------
    TrustmixError
        If the node's key is not one that `trustmix keys` makes.
    """
    key = load_ssh_private_key(keys.private_key.read_bytes(), None)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise TrustmixError(f"{keys.private_key} is no key of a node; `trustmix keys` makes one.")
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    with FleetHttpClient.from_server_address(server, False, str(keys.ca_certificate), interceptors) as client:
        try:
            client.DeactivateNode(DeactivateNodeRequest(node_id=node))
        except (httpx.HTTPError, RuntimeError) as error:
            log.debug("the node could not be deactivated: %s", error)


def _acquire_task(address: str, secret: bytes, ca_file: str | None, kind: TaskType) -> str | None:
    """The token of a task that waits to be done, if there is one."""
    client = _superexec_client(address, secret, ca_file)
    response = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
    return str(response.token) if response.HasField("task") and response.token else None


@lru_cache(maxsize=2)
def _superexec_client(address: str, secret: bytes, ca_file: str | None) -> RuntimeHttpClient:
    """The client that acquires tasks; cached, since it does so several times per second."""
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="SuperExec"),
        SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=["/flwr.proto.Runtime/AcquireTask"]),
    ]
    return RuntimeHttpClient.from_server_address(address, ca_file is None, ca_file, interceptors)


@contextmanager
def _task_client(address: str, token: str) -> Iterator[RuntimeHttpClient]:
    """The client that does one task of a SuperNode."""
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
def _heartbeat(client: RuntimeHttpClient) -> Iterator[None]:
    """Send heartbeats of a task until the block ends."""
    done = threading.Event()

    def send_heartbeats() -> None:
        while not done.wait(HEARTBEAT_INTERVAL):
            try:
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except (httpx.HTTPError, RuntimeError) as error:
                log.debug("no heartbeat: %s", error)

    thread = threading.Thread(target=send_heartbeats, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()

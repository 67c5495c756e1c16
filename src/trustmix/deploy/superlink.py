"""A run on a SuperLink of our own: nodes' keys registered, the run started, and its task done by this process.

If the SuperLink dies, callers get `SuperLinkUnavailable`; the run directory has all that is needed to go on with a new
one.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import Message
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.retry import RetryInvoker, constant
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from trustmix.deploy.flower_processes import SuperLink, wait_until
from trustmix.deploy.supernode import REQUEST_TIMEOUT, acquire, heartbeat
from trustmix.errors import TrustmixError

log = logging.getLogger(__name__)


START = 300.0
"""Seconds a SuperLink may take to start; on a busy machine that is minutes."""


class SuperLinkUnavailable(ConnectionError):  # noqa: N818 - it is what happened
    """The SuperLink does not answer any more, or has forgotten the run."""


class LinkGrid(HttpGrid):
    """Flower's grid, which tries a few times and then says that the link is lost."""

    def __init__(self, address: str, authority: bytes | None, token: str) -> None:
        super().__init__(address, authority is None, authority, token=token)
        # what was sent and not answered must not be sent again: a reply is handed out once
        self._retry_invoker = RetryInvoker(lambda: constant(0.5), httpx.ConnectError, max_tries=4, max_time=60)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """The nodes that are there."""
        with _or_lost():
            return super().get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages."""
        with _or_lost():
            return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetch the replies that have arrived."""
        with _or_lost():
            return super().pull_messages(message_ids)


@contextmanager
def _or_lost() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        raise SuperLinkUnavailable(f"the SuperLink does not answer ({error})") from error


@contextmanager
def open_run(link: SuperLink) -> Iterator[LinkGrid]:
    """Start the SuperLink, let the nodes in, start a run, and give its grid."""
    authority = None if link.keys is None else str(link.keys.authority)
    link.launch()
    interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
    control = ControlHttpClient.from_server_address(link.address, authority is None, authority, interceptors)
    try:
        wait_until(lambda: _answers(control), START, link)
        _register(control, link)
        content = build_fab_from_disk(app_folder())
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        control.StartRun(StartRunRequest(fab=fab_to_proto(fab)))
        token = acquire(link.address, link.secret, authority, TaskType.SERVER_APP)
        if token is None:
            raise TrustmixError("The SuperLink took the run but gives no task for it.")
        with _working(link, token) as grid:
            yield grid
    except httpx.HTTPError as error:
        raise SuperLinkUnavailable(f"the SuperLink does not answer ({error})") from error
    finally:
        control.close()
        link.stop()


@contextmanager
def _working(link: SuperLink, token: str) -> Iterator[LinkGrid]:
    """The run's task, from its beginning to its report."""
    grid = LinkGrid(link.address, None if link.keys is None else link.keys.authority.read_bytes(), token)
    client = grid._runtime_client
    client._client.timeout = REQUEST_TIMEOUT
    given = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
    TaskIdentity.node_id = given.context.node_id
    grid.set_run(run_from_proto(given.run))
    report: dict[str, Any] = {"sub_status": SubStatus.FAILED, "details": "interrupted"}
    try:
        with heartbeat(client):
            yield grid
        report = {"sub_status": SubStatus.COMPLETED, "details": ""}
    finally:
        try:
            client.PushTaskOutput(PushTaskOutputRequest(**report))
        except httpx.HTTPError as error:
            log.debug("no report: %s", error)
        grid.close()


def _answers(control: ControlHttpClient) -> bool:
    try:
        control.ListRuns(ListRunsRequest())
    except httpx.TransportError:
        return False
    return True


def _register(control: ControlHttpClient, link: SuperLink) -> None:
    """Tell the SuperLink the nodes' public keys, each under the node's id."""
    for name, text in (link.keys.nodes() if link.keys else {}).items():
        key = load_ssh_public_key(text)
        if not isinstance(key, EllipticCurvePublicKey):
            raise TrustmixError(f"The public key of node {name} is of another kind than `trustmix keys` makes.")
        control.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(key), name=name))


def app_folder() -> Path:
    """The folder that `flwr run` takes."""
    return Path(str(resources.files("trustmix") / "flower"))

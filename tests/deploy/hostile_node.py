"""A node with a registered key that answers as an attacker would: over the real network interface, without trustmix."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from trustmix.transport.keys import NodeKeys

HEARTBEAT = 30.0


class HostileNode:
    """A connected node.

    Parameters
    ----------
    server : str
        The server's address.
    keys : Path
        The node's keys.
    answer : callable
        Answers a message by any means; errors of HTTP in it are expected.
    """

    def __init__(self, server: str, keys: Path, answer: Callable[["HostileNode", Message], None]) -> None:
        folder = NodeKeys(keys)
        key = load_ssh_private_key(folder.private_key.read_bytes(), None)
        assert isinstance(key, EllipticCurvePrivateKey)
        interceptors: list[ProtobufClientInterceptor] = [
            RuntimeVersionHttpInterceptor("SuperNode"),
            NodeAuthHttpInterceptor(key, key.public_key()),
        ]
        self.client = FleetHttpClient.from_server_address(
            server, False, folder.ca_certificate.read_bytes(), interceptors
        )
        self.public_key = public_key_to_bytes(key.public_key())
        self.answer = answer
        self.node = Node()
        self.statuses: list[int] = []
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        """Connect, as soon as the server answers, and answer messages until closed."""
        self.thread.start()

    def _work(self) -> None:
        request = ActivateNodeRequest(public_key=self.public_key, heartbeat_interval=HEARTBEAT)
        while not self.closed.wait(0.5):
            try:
                if not self.node.node_id:
                    self.node = Node(node_id=self.client.ActivateNode(request).node_id)
                self.client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT))
                for found in self.client.PullMessages(PullMessagesRequest(node=self.node)).messages_list:
                    self.answer(self, message_from_proto(found))
            except httpx.HTTPStatusError as error:
                self.statuses.append(error.response.status_code)
            except httpx.HTTPError:
                continue

    def announce(self, message: Message, content: RecordDict, source: int | None = None) -> PushMessagesResponse:
        """Announce a reply without sending its parts."""
        TaskIdentity.run_id, TaskIdentity.task_id = message.metadata.run_id, 1
        TaskIdentity.node_id = self.node.node_id if source is None else source
        self.reply = Message(content, reply_to=message)
        self.reply.metadata.__dict__["_src_node_id"] = TaskIdentity.node_id
        self.reply.metadata.__dict__["_message_id"] = self.reply.object_id
        request = PushMessagesRequest(
            node=self.node,
            messages_list=[message_to_proto(remove_content_from_message(self.reply))],
            message_object_trees=[get_object_tree(self.reply)],
            clientapp_runtime_list=[0.0],
        )
        return self.client.PushMessages(request)

    def send(self, message: Message, content: RecordDict) -> None:
        """Send a reply whole."""
        response = self.announce(message, content)
        for object_id, found in get_all_nested_objects(self.reply).items():
            if object_id in response.objects_to_push:
                request = PushObjectRequest(
                    node=self.node,
                    run_id=message.metadata.run_id,
                    object_id=object_id,
                    object_content=found.deflate(),
                    session_id=response.session_id,
                )
                self.client.PushObject(request)

    def close(self) -> None:
        """Disconnect."""
        self.closed.set()
        self.thread.join(30)
        with suppress(httpx.HTTPError):
            self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
        self.client.close()

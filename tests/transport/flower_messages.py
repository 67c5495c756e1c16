"""Messages as a server sends them to a node."""

from collections.abc import Mapping

from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity

from trustmix.transport.flower_records import pack_record


def make_message(kind: str, facts: Mapping[str, object], payload: bytes | None = None) -> Message:
    """A message of the server to a node."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SUPERLINK_NODE_ID, 1
    message = Message(pack_record(facts, payload), dst_node_id=7, message_type=kind)
    message.metadata.__dict__["_message_id"] = "m"
    return message

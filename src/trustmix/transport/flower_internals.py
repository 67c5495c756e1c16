"""All names of Flower that are not of its public API (flwr.app, flwr.serverapp, flwr.clientapp), in one place.

`trustmix serve` and `trustmix join` need them, since they do Flower's tasks in their own processes. The apps for
Flower's own commands (`deploy.flower_app`) use only `InMemoryGrid`, to recognise a simulation. A new version of Flower
may move or change any of them.
"""

from flwr.app.error import Error
from flwr.app.message import make_message
from flwr.app.message.array import Array
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE, ErrorCode, SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.common.serde_utils import metadata_from_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fleet_pb2 import DeactivateNodeRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError, inflate_object_from_contents
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, verify_signature
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import RetryInvoker, constant
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid, InMemoryGrid
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

__all__ = [
    "FLEET_HTTP_PUBLIC_KEY_HEADER",
    "FLEET_HTTP_SIGNATURE_HEADER",
    "SYSTEM_TIME_TOLERANCE",
    "TIMESTAMP_HEADER",
    "TIMESTAMP_TOLERANCE",
    "AcquireTaskRequest",
    "Array",
    "ConfirmMessageReceivedRequest",
    "ControlHttpClient",
    "DeactivateNodeRequest",
    "Error",
    "ErrorCode",
    "Fab",
    "FleetHttpClient",
    "HttpGrid",
    "InMemoryGrid",
    "ListRunsRequest",
    "NodeAuthHttpInterceptor",
    "NodeInfo",
    "ObjectPullError",
    "ObjectPushError",
    "ObjectTree",
    "ProtoMessage",
    "ProtobufClientInterceptor",
    "PullAppMessagesRequest",
    "PullObjectRequest",
    "PullTaskInputRequest",
    "PushMessagesRequest",
    "PushTaskOutputRequest",
    "RegisterNodeRequest",
    "RetryInvoker",
    "RuntimeHttpClient",
    "RuntimeTokenHttpInterceptor",
    "RuntimeVersionHttpInterceptor",
    "SendTaskHeartbeatRequest",
    "StartRunRequest",
    "SubStatus",
    "SuperExecAuthHttpInterceptor",
    "TaskIdentity",
    "TaskType",
    "build_fab_from_disk",
    "constant",
    "fab_to_proto",
    "get_object_body",
    "get_object_head_values_from_object_content",
    "inflate_object_from_contents",
    "iterate_object_tree",
    "make_message",
    "metadata_from_proto",
    "public_key_to_bytes",
    "pull_task_input",
    "push_message",
    "run_from_proto",
    "verify_signature",
]

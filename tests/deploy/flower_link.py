"""Flower's own link state with nodes that are threads instead of machines, and small clients for them."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.server.superlink.linkstate import LinkState, LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

import trustmix as tm
from trustmix.deploy.message_handler import MessageHandler
from trustmix.deploy.run_info import RunInfo
from trustmix.federation import DiskStore
from trustmix.wire import encode_public_set

HEARTBEAT_INTERVAL = 1e6
"""Seconds between heartbeats, of which these nodes send none."""
TIMEOUT = 240.0
"""Seconds to wait for nodes."""
RUN = "0123456789abcdef"
PUBLIC = tm.Public(torch.rand(30, 4, generator=torch.Generator().manual_seed(0)), classes=2)
PUBLIC_SET = encode_public_set(PUBLIC.inputs)
RUN_INFO = RunInfo(
    run=RUN, fingerprint=PUBLIC.fingerprint, recipe="", classes=["a", "b"], mean=[0.0], std=[1.0], columns=None
)


class FlowerLink:
    """A grid and its nodes."""

    def __init__(self) -> None:
        objects = ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), objects)
        self.state: LinkState = factory.state()
        self.run_id = self.state.create_run("", "", "", {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.run_id, SUPERLINK_NODE_ID, 1
        self.grid = InMemoryGrid(factory)
        self.grid.set_run(self.state.get_run_info(run_ids=[self.run_id])[0])
        self.closed = threading.Event()
        self._turn = threading.Lock()  # nodes of one process share torch's random numbers

    def add_node(
        self,
        handle: Callable[[Message], Message],
        name: str | None = None,
        delay: Callable[[Message], float] = lambda _: 0.0,
    ) -> int:
        """Add a node that replies by `handle`, after `delay` seconds; its node id."""
        key = f"{name}{time.monotonic()}".encode()
        node = self.state.create_node("", "", key, HEARTBEAT_INTERVAL, name=name)
        assert self.state.activate_node(node, HEARTBEAT_INTERVAL)

        def work() -> None:
            while not self.closed.wait(0.01):
                for message in self.state.get_message_ins(node, limit=1):
                    self.closed.wait(delay(message))
                    with self._turn:
                        reply = handle(message)
                    reply.metadata.__dict__["_message_id"] = reply.object_id
                    self.state.store_message_res(reply)

        threading.Thread(target=work, daemon=True).start()
        return node

    def reconnect(self, node: int) -> None:
        """Disconnect a node and connect it again."""
        self.state.deactivate_node(node)
        self.state.activate_node(node, HEARTBEAT_INTERVAL)


def build_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2)


def build_client(client_id: str, public: tm.Public = PUBLIC, folder: Path | None = None) -> tm.Client:
    numbers = torch.Generator().manual_seed(len(client_id))
    x, y = torch.rand(40, 4, generator=numbers), torch.arange(40) % 2
    client = tm.Client.from_arrays(client_id, build_model, x, y, public=public)
    if folder is not None:
        client.store = DiskStore(folder)
    return client


def make_handler(client_id: str, folder: Path) -> MessageHandler:
    return MessageHandler(
        client_id, folder / client_id, lambda _, public, states: build_client(client_id, public, states)
    )

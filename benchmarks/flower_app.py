"""The same federation on Flower's simulation (flwr with Ray), written as its documentation suggests.

Run as a script in a network namespace that has nothing but loopback: `python -m benchmarks.flower_app WORKLOAD`.
A client's model lives in its context's state between rounds; each round takes one exchange, as ours does.
"""

import sys
import time
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from benchmarks import plain
from benchmarks.workloads import WORKLOADS, Workload

NAME = sys.argv[1] if len(sys.argv) > 1 else "mlp"
client_app, server_app = ClientApp(), ServerApp()
results: dict[str, float] = {}


@client_app.train()
def step(message: Message, context: Context) -> Message:
    """Distil, evaluate, train, predict, answer."""
    torch.set_num_threads(1)
    work, index = workload(), int(context.node_config["partition-id"])
    private, calibration = work.shares[index]
    model, round_ = work.model(index), int(message.content["config"]["round"])
    if "model" in context.state:
        model.load_state_dict(context.state["model"].to_torch_state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    metrics: dict[str, float] = {}
    if "teacher" in message.content:
        teacher = message.content["teacher"].to_torch_state_dict()["teacher"]
        plain.train(model, optimizer, work.public, teacher, work.public_epochs, work.batch)
        correct = plain.predict(model, work.test.inputs).argmax(1) == work.test.labels
        metrics["accuracy"] = correct.float().mean().item()
    content: dict[str, Any] = {}
    if round_ <= work.rounds:
        epochs = work.first_epochs if round_ == 1 else 1
        plain.train(model, optimizer, private.inputs, private.labels, epochs, work.batch)
        known, logits = plain.predict(model, calibration.inputs), plain.predict(model, work.public)
        scores = plain.log_density(known, calibration.labels, logits)
        content["upload"] = ArrayRecord({"q": torch.softmax(logits, 1), "l": scores})
    context.state["model"] = ArrayRecord(model.state_dict())
    return Message(RecordDict({"metrics": MetricRecord(metrics), **content}), reply_to=message)


@server_app.main()
def serve(grid: Grid, _: Context) -> None:
    """All rounds and the closing exchange."""
    work, teacher = workload(), None
    for round_ in range(1, work.rounds + 2):
        nodes = wait_for_nodes(grid, len(work.shares))
        content: dict[str, Any] = {"config": ConfigRecord({"round": round_})}
        if teacher is not None:
            content["teacher"] = ArrayRecord({"teacher": teacher})
        messages = [Message(RecordDict(content), dst_node_id=node, message_type="train") for node in nodes]
        replies = list(grid.send_and_receive(messages))
        if any(reply.has_error() for reply in replies):
            raise RuntimeError(next(reply.error.reason for reply in replies if reply.has_error()))
        if round_ <= work.rounds:
            uploads = [reply.content["upload"].to_torch_state_dict() for reply in replies]
            weights = torch.softmax(plain.TAU * torch.stack([upload["l"] for upload in uploads]), 0)
            teacher = (weights.unsqueeze(-1) * torch.stack([upload["q"] for upload in uploads])).sum(0)
        accuracies = [float(reply.content["metrics"].get("accuracy", 0)) for reply in replies]
        results["accuracy"] = sum(accuracies) / len(accuracies)


def wait_for_nodes(grid: Grid, count: int) -> list[int]:
    """The nodes, once all are there."""
    while len(nodes := list(grid.get_node_ids())) < count:
        time.sleep(0.05)
    return nodes


_work: list[Workload] = []


def workload() -> Workload:
    """The federation, built once a process."""
    if not _work:
        _work.append(WORKLOADS[NAME]())
    return _work[0]


if __name__ == "__main__":
    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, len(workload().shares), backend_config=backend)
    sys.stdout.write(f"accuracy {results['accuracy']:.4f}\n")

"""The same FedAvg on Flower's simulation, by its own strategy; in a network namespace that has nothing but loopback.

`python -m benchmarks.flower_fedavg WORKLOAD`.
"""

import sys
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks import plain
from benchmarks.fedavg import LR
from benchmarks.workloads import WORKLOADS, Workload

NAME = sys.argv[1] if len(sys.argv) > 1 else "mlp"
client_app, server_app = ClientApp(), ServerApp()
accuracies: list[float] = []
_work: list[Workload] = []


def workload() -> Workload:
    """The federation, built once a process."""
    if not _work:
        _work.append(WORKLOADS[NAME]())
    return _work[0]


@client_app.train()
def step(message: Message, context: Context) -> Message:
    """One local epoch from the global weights."""
    torch.set_num_threads(1)
    work = workload()
    private, _ = work.shares[int(context.node_config["partition-id"])]
    model = work.model(0)
    arrays: Any = message.content["arrays"]
    model.load_state_dict(arrays.to_torch_state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    plain.train(model, optimizer, private.inputs, private.labels, 1, work.batch)
    metrics = MetricRecord({"num-examples": len(private)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@server_app.main()
def serve(grid: Grid, _: Context) -> None:
    """All rounds; the global model is evaluated after each."""
    work = workload()

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        model = work.model(0)
        model.load_state_dict(arrays.to_torch_state_dict())
        right = plain.predict(model, work.test.inputs).argmax(1) == work.test.labels
        accuracies.append(right.float().mean().item())
        return MetricRecord({"accuracy": accuracies[-1]})

    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=len(work.shares))
    initial = ArrayRecord(work.model(0).state_dict())
    strategy.start(grid, initial, num_rounds=work.rounds, evaluate_fn=evaluate)


if __name__ == "__main__":
    backend: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, len(workload().shares), backend_config=backend)
    sys.stdout.write(f"accuracy {accuracies[-1]:.4f}\n")

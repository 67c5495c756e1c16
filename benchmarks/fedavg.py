"""FedAvg on the federations of `workloads`, by trustmix: `python -m benchmarks.fedavg WORKLOAD`, start-up included."""

import sys

import trustmix as tm
from benchmarks.workloads import WORKLOADS, Workload
from trustmix.engines import LocalEngine, select_plan
from trustmix.methods.fedavg import WeightClient

LR = 1e-3


def run(work: Workload) -> float:
    """Play all rounds of one local epoch each; gives the accuracy of the last global model."""
    public = tm.Public(work.public, work.classes)
    training = tm.Training(batch=work.batch, first_epochs=1, lr=LR)
    made = [
        WeightClient(str(i), work.factory(0), *share, public, test=work.test, training=training)
        for i, share in enumerate([*work.shares, work.shares[0]])
    ]
    clients, server = made[:-1], made[-1]
    plan, _ = select_plan(clients)
    with tm.Federation(clients=LocalEngine(clients, plan), student=server, public=public, rule="fedavg") as federation:
        return federation.run(work.rounds).final_accuracy or 0.0


if __name__ == "__main__":
    sys.stdout.write(f"accuracy {run(WORKLOADS[sys.argv[1]]()):.4f}\n")

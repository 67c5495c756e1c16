"""The same federation on trustmix; the engine chooses by itself how to run it, which is part of the first time."""

import trustmix as tm
from benchmarks.workloads import Workload
from trustmix.engines import LocalEngine, select_plan


def federation(work: Workload) -> tuple[tm.Federation, str]:
    """The federation, and how its engine runs the clients."""
    public = tm.Public(work.public, work.classes)
    training = tm.Training(batch=work.batch, first_epochs=work.first_epochs, public_epochs=work.public_epochs)
    clients = [
        tm.Client(str(i), work.factory(i), *share, public, test=work.test, training=training)
        for i, share in enumerate(work.shares)
    ]
    plan, found = select_plan(clients)
    return tm.Federation(clients=LocalEngine(clients, plan), public=public, rule="suwa"), found


def run(work: Workload) -> tuple[float, str]:
    """Play all rounds; gives the last mean accuracy and how clients were run."""
    built, found = federation(work)
    with built:
        accuracy = built.run(work.rounds).final_accuracy
    return accuracy or 0.0, found

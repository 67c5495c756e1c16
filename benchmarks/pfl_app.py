"""The same FedAvg on pfl-research (pip `pfl`), written as its documentation suggests.

`python -m benchmarks.pfl_app WORKLOAD` is one process; `torchrun --nproc-per-node 2 -m benchmarks.pfl_app WORKLOAD` has
one worker per core. pfl wants another version of `packaging` than this project, so it lies in a folder of its own that
`PFL_PATH` names: `pip install --target FOLDER pfl`; everything but pfl itself is taken from this environment.
"""

import os
import sys
from typing import Any

import torch
from torch import nn

from benchmarks.workloads import WORKLOADS, Workload

LR = 1e-3


class GlobalModel(nn.Module):
    """The model with the loss and the metrics that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy."""
        self.train()
        return nn.functional.cross_entropy(self.network(inputs), labels)

    @torch.no_grad()
    def metrics(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        """The accuracy."""
        from pfl.metrics import Weighted

        self.eval()
        right = int((self.network(inputs).argmax(1) == labels).sum())
        return {"accuracy": Weighted(right, len(labels))}


def run(work: Workload) -> float:
    """Play all rounds of one local epoch each; gives the accuracy of the last global model."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import StringMetricName
    from pfl.model.pytorch import PyTorchModel

    users = {str(i): Dataset([own.inputs, own.labels], user_id=str(i)) for i, (own, _) in enumerate(work.shares)}
    federated = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    network = GlobalModel(work.model(0))
    central = torch.optim.SGD(network.parameters(), lr=1.0)
    model = PyTorchModel(network, torch.optim.Adam, central)
    params = NNAlgorithmParams(
        work.rounds, evaluation_frequency=10**6, train_cohort_size=len(users), val_cohort_size=None
    )
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=work.batch)
    evaluation = NNEvalHyperParams(local_batch_size=256)
    accuracies: list[float] = []

    class Accuracy(TrainingProcessCallback):  # type: ignore[misc]
        """Remembers what the evaluation before it has found."""

        def after_central_iteration(self, aggregate_metrics: Any, *_: Any, **__: Any) -> Any:
            name = StringMetricName("Central val | accuracy")
            accuracies.append(float(aggregate_metrics[name].overall_value))
            return False, type(aggregate_metrics)()

    FederatedAveraging().run(
        algorithm_params=params,
        backend=SimulatedBackend(federated, None, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=local,
        model_eval_params=evaluation,
        callbacks=[
            CentralEvaluationCallback(Dataset([work.test.inputs, work.test.labels]), model_eval_params=evaluation),
            Accuracy(),
        ],
    )
    return accuracies[-1]


if __name__ == "__main__":
    sys.path.append(os.environ["PFL_PATH"])
    if "LOCAL_WORLD_SIZE" in os.environ:
        torch.set_num_threads(1)
    sys.stdout.write(f"accuracy {run(WORKLOADS[sys.argv[1]]()):.4f}\n")

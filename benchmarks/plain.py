"""The plain loop: federated distillation as it is usually written in PyTorch, one client after another.

Data loaders, a model in training mode, Adam, one loop over clients, one over epochs. Nothing in it is slow on purpose.
"""

import math

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.workloads import Workload

TAU = 0.25


def run(work: Workload) -> float:
    """Play all rounds; gives the last mean accuracy."""
    models = [work.model(i) for i in range(len(work.shares))]
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in models]
    accuracies: list[float] = []
    for round_ in range(work.rounds):
        predictions, scores = [], []
        for i, (private, calibration) in enumerate(work.shares):
            epochs = work.first_epochs if round_ == 0 else 1
            train(models[i], optimizers[i], private.inputs, private.labels, epochs, work.batch)
            known, logits = predict(models[i], calibration.inputs), predict(models[i], work.public)
            predictions.append(torch.softmax(logits, 1))
            scores.append(log_density(known, calibration.labels, logits))
        weights = torch.softmax(TAU * torch.stack(scores), 0)
        teacher = (weights.unsqueeze(-1) * torch.stack(predictions)).sum(0)
        accuracies = []
        for model, optimizer in zip(models, optimizers, strict=True):
            train(model, optimizer, work.public, teacher, work.public_epochs, work.batch)
            correct = predict(model, work.test.inputs).argmax(1) == work.test.labels
            accuracies.append(correct.float().mean().item())
    return sum(accuracies) / len(accuracies)


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    epochs: int,
    batch: int,
) -> None:
    """Epochs of cross-entropy."""
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=batch, shuffle=True)
    model.train()
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def predict(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """Logits in evaluation mode."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model(x) for (x,) in DataLoader(TensorDataset(inputs), batch_size=256)])


def log_density(logits: torch.Tensor, labels: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """The log-density of points under one diagonal Gaussian per class."""
    parts = []
    for cls in labels.unique():  # type: ignore[no-untyped-call]
        own = logits[labels == cls]
        mean, std = own.mean(0), own.std(0).clamp_min(1e-3)
        parts.append(torch.distributions.Normal(mean, std).log_prob(points).sum(1))  # type: ignore[no-untyped-call]
    return torch.logsumexp(torch.stack(parts), 0) - math.log(len(parts))

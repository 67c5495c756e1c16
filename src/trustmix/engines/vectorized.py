"""Many small clients trained as one: their parameters stacked, every step a batched product over all of them.

A small model's step costs mostly the calls, not the arithmetic, and stacking pays for the calls once. Each client keeps
its own data, order and optimiser; clients with fewer steps drop out early, shorter batches are padded with weight zero.
Models that draw random numbers or update buffers while training (dropout, batch norm) cannot be stacked.
"""

import time
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from trustmix.federation import TrainingJob


def stack_key(job: TrainingJob) -> Hashable:
    """Jobs of equal likeness can be stacked: the same architecture, the same way of learning, the same kind of data.

    Augmented data and private gradients are each job's own: such a job is like no other.
    """
    if job.augment != "none" or job.noise is not None:
        return id(job)
    shapes = tuple((name, tuple(p.shape), p.requires_grad) for name, p in job.model.named_parameters())
    sample = (tuple(job.inputs.shape[1:]), job.inputs.dtype, job.targets.dtype, tuple(job.targets.shape[1:]))
    return job.architecture, shapes, sample, job.training, job.hardware


def train_stacked(jobs: Sequence[TrainingJob]) -> list[float]:
    """Do all jobs, which must be of equal likeness; gives the last loss of each. Nothing is changed if it fails."""
    begin = time.perf_counter()
    ranking = sorted(range(len(jobs)), key=lambda i: (-len(jobs[i].order), _steps_so_far(jobs[i])))
    jobs = [jobs[i] for i in ranking]
    stack = _Stack(jobs)
    inputs, input_offsets = _pool([job.inputs for job in jobs])
    targets, target_offsets = _pool([job.targets for job in jobs])
    losses = torch.zeros(len(jobs), device=inputs.device)
    for index, weight in _batches(jobs):
        active = len(index)
        index, weight = index.to(inputs.device), weight.to(inputs.device)
        with jobs[0].hardware.autocast():
            logits = stack.forward(inputs[index + input_offsets[:active]])
            wanted = targets[index + target_offsets[:active]].flatten(0, 1)
            each = cross_entropy(logits.flatten(0, 1), wanted, reduction="none").view(weight.shape)
        loss = (each * weight).sum(1)
        stack.descend(loss.sum(), active)
        losses[:active] = loss.detach()
    stack.unstack(jobs)
    for job in jobs:
        job.seconds = (time.perf_counter() - begin) / len(jobs)
    return [loss for _, loss in sorted(zip(ranking, losses.tolist(), strict=True))]


class _Stack:
    """The parameters of all clients, each stacked to (clients, *shape), and one optimiser for all of them.

    Optimisers work number by number, so clients that have taken as many steps so far, and have as many to take, share
    one block of rows and one step count; often that is all of them.
    """

    def __init__(self, jobs: Sequence[TrainingJob]) -> None:
        self.template = jobs[0].model.train()
        _check_alike([job.model for job in jobs])
        self.models = [_trainable(job.model) for job in jobs]
        self.leaves = {
            name: torch.stack([model[name].detach() for model in self.models]).requires_grad_()
            for name in self.models[0]
        }
        runs = [len(list(run)) for _, run in groupby(jobs, key=lambda job: (len(job.order), _steps_so_far(job)))]
        self.ends = list(accumulate(runs))
        self.blocks = [
            {name: leaf.detach()[end - size : end].requires_grad_() for name, leaf in self.leaves.items()}
            for size, end in zip(runs, self.ends, strict=True)
        ]
        self.optimizer = jobs[0].training.make_optimizer(rows for block in self.blocks for rows in block.values())
        for block, end in zip(self.blocks, self.ends, strict=True):
            for name, rows in block.items():
                members = range(end - len(rows), end)
                states = [jobs[i].optimizer.state.get(self.models[i][name], {}) for i in members]
                self.optimizer.state[rows] = _together(states, self.models[0][name])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits (active, batch, C) of the first clients, each on its own inputs."""
        active = len(inputs)
        everybody = active == len(self.models)
        named = {name: leaf if everybody else leaf[:active] for name, leaf in self.leaves.items()}

        buffers = {name: buffer.clone() for name, buffer in self.template.named_buffers()}

        def one(parameters: dict[str, torch.Tensor], batch: torch.Tensor) -> Any:
            tensors = {**parameters, **buffers}
            logits = functional_call(self.template, tensors, (batch,))
            if any(tensors[name] is not buffer for name, buffer in buffers.items()):
                raise RuntimeError("a model that replaces its buffers cannot be stacked")
            return logits

        logits: torch.Tensor = vmap(one, randomness="error")(named, inputs)
        if not all(torch.equal(buffers[name], buffer) for name, buffer in self.template.named_buffers()):
            raise RuntimeError("a model that updates its buffers cannot be stacked")
        return logits

    def descend(self, loss: torch.Tensor, active: int) -> None:
        """One step of the active clients; the losses of different clients share no parameter."""
        gradients = torch.autograd.grad(loss, list(self.leaves.values()))
        for block, end in zip(self.blocks, self.ends, strict=True):
            for rows, gradient in zip(block.values(), gradients, strict=True):
                # fused optimisers read gradients in memory order, whatever their strides
                rows.grad = gradient[end - len(rows) : end].contiguous() if end <= active else None
        self.optimizer.step()

    def unstack(self, jobs: Sequence[TrainingJob]) -> None:
        """Put parameters and optimiser states back where they came from."""
        for block, end in zip(self.blocks, self.ends, strict=True):
            for name, rows in block.items():
                state = self.optimizer.state[rows]
                for row, i in enumerate(range(end - len(rows), end)):
                    parameter = self.models[i][name]
                    parameter.data.copy_(rows.detach()[row])
                    jobs[i].optimizer.state[parameter] = {
                        key: torch.empty_like(parameter).copy_(value[row]) if _is_like(value, rows) else _copy(value)
                        for key, value in state.items()
                    }


def _check_alike(models: Sequence[nn.Module]) -> None:
    """Refuse models that differ in more than their trainable parameters, or that keep statistics of their batches."""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in models[0].modules()):
        raise RuntimeError("batch norm cannot be stacked")
    fixed = [[*(p for p in model.parameters() if not p.requires_grad), *model.buffers()] for model in models]
    if not all(torch.equal(a, b) for other in fixed[1:] for a, b in zip(fixed[0], other, strict=True)):
        raise RuntimeError("models whose frozen parts differ cannot be stacked")


def _together(states: Sequence[dict[str, Any]], parameter: torch.Tensor) -> dict[str, Any]:
    """One parameter's optimiser states of several clients as one; a single number (the step) is the same for all."""
    return {
        key: torch.stack([state[key] for state in states]) if _is_like(value, parameter) else _copy(value)
        for key, value in states[0].items()
    }


def _is_like(value: Any, parameter: torch.Tensor) -> bool:
    """Whether a piece of optimiser state has an entry for each number of the parameter, unlike the step count."""
    return torch.is_tensor(value) and value.shape == parameter.shape


def _steps_so_far(job: TrainingJob) -> float:
    """The optimiser's step count, 0 where it keeps none."""
    first = next(iter(_trainable(job.model).values()))
    return float(job.optimizer.state.get(first, {}).get("step", 0))


def _copy(value: Any) -> Any:
    return value.clone() if torch.is_tensor(value) else value


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _pool(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """All samples as one tensor, and where each client's begin in it (clients, 1); a shared set is not copied."""
    if all(tensor is tensors[0] for tensor in tensors):
        return tensors[0], torch.zeros(len(tensors), 1, dtype=torch.int64, device=tensors[0].device)
    lengths = torch.tensor([0, *(len(tensor) for tensor in tensors[:-1])])
    return torch.cat(list(tensors)), lengths.cumsum(0).unsqueeze(1).to(tensors[0].device)


def _batches(jobs: Sequence[TrainingJob]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For each step, sample indices (active, batch) and weights that make each client's sum of losses a mean."""
    lengths = [len(job.order) for job in jobs]
    for step in range(lengths[0]):
        orders = [job.order[step] for job, length in zip(jobs, lengths, strict=True) if length > step]
        sizes = torch.tensor([len(order) for order in orders]).unsqueeze(1)
        index = pad_sequence(orders, batch_first=True)
        yield index, (torch.arange(index.shape[1]) < sizes) / sizes

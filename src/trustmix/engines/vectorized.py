"""Vectorized training: many small models with stacked parameters, trained by batched operations.

A step of a small model costs mostly function calls, and stacking pays for the calls once. Each client keeps its own
data, order and optimiser state. Clients with fewer steps end earlier, and shorter batches are padded with weight zero.
Models that draw random numbers or update buffers in training (dropout, batch norm) cannot be stacked.
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

from trustmix.learners import Job, TrainingJob


def stack_key(job: Job) -> Hashable:
    """Return the key of a job: jobs with equal keys can be stacked.

    Parameters
    ----------
    job
        The job of one client.

    Returns
    -------
    Hashable
        The architecture, the parameter shapes, the shape and type of a sample, the training settings and the hardware.
        A job with augmented data or differentially private gradients, or of another kind, has a key of its own.
    """
    if not isinstance(job, TrainingJob) or job.augment != "none" or job.noise is not None:
        return id(job)
    shapes = tuple((name, tuple(p.shape), p.requires_grad) for name, p in job.model.named_parameters())
    sample = (tuple(job.inputs.shape[1:]), job.inputs.dtype, job.targets.dtype, tuple(job.targets.shape[1:]))
    return job.architecture, shapes, sample, job.training, job.hardware


def train_stacked(jobs: Sequence[TrainingJob]) -> list[float]:
    """Train all jobs as one; no model and no optimiser is changed if it fails.

    Parameters
    ----------
    jobs
        Training jobs with equal stack keys.

    Returns
    -------
    list of float
        The last loss of each job.

    Raises
    ------
    RuntimeError
        If the models cannot be stacked.
    """
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
            expected = targets[index + target_offsets[:active]].flatten(0, 1)
            losses_per_sample = cross_entropy(logits.flatten(0, 1), expected, reduction="none").view(weight.shape)
        loss = (losses_per_sample * weight).sum(1)
        stack.step(loss.sum(), active)
        losses[:active] = loss.detach()
    stack.unstack(jobs)
    for job in jobs:
        job.seconds = (time.perf_counter() - begin) / len(jobs)
    return [loss for _, loss in sorted(zip(ranking, losses.tolist(), strict=True))]


class _Stack:
    """The parameters of all clients, each stacked to (clients, *shape), and one optimiser for all of them.

    Optimisers work elementwise, so clients with the same number of steps taken and to take share one block of rows and
    one step count; often that is all of them.
    """

    def __init__(self, jobs: Sequence[TrainingJob]) -> None:
        self.template = jobs[0].model.train()
        _validate_stackable([job.model for job in jobs])
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
                clients = range(end - len(rows), end)
                states = [jobs[i].optimizer.state.get(self.models[i][name], {}) for i in clients]
                self.optimizer.state[rows] = _stack_states(states, self.models[0][name])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits (active, batch, C) of the first clients, each on its own inputs."""
        active = len(inputs)
        all_active = active == len(self.models)
        named = {name: leaf if all_active else leaf[:active] for name, leaf in self.leaves.items()}
        buffers = {name: buffer.clone() for name, buffer in self.template.named_buffers()}

        def forward_one(parameters: dict[str, torch.Tensor], batch: torch.Tensor) -> Any:
            tensors = {**parameters, **buffers}
            logits = functional_call(self.template, tensors, (batch,))
            if any(tensors[name] is not buffer for name, buffer in buffers.items()):
                raise RuntimeError("a model that replaces its buffers cannot be stacked")
            return logits

        logits: torch.Tensor = vmap(forward_one, randomness="error")(named, inputs)
        if not all(torch.equal(buffers[name], buffer) for name, buffer in self.template.named_buffers()):
            raise RuntimeError("a model that updates its buffers cannot be stacked")
        return logits

    def step(self, loss: torch.Tensor, active: int) -> None:
        """One optimiser step of the active clients; the losses of different clients share no parameter."""
        gradients = torch.autograd.grad(loss, list(self.leaves.values()))
        for block, end in zip(self.blocks, self.ends, strict=True):
            for rows, gradient in zip(block.values(), gradients, strict=True):
                # fused optimisers read gradients in memory order and ignore strides
                rows.grad = gradient[end - len(rows) : end].contiguous() if end <= active else None
        self.optimizer.step()

    def unstack(self, jobs: Sequence[TrainingJob]) -> None:
        """Copy parameters and optimiser states back to the jobs."""
        for block, end in zip(self.blocks, self.ends, strict=True):
            for name, rows in block.items():
                state = self.optimizer.state[rows]
                for row, i in enumerate(range(end - len(rows), end)):
                    parameter = self.models[i][name]
                    parameter.data.copy_(rows.detach()[row])
                    jobs[i].optimizer.state[parameter] = {
                        key: torch.empty_like(parameter).copy_(value[row])
                        if _has_shape_of(value, rows)
                        else _copy(value)
                        for key, value in state.items()
                    }


def _validate_stackable(models: Sequence[nn.Module]) -> None:
    """Raise if the models differ in more than their trainable parameters, or have batch norm."""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in models[0].modules()):
        raise RuntimeError("batch norm cannot be stacked")
    fixed = [[*(p for p in model.parameters() if not p.requires_grad), *model.buffers()] for model in models]
    if not all(torch.equal(a, b) for other in fixed[1:] for a, b in zip(fixed[0], other, strict=True)):
        raise RuntimeError("models whose frozen parts differ cannot be stacked")


def _stack_states(states: Sequence[dict[str, Any]], parameter: torch.Tensor) -> dict[str, Any]:
    """The optimiser states of one parameter of several clients as one; a scalar (the step) is the same for all."""
    return {
        key: torch.stack([state[key] for state in states]) if _has_shape_of(value, parameter) else _copy(value)
        for key, value in states[0].items()
    }


def _has_shape_of(value: Any, parameter: torch.Tensor) -> bool:
    """Whether an entry of an optimiser state has the shape of its parameter, unlike the step count."""
    return torch.is_tensor(value) and value.shape == parameter.shape


def _steps_so_far(job: TrainingJob) -> float:
    """The step count of the optimiser, 0 if it has none."""
    first = next(iter(_trainable(job.model).values()))
    return float(job.optimizer.state.get(first, {}).get("step", 0))


def _copy(value: Any) -> Any:
    return value.clone() if torch.is_tensor(value) else value


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _pool(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """All samples as one tensor, and the first index of each client in it (clients, 1); a shared set is not copied."""
    if all(tensor is tensors[0] for tensor in tensors):
        return tensors[0], torch.zeros(len(tensors), 1, dtype=torch.int64, device=tensors[0].device)
    lengths = torch.tensor([0, *(len(tensor) for tensor in tensors[:-1])])
    return torch.cat(list(tensors)), lengths.cumsum(0).unsqueeze(1).to(tensors[0].device)


def _batches(jobs: Sequence[TrainingJob]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For each step, sample indices and weights, both (active, batch); the weights of each client sum to one."""
    lengths = [len(job.order) for job in jobs]
    for step in range(lengths[0]):
        orders = [job.order[step] for job, length in zip(jobs, lengths, strict=True) if length > step]
        sizes = torch.tensor([len(order) for order in orders]).unsqueeze(1)
        index = pad_sequence(orders, batch_first=True)
        yield index, (torch.arange(index.shape[1]) < sizes) / sizes

"""The optimisers of clients: those of torch, without the import of torch's compiler.

Methods of `torch.optim.Optimizer` import `torch._dynamo`, also where nothing is compiled: a second and 80 MB in each
process of a sweep or a pool. The classes here call the functions below these wrappers; the arithmetic is torch's.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import StateDict

from trustmix.registry import Registry

OPTIMIZERS: Registry[type[torch.optim.Optimizer]] = Registry("optimizer")


class EagerOptimizer(torch.optim.Optimizer):
    """The methods of an optimiser of torch that import torch's compiler, without that import.

    It is the first base class of an optimiser. Where a version of torch does not wrap a method, the method itself runs.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as `torch.optim.Optimizer.add_param_group` does."""
        inspect.unwrap(super(EagerOptimizer, type(self)).add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients, as `torch.optim.Optimizer.zero_grad` does."""
        inspect.unwrap(super(EagerOptimizer, type(self)).zero_grad)(self, set_to_none)

    def state_dict(self) -> StateDict:
        """Return the state, as `torch.optim.Optimizer.state_dict` does."""
        state: StateDict = inspect.unwrap(super(EagerOptimizer, type(self)).state_dict)(self)
        return state

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over a state, as `torch.optim.Optimizer.load_state_dict` does."""
        inspect.unwrap(super(EagerOptimizer, type(self)).load_state_dict)(self, state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step, as the `step` of the optimiser of torch does."""
        loss: float | None = inspect.unwrap(super(EagerOptimizer, type(self)).step)(self, closure)
        return loss


@OPTIMIZERS.register("adam")
class Adam(EagerOptimizer, torch.optim.Adam):
    """`torch.optim.Adam`."""


@OPTIMIZERS.register("adamw")
class AdamW(EagerOptimizer, torch.optim.AdamW):
    """`torch.optim.AdamW`."""


@OPTIMIZERS.register("sgd")
class SGD(EagerOptimizer, torch.optim.SGD):
    """`torch.optim.SGD`."""

"""Optimisers: torch's numbers, without torch's compiler."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from trustmix.learners.optimizers import OPTIMIZERS


def trained_weights(kind: type[torch.optim.Optimizer]) -> torch.Tensor:
    """The weights of a small model after some steps, with the optimiser's state saved and restored on the way."""
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    optimizer = kind(model.parameters(), lr=0.01, fused=True)  # type: ignore[call-arg]
    for number in range(20):
        if number == 10:
            state = optimizer.state_dict()
            optimizer = kind(model.parameters(), lr=0.01, fused=True)  # type: ignore[call-arg]
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        model(torch.randn(7, 5)).square().sum().backward()
        optimizer.step()
    return model.weight.detach()


@pytest.mark.parametrize(
    ("name", "reference"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)]
)
def test_an_optimizer_gives_the_numbers_of_torch(name: str, reference: type[torch.optim.Optimizer]) -> None:
    assert torch.equal(trained_weights(OPTIMIZERS.get(name)), trained_weights(reference))


@pytest.mark.parametrize(("set_to_none", "left"), [((), None), ((True,), None), ((False,), [0.0, 0.0])])
def test_gradients_are_freed_unless_zeros_are_asked_for(
    set_to_none: tuple[bool, ...], left: list[float] | None
) -> None:
    weights = nn.Parameter(torch.ones(2))
    optimizer = OPTIMIZERS.get("adam")([weights], lr=0.1)  # type: ignore[call-arg]
    weights.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.zero_grad(*set_to_none)
    assert (None if weights.grad is None else weights.grad.tolist()) == left


def test_hooks_of_a_step_run_once_and_a_closure_gives_the_loss() -> None:
    model, calls = nn.Linear(2, 1), list[str]()
    optimizer = OPTIMIZERS.get("sgd")(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))

    def closure() -> float:
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return float(loss.detach())

    expected = closure()
    assert optimizer.step(closure) == expected
    assert calls == ["before", "after"]


def test_training_does_not_import_the_compiler() -> None:
    code = """
import sys, torch
from trustmix.learners.optimizers import OPTIMIZERS
for name in OPTIMIZERS.names():
    model = torch.nn.Linear(2, 1)
    optimizer = OPTIMIZERS.get(name)(model.parameters(), lr=0.1, fused=True)
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)

"""The rivals made for lying clients, each against its definition."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from trustmix.aggregation import Upload
from trustmix.aggregation.robust import cronus, geometric_median, median
from trustmix.federation import METHODS

ROBUST = ("median", "geometric-median", "cronus", "expguard")

LUCK = torch.Generator().manual_seed(0)
HONEST = torch.softmax(torch.randn(5, 3, generator=LUCK, dtype=torch.float64), 1)
SAID = torch.softmax(HONEST.log() + 0.1 * torch.randn(14, 5, 3, generator=LUCK, dtype=torch.float64), 2)
LIES = torch.nn.functional.one_hot(HONEST.argmin(1), 3).double().expand(3, 5, 3)


def teacher(name: str, said: torch.Tensor, memory: Any = None) -> tuple[torch.Tensor, Any]:
    rule = METHODS.get(name).make_aggregator()
    rule.load_state_dict(memory or {})
    for index, q in enumerate(said):
        rule.update(Upload.from_arrays(str(index), q))
    found = rule.compute().probabilities
    rule.reset()
    return found, rule.state_dict()


@pytest.mark.parametrize("name", ROBUST)
def test_a_few_liars_move_the_teacher_less_than_they_move_the_average(name: str) -> None:
    def moved(rule: str) -> float:
        return float((teacher(rule, torch.cat([SAID, LIES]))[0] - teacher(rule, SAID)[0]).abs().max())

    assert moved(name) < 0.7 * moved("avg")
    assert teacher(name, SAID)[0].sum(1).tolist() == pytest.approx([1] * 5)


def test_the_median_is_numpys() -> None:
    middle = np.median(SAID.numpy(), 0)
    assert median(SAID).numpy() == pytest.approx(middle / middle.sum(1, keepdims=True))


def test_the_geometric_median_is_the_point_of_least_total_distance() -> None:
    for x in range(5):
        points = torch.cat([SAID, LIES])[:, x].numpy()
        found = minimize(lambda p, q=points: np.linalg.norm(q - p, axis=1).sum(), points.mean(0), tol=1e-10).x
        assert geometric_median(torch.cat([SAID, LIES]))[x].numpy() == pytest.approx(found, abs=1e-3)


def test_cronus_averages_those_who_are_left() -> None:
    """With 14 + 2 clients, of which each step leaves out two, the two liars go first."""
    left = [cronus(torch.cat([SAID, LIES[:2]]))[x] for x in range(5)]
    for x, found in enumerate(left):
        assert any(
            torch.allclose(found, torch.cat([SAID[:i], SAID[i + 1 : j], SAID[j + 1 :]])[:, x].mean(0))
            for i in range(14)
            for j in range(i + 1, 14)
        )


def test_expguard_remembers_who_was_far_off() -> None:
    _, once = teacher("expguard", torch.cat([SAID, LIES]))
    _, twice = teacher("expguard", torch.cat([SAID, LIES]), once)
    assert float(twice["weight/14"]) == pytest.approx(float(once["weight/14"]) ** 2, rel=0.05)
    assert all(float(twice[f"weight/{i}"]) > 0.8 for i in range(14))
    assert float(once["weight/14"]) < 0.7

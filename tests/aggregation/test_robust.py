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


def test_the_geometric_median_takes_twenty_steps_of_weiszfeld() -> None:
    points = torch.cat([SAID, LIES]).numpy()
    for x in range(5):
        point = points[:, x].mean(0)
        for _ in range(20):
            distances = np.maximum(np.linalg.norm(points[:, x] - point, axis=1), 1e-6)
            point = np.average(points[:, x], axis=0, weights=1 / distances)
        assert geometric_median(torch.from_numpy(points))[x].numpy() == pytest.approx(point, rel=1e-12)


def test_most_clients_at_one_point_are_the_geometric_median_to_a_millionth() -> None:
    found = geometric_median(torch.tensor([[[1.0, 0.0]]] * 9 + [[[0.0, 1.0]]], dtype=torch.float64))
    off = 1e-6 / np.sqrt(2) / 9  # the nine weigh 1e6 each, the other one 1 over its distance
    assert found[0, 1].item() == pytest.approx(off, rel=1e-3)


def plain_cronus(points: Any) -> Any:
    """The mean of one sample's predictions (M, C) after two steps that each leave out an eighth."""
    for _ in range(2):
        centred = points - points.mean(0)
        distance = np.abs(centred @ np.linalg.svd(centred)[2][0])
        points = points[np.argsort(distance)[: max(1, round(len(points) * 7 / 8))]]
    return points.mean(0)


@pytest.mark.parametrize("clients", [1, 2, 3, 8, 14, 16])
def test_cronus_averages_those_who_are_nearest_along_the_largest_variance(clients: int) -> None:
    said = torch.cat([LIES[:2], SAID])[:clients]
    expected = [plain_cronus(said[:, x].numpy()) for x in range(5)]
    np.testing.assert_allclose(cronus(said), expected, rtol=1e-9)


def test_expguard_divides_a_weight_by_e_to_the_distance_in_every_round() -> None:
    """A client that is absent keeps its weight, relative to the largest; the teacher is the weighted mean."""
    weights, memory = np.ones(17), None
    for present in (list(range(17)), list(range(3, 17))):
        said = torch.cat([LIES, SAID])[present]
        rule = METHODS.get("expguard").make_aggregator()
        rule.load_state_dict(memory or {})
        for index, q in zip(present, said, strict=True):
            rule.update(Upload.from_arrays(str(index), q))
        found = rule.compute().probabilities
        distance = np.linalg.norm(said.numpy() - [plain_cronus(said[:, x].numpy()) for x in range(5)], axis=2).mean(1)
        weights[present] *= np.exp(-distance)
        weights /= weights.max()
        np.testing.assert_allclose(found, np.average(said.numpy(), axis=0, weights=weights[present]), rtol=1e-9)
        rule.reset()
        memory = rule.state_dict()
        assert [float(memory[f"weight/{i}"]) for i in range(17)] == pytest.approx(weights.tolist())


def test_a_rule_without_weights_has_the_concentration_of_equal_ones() -> None:
    rule = METHODS.get("median").make_aggregator()
    for index, q in enumerate(SAID):
        rule.update(Upload.from_arrays(str(index), q))
    assert rule.compute().concentration.tolist() == pytest.approx([1 / 14] * 5)

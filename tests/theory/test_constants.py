"""Constants: per-sample gradients against closed forms, the least b, the best alpha against a search."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from trustmix import TrustmixError
from trustmix.theory import (
    Alignment,
    Oracle,
    best_alpha,
    fit_alignment,
    gradient_noise,
    oracle,
    pl_constant,
    score_energy,
    smallest_alpha,
    smoothness,
    stationarity_floor,
)

SIZES = st.floats(1e-3, 1e3)
PARTS = st.floats(0.0, 0.95)


def softmax_regression(seed: int) -> tuple[nn.Linear, torch.Tensor, np.ndarray[Any, Any]]:
    """A model, inputs, and its probabilities by NumPy."""
    torch.manual_seed(seed)
    model, x = nn.Linear(4, 3).double(), torch.randn(20, 4, dtype=torch.float64)
    z = x.numpy() @ model.weight.detach().numpy().T + model.bias.detach().numpy()
    e = np.exp(z - z.max(1, keepdims=True))
    return model, x, e / e.sum(1, keepdims=True)


def test_score_energy_is_that_of_the_closed_form() -> None:
    """sum_c ||grad log f_c||^2 = (|x|^2 + 1) * sum_c ||e_c - f||^2."""
    model, x, f = softmax_regression(0)
    rows = np.eye(3)[None] - f[:, None]
    expected = np.mean((np.square(x.numpy()).sum(1) + 1) * np.square(rows).sum((1, 2)))
    assert score_energy(model, x) == pytest.approx(expected)


def test_frozen_parameters_have_no_score() -> None:
    model, x, f = softmax_regression(0)
    model.bias.requires_grad_(False)
    rows = np.eye(3)[None] - f[:, None]
    assert score_energy(model, x) == pytest.approx(np.mean(np.square(x.numpy()).sum(1) * np.square(rows).sum((1, 2))))


def test_gradient_noise_is_that_of_the_closed_form_and_of_drawn_batches() -> None:
    model, x, f = softmax_regression(1)
    targets = np.random.default_rng(0).dirichlet(np.ones(3), 20)
    inputs = np.hstack([x.numpy(), np.ones((20, 1))])
    each = np.einsum("nc,nd->ncd", f - targets, inputs).reshape(20, -1)
    expected = np.square(each - each.mean(0)).sum(1).mean() / 4
    assert gradient_noise(model, x, torch.tensor(targets), batch=4) == pytest.approx(expected)
    drawn = each[np.random.default_rng(1).integers(0, 20, (20000, 4))].mean(1)
    assert np.square(drawn - each.mean(0)).sum(1).mean() == pytest.approx(expected, rel=0.05)


class Looking(nn.Module):
    """A model that looks at the values of its inputs, which cannot be vectorised."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * 1.0 if bool((x > 99).any()) else x)  # type: ignore[no-any-return]


def test_a_model_that_looks_at_its_inputs_goes_one_by_one() -> None:
    model, x, _ = softmax_regression(0)
    assert score_energy(Looking(model), x) == pytest.approx(score_energy(model, x))


@given(st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=6), st.floats(0, 100, allow_subnormal=False))
def test_alignment_covers_every_point_and_no_other_has_a_lower_floor(
    points: list[tuple[float, float]], term: float
) -> None:
    norms, apart = ([p[k] for p in points] for k in (0, 1))
    found = fit_alignment(norms, apart, term)
    scale = max(apart)
    assert all(d <= found.c * n + found.b2 + 1e-9 * scale for n, d in points)
    floor = stationarity_floor(oracle(found, term, 1.0))
    for c in np.linspace(0, 0.95, 20):
        b2 = max(0.0, *(d - c * n for n, d in points))
        assert floor <= stationarity_floor(oracle(Alignment(float(c), b2), term, 1.0)) * (1 + 1e-9) + 1e-9 * scale


def test_alignment_without_any_difference_is_perfect() -> None:
    assert fit_alignment([1.0, 2.0], [0.0, 0.0]) == Alignment(0.0, 0.0)
    assert oracle(Alignment(0.0, 0.0), energy=2.0, error=0.5) == Oracle(0.0, 1.0, 0.0)


@given(PARTS, SIZES, SIZES)
def test_the_best_alpha_has_the_lowest_floor_of_all(c: float, b2: float, term: float) -> None:
    alpha = best_alpha(Alignment(c, b2), term, 1.0)
    least = smallest_alpha(c)
    assert alpha > least
    others = least + np.geomspace(1e-4, 1e4, 200) * (alpha - least)
    zeta2 = (1 + others) * term + (1 + 1 / others) * b2
    floors = zeta2 / (1 - (1 + 1 / others) * c)
    found = stationarity_floor(oracle(Alignment(c, b2), term, 1.0))
    assert found <= floors.min() * (1 + 1e-9)
    assert found == pytest.approx(float(floors.min()), rel=0.05)


@given(PARTS, SIZES, SIZES, SIZES, st.floats(1e-3, 1e3))
def test_m_and_zeta_are_those_of_the_proposition(c: float, b2: float, energy: float, error: float, more: float) -> None:
    alpha = c / (1 - c) + more
    found = oracle(Alignment(c, b2), energy, error, alpha)
    assert found.m == pytest.approx((1 + 1 / alpha) * c)
    assert found.zeta2 == pytest.approx((1 + alpha) * energy * error + (1 + 1 / alpha) * b2)


def test_a_perfect_teacher_leaves_the_alignment_alone() -> None:
    found = oracle(Alignment(0.5, 3.0), energy=10.0, error=0.0)
    assert (found.m, found.zeta2, found.alpha) == (0.5, 3.0, math.inf)


@given(st.integers(0, 1000))
def test_smoothness_and_pl_of_a_quadratic_lie_between_its_curvatures(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = np.diag([0.5, 1.0, 4.0])
    points = rng.normal(size=(6, 3))
    gradients = points @ a
    found = smoothness([torch.tensor(g) for g in gradients], [torch.tensor(p) for p in points])
    pl = pl_constant(np.square(gradients).sum(1).tolist(), (np.einsum("ni,ij,nj->n", points, a, points) / 2).tolist())
    assert 0.5 - 1e-9 <= pl <= found + 1e-9 <= 4.0 + 1e-8


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Alignment(1.0, 0.0), "c is 1; it must be at least 0 and below 1"),
        (lambda: Alignment(0.5, -1.0), r"b\^2 is -1"),
        (lambda: smallest_alpha(1.2), "c is 1.2"),
        (lambda: Oracle(1.0, 0.0), "m is 1; it must be at least 0 and below 1"),
        (lambda: Oracle(0.5, math.nan), r"zeta\^2 is nan"),
        (lambda: oracle(Alignment(0.5, 1.0), 1.0, 1.0, alpha=1.0), r"alpha is 1; with c = 0.5 it must be above .* = 1"),
        (lambda: oracle(Alignment(0.5, 1.0), -1.0, 1.0), r"G_sc\^2 is -1"),
        (lambda: fit_alignment([], []), "one of each"),
        (lambda: fit_alignment([-1.0], [1.0]), "0 or more"),
        (lambda: smoothness([torch.zeros(2)], [torch.zeros(2)]), "two different points"),
        (lambda: pl_constant([1.0], [0.0]), "no point lies above"),
    ],
)
def test_what_the_proposition_does_not_cover_is_refused_in_a_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        call()

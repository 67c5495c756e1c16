"""The theorems, by computation: biased SGD on softmax regression with a known optimum stays under both bounds.

F is cross-entropy against p* = f(theta*) on the private inputs plus (ridge/2)|theta - theta*|^2: its minimum is theta*,
it is ridge-strongly convex, and its curvature is at most half the largest eigenvalue of E[x x^T] plus ridge.
Distillation follows a teacher p_agg with a chosen error, on other inputs, with gradient noise of a chosen size.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from trustmix.theory import (
    Alignment,
    Oracle,
    fit_alignment,
    oracle,
    pl_bound,
    rank_correlation,
    stationarity_bound,
    teacher_error,
)

Array = np.ndarray[Any, Any]
FEATURES, CLASSES, RIDGE, STEPS, REPEATS = 4, 3, 0.1, 150, 24
ERRORS, STEP_SIZES, NOISES = (0.0, 0.1, 0.4, 0.8), (1.0, 0.3, 0.05), (0.0, 0.05, 0.5)


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(-1, keepdims=True))
    found: Array = e / e.sum(-1, keepdims=True)
    return found


def square(a: Array) -> Array:
    found: Array = np.square(a).sum((-2, -1))
    return found


class Problem:
    """One supervised problem and its public set."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.private, self.public = rng.normal(size=(2, 60, FEATURES))
        self.optimum = rng.normal(size=(FEATURES, CLASSES))
        self.start = self.optimum + rng.normal(size=(FEATURES, CLASSES))
        self.star = softmax(self.public @ self.optimum)
        eigenvalues = np.linalg.eigvalsh(self.private.T @ self.private / len(self.private))
        self.smoothness = float(eigenvalues.max() / 2 + RIDGE)
        self.wrong = np.eye(CLASSES)[rng.integers(0, CLASSES, len(self.public))]

    def teacher(self, part: float) -> Array:
        return (1 - part) * self.star + part * self.wrong

    def gap(self, theta: Array) -> Array:
        """F - F* of points (R, d, C)."""
        p, f = softmax(self.private @ self.optimum), softmax(self.private @ theta)
        divergence = (p * (np.log(p) - np.log(f))).sum(-1).mean(-1)
        found: Array = divergence + RIDGE / 2 * square(theta - self.optimum)
        return found

    def supervised(self, theta: Array) -> Array:
        difference = softmax(self.private @ theta) - softmax(self.private @ self.optimum)
        found: Array = self.private.T @ difference / len(self.private) + RIDGE * (theta - self.optimum)
        return found

    def distillation(self, theta: Array, teacher: Array) -> Array:
        found: Array = self.public.T @ (softmax(self.public @ theta) - teacher) / len(self.public)
        return found

    def score_energy(self, theta: Array) -> Array:
        f = softmax(self.public @ theta)
        rows = CLASSES - 2 + CLASSES * np.square(f).sum(-1)  # sum_c ||e_c - f||^2
        found: Array = (np.square(self.public).sum(1) * rows).mean(-1)
        return found


PROBLEM = Problem()


@dataclass
class Path:
    """Means over repeats at every step."""

    gaps: Array
    gradients: Array
    apart: Array
    biases: Array
    discrepancies: Array
    energy: float
    error: float

    def oracle(self) -> Oracle:
        alignment: Alignment = fit_alignment(self.gradients.tolist(), self.apart.tolist(), self.energy * self.error)
        return oracle(alignment, self.energy, self.error)


@cache
def path(part: float, gamma_part: float, noise: float) -> Path:
    rng = np.random.default_rng(7)
    teacher, theta = PROBLEM.teacher(part), np.tile(PROBLEM.start, (REPEATS, 1, 1))
    gamma = gamma_part / PROBLEM.smoothness
    lines = []
    for _ in range(STEPS):
        f, j, ideal = (
            PROBLEM.supervised(theta),
            PROBLEM.distillation(theta, teacher),
            PROBLEM.distillation(theta, PROBLEM.star),
        )
        figures = PROBLEM.gap(theta), square(f), square(f - ideal), square(j - f), square(j - ideal)
        lines.append([a.mean() for a in figures] + [PROBLEM.score_energy(theta).mean()])
        theta = theta - gamma * (j + np.sqrt(noise / (FEATURES * CLASSES)) * rng.normal(size=theta.shape))
    gaps, gradients, apart, biases, discrepancies, energies = np.array(lines).T
    error = teacher_error(teacher, PROBLEM.star)
    return Path(gaps, gradients, apart, biases, discrepancies, float(energies.max()), error)


GRID = [(e, s, n) for e in ERRORS for s in STEP_SIZES for n in NOISES]


@pytest.mark.parametrize(("part", "gamma_part", "noise"), GRID)
def test_descent_stays_under_both_bounds_at_every_iteration(part: float, gamma_part: float, noise: float) -> None:
    found, gamma = path(part, gamma_part, noise), gamma_part / PROBLEM.smoothness
    o = found.oracle()
    shared = {"gap": float(found.gaps[0]), "gamma": gamma, "smoothness": PROBLEM.smoothness, "noise": noise}
    stationary = np.cumsum(found.gradients) / np.arange(1, STEPS + 1)
    for t in range(STEPS):
        assert stationary[t] <= stationarity_bound(t + 1, o, **shared)
        assert found.gaps[t] <= pl_bound(t, o, **shared, pl=RIDGE) * (1 + 1e-12)


@pytest.mark.parametrize(("part", "gamma_part", "noise"), GRID)
def test_the_bias_of_the_gradient_is_that_of_the_proposition(part: float, gamma_part: float, noise: float) -> None:
    found = path(part, gamma_part, noise)
    o = found.oracle()
    assert (found.biases <= o.m * found.gradients + o.zeta2 + 1e-12).all()
    assert (found.discrepancies <= found.energy * found.error + 1e-15).all()


@pytest.mark.parametrize("noise", NOISES)
def test_a_worse_teacher_ends_higher_as_its_floor_says(noise: float) -> None:
    paths = [path(part, 0.3, noise) for part in ERRORS]
    ends, floors = [float(p.gaps[-20:].mean()) for p in paths], [p.oracle().zeta2 for p in paths]
    assert rank_correlation([p.error for p in paths], ends) == 1
    assert rank_correlation(floors, ends) == 1


def test_without_error_and_noise_the_pl_bound_is_not_idle() -> None:
    """An exact gradient has m = zeta = 0; the bound goes to nothing, and descent stays below it."""
    theta, gamma, exact = PROBLEM.start[None], 1 / PROBLEM.smoothness, Oracle(0.0, 0.0)
    gaps = []
    for _ in range(STEPS):
        gaps.append(float(PROBLEM.gap(theta)[0]))
        theta = theta - gamma * PROBLEM.supervised(theta)
    shared = {"gap": gaps[0], "gamma": gamma, "smoothness": PROBLEM.smoothness, "pl": RIDGE}
    bounds = [pl_bound(t, exact, **shared) for t in range(STEPS)]
    assert all(gap <= bound * (1 + 1e-9) for gap, bound in zip(gaps, bounds, strict=True))
    assert bounds[-1] < 1e-6 * bounds[0]

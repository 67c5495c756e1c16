"""The accountant's epsilon against privacy loss distributions computed here on a grid, by nothing of the library."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import optimize, stats

from trustmix.errors import TrustmixError
from trustmix.privacy.accountant import compute_epsilon, compute_noise_multiplier

DELTA = 1e-5


def exact_gaussian(noise: float, releases: int) -> float:
    """Epsilon of the Gaussian mechanism, by the formula of Balle and Wang (2018)."""
    mu = np.sqrt(releases) / noise

    def excess(epsilon: float) -> float:
        tail = stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        return float(tail - DELTA)

    return float(optimize.brentq(excess, 0, 500))


def by_grid(noise: float, releases: int, rate: float) -> float:
    """Epsilon of Poisson samples: the distribution of the privacy loss, convolved with itself; the worse direction."""
    step, size = 2e-3, 2**16
    x = np.linspace(-12 * noise, 12 * noise + 1, 400_001)
    without = stats.norm.pdf(x, scale=noise)
    with_record = (1 - rate) * without + rate * stats.norm.pdf(x, loc=1, scale=noise)
    found = []
    for above, below in ((with_record, without), (without, with_record)):
        loss = np.log(above / below)
        mass = above * (x[1] - x[0])
        place = np.round(loss / step).astype(int) % size
        once = np.bincount(place, mass, minlength=size)
        many = np.fft.irfft(np.fft.rfft(once) ** releases, size).clip(0)
        losses = np.fft.fftfreq(size, 1 / size) * step

        def excess(epsilon: float, many: np.ndarray = many, losses: np.ndarray = losses) -> float:
            more = losses > epsilon
            return float((many[more] * (1 - np.exp(epsilon - losses[more]))).sum() - DELTA)

        found.append(float(optimize.brentq(excess, 0, 60)))
    return max(found)


@pytest.mark.parametrize(("noise", "releases"), [(1.0, 1), (2.0, 20), (0.5, 3)])
def test_without_sampling_epsilon_bounds_the_exact_figure_closely(noise: float, releases: int) -> None:
    exact = exact_gaussian(noise, releases)
    assert exact <= compute_epsilon(noise, releases, 1.0, DELTA) <= 1.2 * exact


@pytest.mark.parametrize(("noise", "releases", "rate"), [(1.0, 100, 0.07), (2.0, 50, 0.3)])
def test_with_sampling_epsilon_bounds_the_exact_figure_closely(noise: float, releases: int, rate: float) -> None:
    exact = by_grid(noise, releases, rate)
    assert exact <= compute_epsilon(noise, releases, rate, DELTA) <= 1.25 * exact


def test_noise_is_the_smallest_that_keeps_the_promise() -> None:
    noise = compute_noise_multiplier(3.0, 50, 0.3, DELTA)
    assert compute_epsilon(noise, 50, 0.3, DELTA) <= 3 < compute_epsilon(0.99 * noise, 50, 0.3, DELTA)


def test_an_epsilon_near_zero_is_refused() -> None:
    with pytest.raises(TrustmixError, match=r"epsilon is 1e-09; no noise"):
        compute_noise_multiplier(1e-9, 10, 1.0, DELTA)


def test_the_accountant_leaves_logging_as_it_is() -> None:
    code = (
        "import logging; from trustmix.privacy.accountant import compute_epsilon; compute_epsilon(1.0, 1, 1.0, 1e-5); "
        "assert not logging.getLogger().handlers"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_without_the_accountant_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants.analysis", None)
    with pytest.raises(TrustmixError, match=r'pip install "trustmix\[privacy\]"'):
        compute_epsilon(1.2345, 7, 1.0, DELTA)

"""Scores of confidence against their closed forms in SciPy."""

from typing import Any

import numpy as np
import pytest
from scipy.special import entr, logsumexp, softmax

from trustmix.density import DENSITIES


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        ("energy", lambda z: logsumexp(z, axis=1)),
        ("entropy", lambda z: -entr(softmax(z, axis=1)).sum(1)),
        ("max-probability", lambda z: np.log(softmax(z, axis=1).max(1))),
    ],
)
def test_scores_of_confidence_have_closed_forms(kind: str, formula: Any) -> None:
    logits = 5 * np.random.default_rng(0).normal(size=(60, 6))
    np.testing.assert_allclose(DENSITIES.get(kind).fit(logits[:5], np.arange(5)).log_prob(logits), formula(logits))

"""Weighted means of logits against NumPy, and at probabilities of 0."""

from dataclasses import replace

import numpy as np
import torch

from trustmix.aggregation import Upload, WeightedLogits
from trustmix.aggregation.weighted_logits import centred_logits


class ByScore(WeightedLogits):
    """Weights are the scores themselves."""

    def sample_weights(self, upload: Upload) -> torch.Tensor:
        assert upload.scores is not None
        return upload.scores


def test_a_teacher_is_the_softmax_of_the_weighted_mean_of_logits() -> None:
    rng = np.random.default_rng(0)
    logits, weights, count = rng.normal(size=(4, 6, 3)), rng.random((4, 6)), np.array([1.0, 2.0, 1.0, 0.5])
    rule = ByScore()
    rule.track(torch.arange(6))
    for index in range(4):
        q = np.exp(logits[index]) / np.exp(logits[index]).sum(1, keepdims=True)
        rule.update(replace(Upload.from_arrays(str(index), q, weights[index]), weight=count[index]))
    shares = weights * count[:, None] / (weights * count[:, None]).sum(0)
    wanted = np.exp((shares[:, :, None] * logits).sum(0))
    teacher = rule.compute()
    np.testing.assert_allclose(teacher.probabilities, wanted / wanted.sum(1, keepdims=True), rtol=1e-9)
    np.testing.assert_allclose(teacher.concentration, (shares**2).sum(0), rtol=1e-9)
    kept = rule.client_weights()
    assert kept is not None
    np.testing.assert_allclose(torch.stack(list(kept.values())), shares, rtol=1e-9)


def test_probabilities_of_zero_have_finite_logits_of_mean_zero() -> None:
    for kind in (torch.float16, torch.float32, torch.float64):
        found = centred_logits(torch.tensor([[1.0, 0.0, 0.0]], dtype=kind))
        assert bool(found.isfinite().all())
        assert abs(float(found.sum())) < 1e-9
        assert float(found[0, 0]) > 5

"""Standard scores against independent implementations, and whatever the scale of a density."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from trustmix.density import roc_auc, standardize_scores


@given(scale=st.floats(0.1, 10), shift=st.floats(-100, 100))
@settings(max_examples=10, deadline=None)
def test_standard_scores_are_the_same_whatever_the_scale_of_a_density(scale: float, shift: float) -> None:
    known, scores = torch.randn(2, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(
        standardize_scores(scale * known + shift, scale * scores + shift), standardize_scores(known, scores)
    )
    assert standardize_scores(torch.ones(3), torch.tensor([1.0, 0.0])).tolist() == [0.0, -1.0]


def test_the_area_under_the_roc_curve_is_that_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    own = torch.rand(300, generator=generator) < 0.3
    scores = torch.randn(300, generator=generator) + own
    assert roc_auc(scores, own) == pytest.approx(roc_auc_score(own, scores))
    coarse = scores.round()
    assert roc_auc(coarse, own) == pytest.approx(roc_auc_score(own, coarse))

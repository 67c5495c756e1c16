"""What all densities have in common."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trustmix import TrustmixError
from trustmix.density import DENSITIES, DISCRIMINATOR, RATIO, ConfidenceScore, PrecomputedScores, resolve_density

KINDS = DENSITIES.names()


def samples(seed: int = 0, count: int = 60) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % 3)
    return rng.normal(size=(count, 6)) * 2 + 6 * np.eye(6)[labels], labels


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 99))
@settings(max_examples=5, deadline=None)
def test_the_order_of_samples_does_not_matter(kind: str, seed: int) -> None:
    if kind == RATIO:
        return  # its folds go by the order: it has a test of its own
    logits, labels = samples(seed)
    order = np.random.default_rng(seed).permutation(len(logits))
    one = DENSITIES.get(kind).fit(logits, labels).log_prob(logits)
    other = DENSITIES.get(kind).fit(logits[order], labels[order]).log_prob(logits[order])
    np.testing.assert_allclose(other, one[order], rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@given(by=st.floats(-50, 50))
@settings(max_examples=5, deadline=None)
def test_logits_that_are_all_shifted_shift_energy_and_change_nothing_else(kind: str, by: float) -> None:
    logits, labels = samples()
    one = DENSITIES.get(kind).fit(logits, labels).log_prob(logits)
    other = DENSITIES.get(kind).fit(logits + by, labels).log_prob(logits + by)
    np.testing.assert_allclose(other, one + (by if kind == "energy" else 0), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["gaussians", "kernel", "features", "duq"])
def test_what_was_calibrated_on_is_more_likely_than_what_is_far_away(kind: str) -> None:
    logits, labels = samples()
    density = DENSITIES.get(kind).fit(logits, labels)
    assert density.log_prob(logits).min() > density.log_prob(logits - 40).max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("logits", [np.zeros((4, 3)), np.eye(4)[:, :3], [[1.0, 2.0, 3.0]] * 4])
def test_degenerate_calibration_samples_give_finite_scores_that_are_highest_at_the_samples(
    kind: str, logits: Any
) -> None:
    density = DENSITIES.get(kind).fit(logits, np.arange(4))  # one sample a class
    there, beside = (density.log_prob(np.asarray(logits) + away * np.array([1.0, 0.5, 0.0])) for away in (0, 1))
    assert np.isfinite(beside).all()
    if kind in ("gaussians", "kernel", "features"):
        assert (there > beside + 100).all()  # the floor is narrow: beside it is far away


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_in_goes_out(kind: str) -> None:
    logits, labels = samples()
    density = DENSITIES.get(kind).fit(torch.tensor(logits), torch.tensor(labels))
    assert density.log_prob(logits.astype(np.float16)).dtype == np.float32
    found = density.log_prob(torch.tensor(logits, dtype=torch.float32))
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.float32


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "ratio"])
def test_no_rows_have_no_scores(kind: str) -> None:
    logits, labels = samples()
    assert DENSITIES.get(kind).fit(logits, labels).log_prob(logits[:0]).shape == (0,)


@pytest.mark.parametrize("kind", ["kernel", "features", "duq"])
def test_bad_arrays_are_answered_in_a_sentence(kind: str) -> None:
    logits, labels = samples()
    with pytest.raises(TrustmixError, match=r"60 rows of (logits|features) but labels \(59,\); .* one label a row"):
        DENSITIES.get(kind).fit(logits, labels[1:])
    with pytest.raises(TrustmixError, match=r"0 rows of (logits|features)"):
        DENSITIES.get(kind).fit(logits[:0], labels[:0])
    with pytest.raises(TrustmixError, match=r"the shape \(60, 5\); this density takes \(N, 6\)"):
        DENSITIES.get(kind).fit(logits, labels).log_prob(logits[:, 1:])
    with pytest.raises(TrustmixError, match=r"the shape \(60,\); this density takes \(N, 6\)"):
        DENSITIES.get(kind).fit(logits, labels).log_prob(logits[:, 0])
    with pytest.raises(TrustmixError, match=r"the shape \(60, 6, 1\); this density takes \(N, C\)"):
        DENSITIES.get(kind).fit(logits[:, :, None], labels)
    with pytest.raises(TrustmixError, match=r"the entry at \(0, 1\) is nan"):
        DENSITIES.get(kind).fit([[0.0, float("nan")]], [0])


def test_precomputed_scores_come_out_in_the_kind_of_array_given() -> None:
    scores = PrecomputedScores(torch.tensor([-1.0, -2.0]))
    assert scores.log_prob(np.zeros((2, 3), np.float16)).dtype == np.float32
    assert scores.log_prob(torch.zeros(2, 3)).tolist() == [-1.0, -2.0]


def test_a_density_is_a_name_or_a_reference_to_a_class_or_an_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from trustmix.density import RATIO, ConfidenceScore, KernelDensity\nimport torch\n"
    text += "class Mine(KernelDensity): pass\ninstance = ConfidenceScore(torch.Tensor.sum)\nnumber = 3\n"
    (tmp_path / "density_test_module.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert resolve_density("kernel") is DENSITIES.get("kernel")
    logits, labels = samples()
    scores = resolve_density("density_test_module:Mine").fit(logits, labels).log_prob(logits)
    np.testing.assert_array_equal(scores, DENSITIES.get("kernel").fit(logits, labels).log_prob(logits))
    assert isinstance(resolve_density("density_test_module:instance"), ConfidenceScore)
    with pytest.raises(TrustmixError, match=r'^density\.kind is "density_test_module:number", which has no fit'):
        resolve_density("density_test_module:number")
    with pytest.raises(TrustmixError, match=r'^There is no density "kernels"\. Did you mean "kernel"\?'):
        resolve_density("kernels")


def test_a_discriminator_is_no_density_of_logits() -> None:
    with pytest.raises(TrustmixError, match="A discriminator is trained on a client's inputs"):
        resolve_density(DISCRIMINATOR)

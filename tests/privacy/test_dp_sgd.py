"""Private training: no record moves the sum of gradients by more than it may, and noise is as specified."""

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy

from trustmix.errors import TrustmixError
from trustmix.models import cnn, mlp
from trustmix.privacy.dp_sgd import DPSGDParams, dp_gradients, poisson_batches, validate_dp_model


def gradient(model: nn.Module, x: torch.Tensor, y: torch.Tensor, noise: DPSGDParams, seed: int = 0) -> torch.Tensor:
    dp_gradients(model, x, y, noise, samples=10, generator=torch.Generator().manual_seed(seed))
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def some(count: int, shape: tuple[int, ...] = (1, 8, 8)) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(1)), torch.arange(count) % 3


@pytest.mark.parametrize("network", [mlp, cnn])
def test_gradients_are_those_of_single_records_cut_and_summed(network: type[nn.Module]) -> None:
    model, (x, y) = network((1, 8, 8), 3), some(5)
    wanted = []
    for one, label in zip(x, y, strict=True):
        loss = cross_entropy(model(one[None]), label[None])
        whole = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        wanted.append(whole * min(1.0, 0.5 / float(whole.norm())))
    found = gradient(model, x, y, DPSGDParams(clip=0.5, noise_multiplier=0.0, sample_rate=0.5))
    torch.testing.assert_close(found, torch.stack(wanted).sum(0) / (0.5 * 10), rtol=1e-4, atol=1e-6)


def test_a_record_more_moves_the_sum_by_no_more_than_the_cut_however_wild_it_is() -> None:
    model, (x, y) = mlp((1, 8, 8), 3), some(6)
    x[-1] *= 1e4
    y[-1] = model(x[-1:]).argmin()  # as wrong as can be
    noise = DPSGDParams(clip=0.1, noise_multiplier=1.0, sample_rate=1.0)
    moved = gradient(model, x, y, noise) - gradient(model, x[:-1], y[:-1], noise)
    assert 0 < 10 * float(moved.norm()) <= 0.1 * 1.001


def test_noise_on_gradients_is_normal_and_of_the_specified_size() -> None:
    model, (x, y) = mlp((1, 8, 8), 3), some(6)
    clean = gradient(model, x, y, DPSGDParams(0.5, 0.0, 0.3))
    noise = (gradient(model, x, y, DPSGDParams(0.5, 2.0, 0.3), seed=3) - clean).numpy()
    deviation = 0.5 * 2.0 / (0.3 * 10)
    assert stats.kstest(noise, stats.norm(scale=deviation).cdf).pvalue > 0.01
    assert stats.kstest(noise, stats.norm(scale=1.1 * deviation).cdf).pvalue < 0.01


def test_an_empty_batch_gives_noise_alone() -> None:
    model, (x, y) = mlp((1, 8, 8), 3), some(0)
    assert float(gradient(model, x, y, DPSGDParams(1.0, 1.0, 0.1)).std()) == pytest.approx(1.0, rel=0.1)


def test_each_record_is_in_each_batch_with_the_same_chance() -> None:
    batches = poisson_batches(50, 0.3, 400, torch.Generator().manual_seed(0))
    sizes = torch.tensor([float(len(batch)) for batch in batches])
    assert float(sizes.mean()) == pytest.approx(50 * 0.3, rel=0.05)
    assert float(sizes.var()) == pytest.approx(50 * 0.3 * 0.7, rel=0.2)
    counts = torch.cat(batches).bincount(minlength=50)
    assert stats.chisquare(counts.numpy()).pvalue > 0.01


def test_models_without_a_gradient_for_each_record_are_refused() -> None:
    class Counting(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs) * float(inputs.sum())

    with pytest.raises(TrustmixError, match="has batch norm"):
        validate_dp_model(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), torch.zeros(2, 2))
    with pytest.raises(TrustmixError, match="no gradient for each record"):
        validate_dp_model(Counting(2, 2), torch.ones(2, 2))

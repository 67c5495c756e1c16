"""What a client says of public samples, by every density."""

from typing import Any

import pytest
import torch
from torch import nn

import trustmix as tm
from trustmix import Labelled, TrustmixError
from trustmix.density import DENSITIES, roc_auc
from trustmix.federation import DeviceConfig
from trustmix.federation.scoring import score_inputs

GENERATOR = torch.Generator().manual_seed(0)
CENTRES = 6 * torch.eye(4, 8)


def samples(count: int, classes: list[int]) -> Labelled:
    labels = torch.tensor(classes).repeat(count)[:count]
    return Labelled(CENTRES[labels] + torch.randn(count, 8, generator=GENERATOR), labels)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """A model that was trained on classes 0 and 1."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    known = samples(200, [0, 1])
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(known.inputs), known.labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network


@pytest.mark.parametrize("kind", DENSITIES.names())
def test_every_density_tells_own_classes_from_foreign_ones(kind: str, model: nn.Module) -> None:
    public = samples(80, [0, 1, 2, 3])
    said = score_inputs(model, samples(60, [0, 1]), public.inputs, DeviceConfig(), kind)
    torch.testing.assert_close(said.logits, model(public.inputs).detach())
    assert roc_auc(said.scores, public.labels < 2) > 0.8


@pytest.mark.parametrize("kind", DENSITIES.names())
def test_standardised_scores_keep_their_order_and_have_own_samples_at_zero(kind: str, model: nn.Module) -> None:
    known, public = samples(60, [0, 1]), samples(80, [0, 1, 2, 3]).inputs
    raw, standard = (
        score_inputs(model, known, public, DeviceConfig(), kind, standardise) for standardise in (False, True)
    )
    assert torch.equal(raw.scores.argsort(), standard.scores.argsort())
    assert float(standard.calibration_scores.mean()) == pytest.approx(0, abs=1e-4)
    assert float(standard.calibration_scores.std(correction=0)) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("settings", [{"density": "kernel"}, {"standardise": True}])
def test_a_client_that_is_told_to_send_another_density_as_gaussians_says_so(settings: dict[str, Any]) -> None:
    public = tm.Public(samples(20, [0, 1]).inputs, 4)
    data = samples(40, [0, 1])
    client = tm.Client.from_arrays(
        "a", lambda: nn.Linear(8, 4), data.inputs, data.labels, public=public, form="density", **settings
    )
    with pytest.raises(TrustmixError, match=r"client a: .*of other and standardised densities send scores"):
        tm.Federation(clients=[client], public=public).run(1)

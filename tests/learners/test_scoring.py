"""What a client says of public samples, by every density."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trustmix as tm
from trustmix import Labelled, TrustmixError
from trustmix.density import DENSITIES, roc_auc
from trustmix.federation import DiskStore, Request
from trustmix.federation import client as client_module
from trustmix.learners import DeviceConfig
from trustmix.learners.scoring import Refresh, ScoredInputs, score_inputs
from trustmix.wire import decode_upload

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


@pytest.mark.parametrize("settings", [{"density": "kernel"}, {"standardise": True}, {"refresh": "once"}])
def test_a_client_that_is_told_to_send_another_density_as_gaussians_says_so(settings: dict[str, Any]) -> None:
    public = tm.Public(samples(20, [0, 1]).inputs, 4)
    data = samples(40, [0, 1])
    client = tm.Client.from_arrays(
        "a", lambda: nn.Linear(8, 4), data.inputs, data.labels, public=public, form="density", **settings
    )
    with pytest.raises(TrustmixError, match=r"client a: .*of other and standardised densities send scores"):
        tm.Federation(clients=[client], public=public).run(1)


def keeping_client(public: tm.Public, refresh: Refresh, **settings: Any) -> tm.Client:
    data = Labelled(CENTRES[torch.arange(40) % 2] + torch.linspace(-1, 1, 320).view(40, 8), torch.arange(40) % 2)

    def build() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))

    return tm.Client("a", build, data, data, public, refresh=refresh, density="ratio", **settings)


def uploads(client: tm.Client, public: tm.Public, rounds: range) -> list[torch.Tensor]:
    """Predictions and scores side by side, (N, C + 1), of each round."""
    payloads = [(r, client.step(Request(r)).payload) for r in rounds]
    return [read(payload, public, r) for r, payload in payloads if payload is not None]


def read(payload: bytes, public: tm.Public, round_: int) -> torch.Tensor:
    upload = decode_upload(payload, public.header("a", round_))
    assert upload.scores is not None
    return torch.cat([upload.predictions, upload.scores.unsqueeze(1)], 1)


@pytest.mark.parametrize(
    ("refresh", "fits"), [("every", [1, 2, 3, 4, 5]), ("once", [1]), (1, [1, 2, 3, 4, 5]), (2, [1, 3, 5]), (3, [1, 4])]
)
def test_scores_are_made_in_the_rounds_that_refresh_names_and_kept_in_between(
    refresh: Refresh, fits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    public = tm.Public(samples(60, [0, 1, 2, 3]).inputs, 4)
    made_in, client = [], keeping_client(public, refresh)

    def score(*args: Any) -> ScoredInputs:
        made_in.append(client._round + 1)
        return score_inputs(*args)

    monkeypatch.setattr(client_module, "score_inputs", score)
    sent = uploads(client, public, range(1, 6))
    assert made_in == fits
    for index in range(1, 5):
        assert torch.equal(sent[index][:, 4:], sent[index - 1][:, 4:]) == (index + 1 not in fits)


@pytest.mark.parametrize("refresh", ["once", 2])
def test_kept_scores_are_in_the_clients_state_and_survive_its_process(refresh: Refresh, tmp_path: Path) -> None:
    public = tm.Public(samples(60, [0, 1, 2, 3]).inputs, 4)
    whole = uploads(keeping_client(public, refresh), public, range(1, 5))
    cut = uploads(keeping_client(public, refresh, store=DiskStore(tmp_path)), public, range(1, 3))
    again = uploads(keeping_client(public, refresh, store=DiskStore(tmp_path)), public, range(2, 5))
    for one, other in zip(whole, [*cut[:1], *again], strict=True):
        assert torch.equal(one, other)


def test_kept_scores_are_not_taken_for_those_of_another_public_set() -> None:
    public, other = (tm.Public(samples(count, [0, 1, 2, 3]).inputs, 4) for count in (60, 60))
    client = keeping_client(public, "once")
    (own,) = uploads(client, public, range(1, 2))
    asked = read(client.predict_on(1, other), other, 1)
    assert not torch.equal(own[:, 4:], asked[:, 4:])
    (kept,) = uploads(client, public, range(2, 3))
    assert torch.equal(own[:, 4:], kept[:, 4:])

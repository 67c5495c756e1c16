"""The private density ratio: the sensitivity that its noise is sized by, its accounting, and what is left of it."""

import math

import pytest
import torch

import trustmix as tm
from trustmix import Labelled
from trustmix.density import roc_auc
from trustmix.federation import Request
from trustmix.federation import client as client_module
from trustmix.privacy import PrivacyBudget, compute_epsilon, compute_noise_multiplier, release_log_ratio
from trustmix.privacy.private_ratio import RIDGE, _unit_rows, fit_strongly_convex, sensitivity
from trustmix.wire import decode_upload


def blobs(count: int, centre: float, width: int = 6, seed: int = 0) -> torch.Tensor:
    points = torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    points[:, 0] += centre
    return points


@pytest.mark.parametrize("records", [5, 80])
def test_no_record_moves_the_coefficients_by_more_than_the_sensitivity(records: int) -> None:
    """A row of zeros has no gradient: it is a record removed while the number of records counts as known."""
    own, public = _unit_rows(blobs(records, 1.0), blobs(200, 0.0, seed=1))
    whole, largest = fit_strongly_convex(own, public), 0.0
    extreme = -whole / whole.norm()  # the row that pulls hardest against the fit
    for row in (*own[:5], extreme):
        with_row, without = own.clone(), own.clone()
        with_row[0], without[0] = row, 0.0
        moved = float((fit_strongly_convex(with_row, public) - fit_strongly_convex(without, public)).norm())
        largest = max(largest, moved)
    assert 0.1 * sensitivity(records) < largest <= sensitivity(records)


def test_rows_have_a_norm_of_at_most_one_whatever_a_record_is() -> None:
    own, public = blobs(50, 0.0), blobs(200, 0.0, seed=1)
    own[0] *= 1e6
    for rows in _unit_rows(own, public):
        assert float(rows.norm(dim=1).max()) <= 1 + 1e-12


def test_a_record_does_not_change_how_others_are_described() -> None:
    own, public = blobs(50, 0.0), blobs(200, 0.0, seed=1)
    changed = own.clone()
    changed[0] = 1e6
    before, after = _unit_rows(own, public), _unit_rows(changed, public)
    assert torch.equal(before[0][1:], after[0][1:])
    assert torch.equal(before[1], after[1])


def test_the_coefficients_are_a_minimum_and_not_on_the_way_to_it() -> None:
    own, public = _unit_rows(blobs(30, 3.0), blobs(100, 0.0, seed=1))
    beta = fit_strongly_convex(own, public).requires_grad_()
    softplus = torch.nn.functional.softplus
    loss = (softplus(-(own @ beta)).mean() + softplus(public @ beta).mean()) / 2 + RIDGE / 2 * beta.square().sum()
    (gradient,) = torch.autograd.grad(loss, beta)
    assert float(gradient.norm()) < 1e-10


def test_noise_costs_order_and_many_records_pay_less() -> None:
    public = torch.cat([blobs(300, 2.0, seed=1), blobs(700, -1.0, seed=2)])
    mine = torch.arange(1000) < 300

    def auc(records: int, noise: float) -> float:
        scores = release_log_ratio(blobs(records, 2.0), public, noise, torch.Generator().manual_seed(0))
        assert float(scores.exp().mean()) == pytest.approx(1)
        return roc_auc(scores, mine)

    assert auc(600, 2.0) > 0.9
    assert auc(600, 2.0) > auc(600, 200.0)
    assert auc(10_000, 20.0) > auc(600, 20.0)


def test_features_that_are_constant_or_narrow_are_taken() -> None:
    scores = release_log_ratio(torch.ones(5, 3), torch.ones(9, 3), 1.0, torch.Generator().manual_seed(0))
    assert scores.shape == (9,)
    assert bool(torch.isfinite(scores).all())


def test_a_further_release_is_composed_with_the_others() -> None:
    twice = compute_epsilon(2.0, 2, 1.0, 1e-5)
    assert compute_epsilon(2.0, 1, 1.0, 1e-5, 2.0) == pytest.approx(twice)
    assert compute_epsilon(2.0, 0, 1.0, 1e-5, 2.0) == pytest.approx(compute_epsilon(2.0, 1, 1.0, 1e-5))
    noise = compute_noise_multiplier(8.0, 100, 0.05, 1e-5, 3.0)
    assert 7.9 < compute_epsilon(noise, 100, 0.05, 1e-5, 3.0) <= 8
    assert noise > compute_noise_multiplier(8.0, 100, 0.05, 1e-5)


def test_training_and_ratio_together_spend_the_budget() -> None:
    training = tm.Training()
    budget, plain = (PrivacyBudget(8.0, 10, ratio=ratio) for ratio in (0.25, 0.0))
    assert 7.9 < budget.epsilon_spent(10, 480, training) <= 8
    first = budget.epsilon_spent(1, 480, training)
    assert first > compute_epsilon(budget.ratio_noise, 1, 1.0, 1e-5) > 1.9
    later = budget.epsilon_spent(2, 480, training, before=1)
    assert later < first
    assert later < plain.epsilon_spent(2, 480, training, before=1)
    assert budget.epsilon_spent(0, 480, training) == 0


def private_client(public: tm.Public, **settings: object) -> tm.Client:
    labels = torch.arange(60) % 2
    data = Labelled(blobs(60, 2.0).float(), labels)

    def build() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))

    budget = PrivacyBudget(8.0, 4, ratio=0.25, simulated=True)
    return tm.Client("a", build, data, data, public, privacy=budget, density="ratio", **settings)  # type: ignore[arg-type]


def test_a_client_releases_its_ratio_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever refresh is: a second release would not be paid for."""
    public = tm.Public(torch.cat([blobs(40, 2.0, seed=1), blobs(80, -2.0, seed=2)]).float(), 3)
    noises: list[float] = []

    def release(own: torch.Tensor, points: torch.Tensor, noise: float, generator: torch.Generator) -> torch.Tensor:
        noises.append(noise)
        return release_log_ratio(own, points, noise, generator)

    monkeypatch.setattr(client_module, "release_log_ratio", release)
    client, sent = private_client(public), []
    for round_ in (1, 2, 3):
        reply = client.step(Request(round_))
        assert reply.payload is not None
        upload = decode_upload(reply.payload, public.header("a", round_))
        assert upload.scores is not None
        sent.append(upload.scores)
        assert reply.epsilon is not None
        assert reply.epsilon < 8
    assert noises == [client.privacy.ratio_noise if client.privacy else math.nan]
    assert torch.equal(sent[0], sent[1])
    assert torch.equal(sent[0], sent[2])

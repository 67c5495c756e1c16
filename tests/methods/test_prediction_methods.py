"""FedMD, DS-FL, Selective-FD and CFD: each update against a hand-computed example or an independent solution."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trustmix import Client, Federation, Labelled, Public, Recipe, Teacher, Training, TrustmixError, mix, run
from trustmix.aggregation import Upload
from trustmix.arrays import AnyArray
from trustmix.federation import METHODS, Request
from trustmix.learners import TrainingJob
from trustmix.methods.cfd import quantize
from trustmix.methods.dsfl import entropy_reduction
from trustmix.methods.selective_fd import KNOWN, NO_VOTE, VOTE, DensityRatio, SelectiveClient
from trustmix.wire import CODECS, decode_upload, encode_teacher


def aggregate(rule: str, predictions: AnyArray, scores: AnyArray | None = None) -> Teacher[Any]:
    aggregator = METHODS.get(rule).make_aggregator()
    for index, client in enumerate(predictions):
        aggregator.update(client, None if scores is None else scores[index])
    return aggregator.compute()


def test_fedmd_is_the_softmax_of_the_mean_logits() -> None:
    logits = np.random.default_rng(0).normal(size=(5, 7, 4)) * 3
    odds = np.exp(logits)
    teacher = aggregate("fedmd", odds / odds.sum(2, keepdims=True))
    wanted = np.exp(logits.mean(0))
    np.testing.assert_allclose(teacher.probabilities, wanted / wanted.sum(1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(teacher.concentration, 1 / 5)


def test_fedmd_by_hand_lets_a_sure_client_count_for_more_than_avg_does() -> None:
    q = np.array([[[0.99, 0.01]], [[0.4, 0.6]]])
    odds = np.sqrt(99 * (0.4 / 0.6))
    assert aggregate("fedmd", q).probabilities[0, 0] == pytest.approx(odds / (1 + odds))
    assert aggregate("fedmd", q).probabilities[0, 0] > mix(q, tau=0).probabilities[0, 0]


def test_fedmd_takes_probabilities_of_zero() -> None:
    teacher = aggregate("fedmd", torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]], dtype=torch.float16))
    assert bool(torch.isfinite(teacher.probabilities).all())
    assert teacher.probabilities[0, 0] > 0.98


def test_ds_fl_by_hand() -> None:
    q = np.array([[[0.7, 0.2, 0.1]], [[0.3, 0.6, 0.1]]])
    odds = np.exp(np.array([0.5, 0.4, 0.1]) / 0.1)
    np.testing.assert_allclose(aggregate("ds-fl", q).probabilities, [odds / odds.sum()], rtol=1e-12)


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6))
def test_ds_fl_keeps_the_order_of_classes_and_lowers_a_teachers_entropy(raw: list[float]) -> None:
    p = np.array([raw]) / sum(raw)
    sharp = entropy_reduction(p, 0.1)
    assert np.all(np.diff(sharp[0][np.argsort(p[0])]) >= -1e-12)
    if p.max() - np.sort(p[0])[-2] > 0.3:  # a flat average is left flat
        assert -(sharp * np.log(sharp + 1e-300)).sum() < -(p * np.log(p)).sum()


def test_cfd_by_hand() -> None:
    p = np.array([[0.5, 0.3, 0.2], [0.06, 0.9, 0.04], [1.0, 0.0, 0.0]])
    assert quantize(p, 1).tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0]]
    np.testing.assert_allclose(3 * quantize(p, 2), [[1, 1, 1], [0, 3, 0], [3, 0, 0]])
    np.testing.assert_allclose(7 * quantize(p, 3), [[4, 2, 1], [1, 6, 0], [7, 0, 0]])
    with pytest.raises(TrustmixError, match="0 bits say nothing"):
        quantize(p, 0)


@given(st.lists(st.floats(0.001, 1), min_size=3, max_size=3), st.integers(1, 3))
def test_cfd_finds_the_nearest_quantised_point_of_the_simplex(raw: list[float], bits: int) -> None:
    p, levels = np.array(raw) / sum(raw), 2**bits - 1
    found = quantize(p[None], bits)[0]
    grid = [np.array([i, j, levels - i - j]) / levels for i in range(levels + 1) for j in range(levels + 1 - i)]
    assert found.sum() == pytest.approx(1)
    assert abs(found - p).sum() <= min(abs(point - p).sum() for point in grid) + 1e-9


def test_a_density_ratio_minimises_the_least_squares_of_kulsif() -> None:
    """The estimate beats any other function of the same space on 1/2n sum r(y)^2 - 1/m sum r(x) + lambda/2 |r|^2."""
    generator = torch.Generator().manual_seed(0)
    private, public = (torch.randn(n, 2, generator=generator, dtype=torch.float64) for n in (7, 9))
    ratio = DensityRatio(private, public)
    points = torch.cat([public, private])
    kernel = torch.exp(-torch.cdist(points, points).square() / (2 * ratio.width**2))
    weights = torch.cat([ratio.alpha, torch.full((7,), 1 / (7 * ratio.penalty), dtype=torch.float64)])
    torch.testing.assert_close(ratio(points), kernel @ weights)

    def objective(w: torch.Tensor) -> Any:
        r = kernel @ w
        return r[:9].square().mean() / 2 - r[9:].mean() + ratio.penalty / 2 * torch.dot(w, kernel @ w)

    slope = torch.func.grad(objective)(weights)
    assert float(slope.abs().max()) < 1e-9


def test_selective_fd_by_hand() -> None:
    q = torch.tensor([[[0.98, 0.01, 0.01]] * 4, [[0.01, 0.98, 0.01]] * 4, [[0.01, 0.9, 0.09]] * 4])
    votes = torch.tensor(
        [[VOTE, NO_VOTE, NO_VOTE, VOTE], [NO_VOTE, VOTE, NO_VOTE, VOTE], [NO_VOTE, VOTE, NO_VOTE, VOTE]]
    )
    teacher = aggregate("selective-fd", q, votes)
    third = [1 / 3] * 3
    wanted = torch.tensor([[0.98, 0.01, 0.01], [0.01, 0.94, 0.05], third, third])  # the last is too ambiguous
    torch.testing.assert_close(teacher.probabilities, wanted)
    torch.testing.assert_close(teacher.concentration, torch.tensor([1, 1 / 2, 1 / 3, 1 / 3]))


CENTRES = 4 * torch.eye(3)


def samples(count: int, classes: list[int], seed: int) -> Labelled:
    labels = torch.tensor(classes).repeat(count)[:count]
    return Labelled(CENTRES[labels] + torch.randn(count, 3, generator=torch.Generator().manual_seed(seed)) / 2, labels)


PUBLIC = samples(60, [0, 1, 2], 9)
SHARED = Public(PUBLIC.inputs, 3)


def linear() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 3)


def clients(kind: type[Client]) -> list[Client]:
    training = Training(lr=5e-2, batch=8, first_epochs=10, epochs=2, public_epochs=5)
    pairs = [[0, 1], [1, 2], [2, 0]]
    return [
        kind(str(i), linear, samples(40, own, i), samples(20, own, 50 + i), SHARED, test=PUBLIC, training=training)
        for i, own in enumerate(pairs)
    ]


@pytest.mark.parametrize("codec", CODECS.names())
def test_a_selective_client_votes_on_its_own_classes(codec: str) -> None:
    client = clients(SelectiveClient)[0]
    client.codec = codec
    upload = decode_upload(client.step(Request(1)).payload or b"", SHARED.header("0", 1))
    assert upload.scores is not None
    votes, own = (upload.scores - VOTE).abs() < 0.2, PUBLIC.labels != 2
    assert bool((votes | ((upload.scores - NO_VOTE).abs() < 0.2)).all())
    assert float((votes == own).double().mean()) > 0.9
    assert 0 < KNOWN < 1


@pytest.mark.parametrize("codec", [name for name in CODECS.names() if name != "argmax"])
def test_samples_without_a_label_are_left_out_of_distillation(codec: str) -> None:
    client = clients(SelectiveClient)[0]
    client.step(Request(1))
    teacher = torch.nn.functional.one_hot(PUBLIC.labels, 3).float()
    teacher[10:] = 1 / 3
    job = next(client.step_jobs(Request(2, encode_teacher(teacher, SHARED.header("server", 1), codec))))
    assert isinstance(job, TrainingJob)
    assert torch.equal(job.inputs, PUBLIC.inputs[:10])
    assert torch.equal(job.targets.argmax(1), PUBLIC.labels[:10])
    nothing = encode_teacher(torch.full((60, 3), 1 / 3), SHARED.header("server", 1), "float32")
    client = clients(SelectiveClient)[0]
    client.step(Request(1))
    assert "distil" not in client.step(Request(2, nothing)).seconds


def test_selecting_votes_beats_averaging_where_clients_lack_classes() -> None:
    def best(kind: type[Client], rule: str) -> float:
        return Federation(clients=clients(kind), public=SHARED, rule=rule).run(3).best_accuracy or 0.0

    assert best(SelectiveClient, "selective-fd") > 0.95
    assert best(SelectiveClient, "selective-fd") >= best(Client, "avg")


@pytest.mark.parametrize("rule", ["fedmd", "ds-fl", "selective-fd"])
def test_rules_refuse_what_does_not_fit(rule: str) -> None:
    aggregator = METHODS.get(rule).make_aggregator()
    with pytest.raises(TrustmixError, match="nothing to aggregate"):
        aggregator.compute()
    aggregator.update(np.full((2, 4), 0.25))
    with pytest.raises(TrustmixError, match="the shape"):
        aggregator.update(np.full((3, 4), 0.25))
    with pytest.raises(TrustmixError, match="must be probabilities"):
        aggregator.update(np.full((2, 4), 0.5))


@pytest.mark.parametrize("rule", ["fedmd", "ds-fl", "selective-fd"])
def test_recipes_run_them(rule: str) -> None:
    changes = ["clients=5", "rounds=2", "split.samples_per_client=100", "public.samples=60", "engine.mode=sequential"]
    history = run(Recipe.load("demo", [*changes, f"rule={rule}"]))
    assert history.rounds[-1].method == rule
    assert (history.best_accuracy or 0) > 0.1


def test_selective_fd_refuses_what_cannot_carry_its_votes_or_dropped_samples() -> None:
    with pytest.raises(TrustmixError, match=r"rule: selective-fd .* wire\.form = density: it sends votes"):
        Recipe.load("demo", ["rule=selective-fd", "wire.form=density"])
    with pytest.raises(TrustmixError, match=r"rule: selective-fd .* wire\.down = argmax: .* which argmax cannot carry"):
        Recipe.load("demo", ["rule=selective-fd", "wire.down=argmax"])


def test_a_sample_with_one_vote_of_little_weight_still_has_a_distribution() -> None:
    rule = METHODS.get("selective-fd").make_aggregator()
    sure = np.zeros((2, 10))
    sure[:, 3] = 1.0
    rule.update(replace(Upload.from_arrays("doubtful", sure, np.array([0.0, -1.0])), weight=0.4))
    rule.update(Upload.from_arrays("silent", sure, np.array([-1.0, -1.0])))
    np.testing.assert_allclose(rule.compute().probabilities.sum(1), 1)

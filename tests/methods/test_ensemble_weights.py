"""FedAUX, FedGO, EdgeFD, Fed-ET and SCARLET: each by hand, against another implementation, and in a recipe."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from trustmix import Client, Labelled, Public, Recipe, Teacher, Training, TrustmixError, Upload, mix, run
from trustmix.arrays import AnyArray
from trustmix.density import DensityRatio
from trustmix.experiment.build import build_federation
from trustmix.federation import CLIENTS, METHODS, Request
from trustmix.learners import TrainingJob
from trustmix.learners.scoring import predict_features
from trustmix.methods.dsfl import entropy_reduction
from trustmix.methods.edgefd import near_clusters
from trustmix.methods.fedaux import PENALTY, certainty
from trustmix.methods.scarlet import power_sharpening
from trustmix.methods.selective_fd import NO_VOTE, VOTE
from trustmix.wire import CODECS, decode_upload, encode_teacher

RIVALS = ["fedaux", "fedgo", "edgefd", "fed-et", "scarlet"]


def aggregate(rule: str, predictions: AnyArray, scores: AnyArray | None = None) -> Teacher[Any]:
    aggregator = METHODS.get(rule).make_aggregator()
    for index, client in enumerate(predictions):
        aggregator.update(client, None if scores is None else scores[index])
    return aggregator.compute()


def test_fed_et_by_hand() -> None:
    """Logits (log 8, 0, 0) and (0, log 3, 0): variances in the ratio log(8)^2 : log(3)^2, weights 0.7818 and 0.2182.

    The consensus has odds 8^0.7818 : 3^0.2182 : 1 = 5.082 : 1.271 : 1.
    """
    teacher = aggregate("fed-et", np.array([[[0.8, 0.1, 0.1]], [[0.2, 0.6, 0.2]]]))
    np.testing.assert_allclose(teacher.probabilities, [[0.6911, 0.1728, 0.1360]], atol=1e-4)
    np.testing.assert_allclose(teacher.concentration, 0.7818**2 + 0.2182**2, atol=1e-4)


def test_fed_et_weighs_logits_by_their_variance() -> None:
    logits = np.random.default_rng(0).normal(size=(5, 7, 4)) * 3
    odds = np.exp(logits)
    teacher = aggregate("fed-et", odds / odds.sum(2, keepdims=True))
    weights = logits.var(2) / logits.var(2).sum(0)
    wanted = np.exp((weights[:, :, None] * logits).sum(0))
    np.testing.assert_allclose(teacher.probabilities, wanted / wanted.sum(1, keepdims=True), rtol=1e-9)
    np.testing.assert_allclose(teacher.concentration, (weights**2).sum(0), rtol=1e-9)


def test_fed_et_takes_clients_that_are_all_undecided_alike() -> None:
    teacher = aggregate("fed-et", np.full((4, 1, 2), 0.5))
    np.testing.assert_allclose(teacher.probabilities, 0.5)
    np.testing.assert_allclose(teacher.concentration, 1 / 4)


@pytest.mark.parametrize("codec", [name for name in CODECS.names() if name != "float32"])
def test_fed_et_refuses_codecs_that_lose_small_probabilities(codec: str) -> None:
    with pytest.raises(TrustmixError, match=rf"fed-et does not go with wire\.up = {codec}: it weighs by logits"):
        Recipe.load("demo", ["rule=fed-et", f"wire.up={codec}"])


def test_fedaux_by_hand() -> None:
    """Certainties 0.6 and 0.2 are weights 3/4 and 1/4: odds 9^(3/4) * (1/4)^(1/4) = 3.674."""
    teacher = aggregate("fedaux", np.array([[[0.9, 0.1]], [[0.2, 0.8]]]), np.log([[0.6], [0.2]]))
    np.testing.assert_allclose(teacher.probabilities, [[0.7861, 0.2139]], atol=5e-5)
    np.testing.assert_allclose(teacher.concentration, 9 / 16 + 1 / 16, atol=1e-6)


def test_a_certainty_above_one_counts_as_one() -> None:
    q = np.array([[[0.9, 0.1]], [[0.2, 0.8]]])
    np.testing.assert_allclose(
        aggregate("fedaux", q, np.array([[1e9], [0.0]])).probabilities, aggregate("fedaux", q).probabilities
    )


def two_blobs(own: int, public: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    away = torch.tensor([2.0, 0.0, 0.0])
    private, other = (torch.randn(count, 3, generator=generator) for count in (own, public))
    return private + away, other + away * (torch.rand(public, 1, generator=generator) < 0.3)


def test_a_certainty_is_that_of_scikit_learn_on_the_other_half_of_the_public_set() -> None:
    own, public = two_blobs(60, 101)
    length = float(torch.cat([own, public]).norm(dim=1).max())
    found = certainty(own, public).numpy()
    for half in (0, 1):
        seen = public[1 - half :: 2]
        weight = np.repeat([0.5 / len(own), 0.5 / len(seen)], [len(own), len(seen)])
        target = np.repeat([1, 0], [len(own), len(seen)])
        fitted = LogisticRegression(C=(len(own) + len(seen)) / PENALTY, tol=1e-10, max_iter=1000)
        fitted.fit((torch.cat([own, seen]) / length).numpy(), target, sample_weight=weight)
        log_odds = fitted.decision_function((public[half::2] / length).numpy()) + np.log(len(own) / len(seen))
        np.testing.assert_allclose(found[half::2], 1 / (1 + np.exp(-log_odds)), atol=1e-3)


def test_a_certainty_is_near_that_of_the_papers_regression_on_samples_as_they_are() -> None:
    own, public = two_blobs(200, 2000)
    x = (torch.cat([own, public[1::2], public[::2]]) / torch.cat([own, public]).norm(dim=1).max()).numpy()
    fitted = LogisticRegression(C=1 / PENALTY, max_iter=1000).fit(x[:1200], np.repeat([1, 0], [200, 1000]))
    paper, ours = fitted.predict_proba(x[1200:])[:, 1], certainty(own, public)[::2].numpy()
    assert np.corrcoef(np.log(paper), np.log(ours))[0, 1] > 0.99
    assert abs(paper - ours).mean() < 0.02


def test_few_samples_have_certainties() -> None:
    for own, public in ((1, 1), (1, 2), (3, 1)):
        assert bool(certainty(torch.ones(own, 2), torch.zeros(public, 2)).isfinite().all())


def test_fedgo_by_hand() -> None:
    """n r is 400 * 0.25 = 100, 50 * 4 = 200 and 100 * 1 = 100: weights 1/4, 1/2 and 1/4."""
    q = np.array([[[1.0, 0.0]], [[0.4, 0.6]], [[0.0, 1.0]]])
    teacher = aggregate("fedgo", q, np.log([[400 * 0.25], [50 * 4.0], [100 * 1.0]]))
    np.testing.assert_allclose(teacher.probabilities, [[0.45, 0.55]], atol=1e-12)
    np.testing.assert_allclose(teacher.concentration, 3 / 8)


def test_edgefd_by_hand() -> None:
    q = np.array([[[0.9, 0.1]] * 3, [[0.5, 0.5]] * 3, [[0.1, 0.9]] * 3])
    votes = np.array([[VOTE, VOTE, NO_VOTE], [NO_VOTE, VOTE, NO_VOTE], [NO_VOTE, VOTE, NO_VOTE]])
    teacher = aggregate("edgefd", q, votes)
    np.testing.assert_allclose(teacher.probabilities, [[0.9, 0.1], [0.5, 0.5], [0.5, 0.5]])
    np.testing.assert_allclose(teacher.concentration, [1, 1 / 3, 1 / 3])
    hardly = aggregate("edgefd", np.array([[[0.6, 0.4]], [[0.7, 0.3]]]), np.full((2, 1), VOTE))
    np.testing.assert_allclose(hardly.probabilities, [[0.65, 0.35]])  # Selective-FD would drop it


def test_near_clusters_by_hand() -> None:
    """Centroids (0, 0) and (10, 0); own distances are 1, 1, 1, 3 twice, and three quarters lie within 1."""
    arm = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0], [0.0, 0.0]])
    own = torch.cat([arm, arm + torch.tensor([10.0, 0.0])])
    public = torch.tensor([[0.5, 0.5], [11.0, 0.0], [5.0, 0.0], [0.0, 1.3], [10.0, -1.5]])
    assert near_clusters(own, public, 2, covered=1.0).tolist() == [True, True, False, True, False]
    assert near_clusters(own, public, 2, covered=0.74).tolist() == [True, True, False, False, False]


def test_one_sample_and_more_clusters_than_samples_are_taken() -> None:
    assert near_clusters(torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [1.0, 0.0]]), 5).tolist() == [True, False]


def test_scarlet_by_hand() -> None:
    """The mean is (0.5, 0.4, 0.1), its squares are 0.25, 0.16 and 0.01."""
    teacher = aggregate("scarlet", np.array([[[0.7, 0.2, 0.1]], [[0.3, 0.6, 0.1]]]))
    np.testing.assert_allclose(teacher.probabilities, [[25 / 42, 16 / 42, 1 / 42]], rtol=1e-12)


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6), st.floats(1, 20))
def test_a_power_keeps_the_order_of_classes_and_never_raises_the_entropy(raw: list[float], beta: float) -> None:
    p = np.array([raw]) / sum(raw)
    sharp = power_sharpening(p, beta)
    assert np.all(np.diff(sharp[0][np.argsort(p[0])]) >= -1e-12)
    assert -(sharp * np.log(sharp + 1e-300)).sum() <= -(p * np.log(p)).sum() + 1e-9
    np.testing.assert_allclose(power_sharpening(p, 1.0), p)


def test_a_softmax_of_probabilities_may_flatten_where_a_power_cannot() -> None:
    p = np.array([[0.9, 0.1]])
    assert entropy_reduction(p, 1.0)[0, 0] < 0.9 < power_sharpening(p, 1.1)[0, 0]


CENTRES = 4 * torch.eye(3)


def samples(count: int, classes: list[int], seed: int) -> Labelled:
    labels = torch.tensor(classes).repeat(count)[:count]
    return Labelled(CENTRES[labels] + torch.randn(count, 3, generator=torch.Generator().manual_seed(seed)) / 2, labels)


PUBLIC = samples(90, [0, 1, 2], 9)
SHARED = Public(PUBLIC.inputs, 3)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def client(rule: str, count: int = 80, codec: str = "float32") -> Client:
    training = Training(lr=2e-2, batch=8, first_epochs=5)
    kind = CLIENTS.get(METHODS.get(rule).client)
    own = samples(count, [0, 1], 1), samples(count // 4, [0, 1], 2)
    return kind("a", network, *own, SHARED, test=PUBLIC, training=training, codec=codec)


def upload_of(one: Client) -> Upload:
    return decode_upload(one.step(Request(1)).payload or b"", SHARED.header("a", 1))


def features(one: Client) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the client's samples and of the public ones, after the first private stage."""
    model = one._resume(2).model
    own, public = (predict_features(model, x, one.hardware)[1] for x in (one.own_samples.inputs, SHARED.inputs))
    return own, public


def test_the_scores_of_fedgo_are_log_ratios_and_the_number_of_samples() -> None:
    one = client("fedgo")
    found = upload_of(one)
    own, public = features(one)
    ratio = DensityRatio.fit(own, one.own_samples.labels).log_prob(public)
    assert found.scores is not None
    torch.testing.assert_close(found.scores.float(), ratio + math.log(80 + 20))


def test_the_scores_of_fedaux_are_log_certainties() -> None:
    one = client("fedaux")
    found = upload_of(one)
    assert found.scores is not None
    torch.testing.assert_close(found.scores.exp(), certainty(*features(one)), atol=1e-6, rtol=1e-5)
    own = PUBLIC.labels != 2
    assert float(found.scores[own].exp().mean()) > 2 * float(found.scores[~own].exp().mean())


@pytest.mark.parametrize("codec", CODECS.names())
def test_an_edgefd_client_votes_on_its_own_classes(codec: str) -> None:
    found = upload_of(client("edgefd", codec=codec))
    assert found.scores is not None
    votes, own = (found.scores - VOTE).abs() < 0.2, PUBLIC.labels != 2
    assert bool((votes | ((found.scores - NO_VOTE).abs() < 0.2)).all())
    assert float((votes == own).double().mean()) > 0.8
    assert not bool((votes & ~own).any())


@pytest.mark.parametrize("codec", [name for name in CODECS.names() if name != "argmax"])
def test_edgefd_leaves_only_samples_without_votes_out_of_distillation(codec: str) -> None:
    one = client("edgefd")
    one.step(Request(1))
    teacher = torch.nn.functional.one_hot(PUBLIC.labels, 3).float()
    teacher[5:10] = torch.tensor([0.6, 0.3, 0.1])  # ambiguous, but voted on
    teacher[10:] = 1 / 3
    job = next(one.step_jobs(Request(2, encode_teacher(teacher, SHARED.header("server", 1), codec))))
    assert isinstance(job, TrainingJob)
    assert torch.equal(job.inputs, PUBLIC.inputs[:10])


@pytest.mark.parametrize("rule", RIVALS)
def test_a_recipe_runs_each(rule: str) -> None:
    changes = ["clients=5", "rounds=1", "split.samples_per_client=100", "public.samples=60", "engine.mode=sequential"]
    history = run(Recipe.load("digits", [*changes, f"rule={rule}"]))
    line = history.rounds[-1]
    assert line.method == rule
    assert not line.failed
    assert 1 / 5 <= (line.concentration or 0) <= 1
    assert line.teacher_accuracy is not None


def test_clients_of_one_size_have_the_teacher_of_uwa_and_the_ratio_by_fedgo() -> None:
    changes = ["clients=5", "rounds=1", "split.samples_per_client=60", "public.samples=60", "engine.mode=sequential"]
    ours, theirs = (
        run(Recipe.load("digits", [*changes, "guard.on=false", *more])).rounds[0]
        for more in (["rule=uwa", "density.kind=ratio"], ["rule=fedgo"])
    )
    assert theirs.teacher_nll == pytest.approx(ours.teacher_nll, rel=1e-5)
    assert theirs.concentration == pytest.approx(ours.concentration, rel=1e-5)


@pytest.mark.parametrize("rule", ["fedaux", "fedgo", "edgefd"])
def test_scores_of_a_methods_own_leave_no_density_to_choose(rule: str) -> None:
    with pytest.raises(
        TrustmixError, match=rf"density\.kind is not read by {rule}: its clients send scores of its own"
    ):
        Recipe.load("digits", [f"rule={rule}", "density.kind=kernel"])
    with pytest.raises(TrustmixError, match=rf"rule: {rule} does not go with wire\.form = density"):
        Recipe.load("digits", [f"rule={rule}", "wire.form=density"])
    with pytest.raises(TrustmixError, match=rf"privacy\.epsilon is not read by {rule}"):
        Recipe.load("digits", [f"rule={rule}", "privacy.epsilon=8"])


@pytest.mark.parametrize("rule", ["fedaux", "fedgo", "edgefd"])
def test_a_model_without_features_is_refused_before_training(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import torch\nclass Convolution(torch.nn.Module):\n    def __init__(self, classes):\n"
    text += "        super().__init__()\n        self.layer = torch.nn.Conv2d(1, classes, 8)\n"
    text += "    def forward(self, x):\n        return self.layer(x.reshape(-1, 1, 8, 8).float()).flatten(1)\n"
    text += "def model(shape, classes):\n    return Convolution(classes)\n"
    (tmp_path / "featureless_test_model.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    fields = {
        "rule": rule,
        "clients": 5,
        "data": {"name": "digits"},
        "model": {"source": "featureless_test_model:model"},
    }
    recipe = Recipe.load(fields, ["split.samples_per_client=40", "public.samples=60"])
    with pytest.raises(TrustmixError, match="This model has no features"), build_federation(recipe):
        pass


@pytest.mark.parametrize("rule", RIVALS)
def test_without_scores_each_has_a_teacher_of_all_clients(rule: str) -> None:
    q = np.array([[[0.7, 0.3]], [[0.7, 0.3]]])
    teacher = aggregate(rule, q)
    np.testing.assert_allclose(teacher.concentration, 1 / 2)
    assert (teacher.probabilities.argmax(1) == mix(q, tau=0).probabilities.argmax(1)).all()

"""What one client can do to a teacher is bounded: by rank, by share, and by what the others say."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from trustmix import TrustmixError
from trustmix.aggregation import Accumulator, Aggregator, Median, StateDict, Teacher, Upload
from trustmix.aggregation.guard import Guard, GuardedAggregator
from trustmix.aggregation.guard_bounds import (
    cap_share,
    clip_scores,
    effective_weight,
    rank_confidence,
    regret_weights,
)
from trustmix.federation import METHODS

SAMPLES, CLASSES = 120, 6
TRUTH = torch.arange(SAMPLES) % CLASSES
GUARDED_RULES = [n for n in METHODS.names() if METHODS.get(n).aggregator and METHODS.get(n).guardable and n != "trust"]


def expert(classes: list[int], seed: int) -> dict[str, Any]:
    """The upload of a client that knows some classes and takes everything else for one of them."""
    luck = torch.Generator().manual_seed(seed)
    known = torch.isin(TRUTH, torch.tensor(classes))
    guess = torch.tensor(classes)[torch.randint(len(classes), (SAMPLES,), generator=luck)]
    said = torch.where(known, TRUTH, guess)
    logits = 3 * torch.nn.functional.one_hot(said, CLASSES) + torch.randn(SAMPLES, CLASSES, generator=luck)
    scores = torch.where(known, -5.0, -20.0) + torch.randn(SAMPLES, generator=luck)
    held = torch.isin(torch.arange(CLASSES), torch.tensor(classes)).long()
    return {"predictions": torch.softmax(logits, 1), "scores": scores, "class_counts": held}


HONEST = [expert([i % CLASSES, (i + 1) % CLASSES, (i + 3) % CLASSES], i) for i in range(11)]


def lie(**changes: Any) -> dict[str, Any]:
    """Full confidence in a wrong class, everywhere, as loudly as can be."""
    wrong = torch.nn.functional.one_hot((TRUTH + 2) % CLASSES, CLASSES).float()
    loud = {"predictions": wrong, "scores": torch.full((SAMPLES,), 1e9)}
    return {**loud, "class_counts": torch.ones(CLASSES), **changes}


def teacher(rule: Aggregator, uploads: list[dict[str, Any]]) -> Teacher[torch.Tensor]:
    for index, upload in enumerate(uploads):
        rule.update(Upload.from_arrays(str(index), **upload))
    return rule.compute()


def accuracy(found: Teacher[torch.Tensor]) -> float:
    return float((found.probabilities.argmax(1) == TRUTH).double().mean())


@pytest.mark.parametrize("name", GUARDED_RULES)
def test_one_client_with_an_inflated_score_cannot_own_a_sample(name: str) -> None:
    clean = accuracy(teacher(GuardedAggregator(METHODS.get(name).make_aggregator()), HONEST))
    assert accuracy(teacher(GuardedAggregator(METHODS.get(name).make_aggregator()), [*HONEST, lie()])) >= clean - 0.01


@pytest.mark.parametrize("name", ["uwa", "suwa", "most-confident"])
def test_without_the_guard_it_owns_every_sample(name: str) -> None:
    assert accuracy(teacher(METHODS.get(name).make_aggregator(), [*HONEST, lie()])) == 0


@pytest.mark.parametrize("name", GUARDED_RULES)
def test_among_honest_clients_the_guard_changes_next_to_nothing(name: str) -> None:
    guarded = GuardedAggregator(METHODS.get(name).make_aggregator(), Guard(cap=1))
    found, plain = (
        teacher(guarded, HONEST).probabilities,
        teacher(METHODS.get(name).make_aggregator(), HONEST).probabilities,
    )
    weighted = ("suwa", "uwa", "most-confident", "fedaux", "fedgo")
    if name in weighted:  # a score far above the others' may be lowered a little
        assert torch.equal(found.argmax(1), plain.argmax(1))
        assert float((found - plain).abs().mean()) < 0.01
    else:
        assert torch.equal(found, plain)
    assert not any("weight" in done for done in guarded.report().values())


@pytest.mark.parametrize(("name", "alone"), [("suwa", [0]), ("suwa", [0, 1]), ("uwa", [0])])
def test_the_only_expert_of_a_class_keeps_its_say(name: str, alone: list[int]) -> None:
    others = [expert([1 + i % 5, 1 + (i + 1) % 5, 1 + (i + 3) % 5], i) for i in range(10)]
    guarded = GuardedAggregator(METHODS.get(name).make_aggregator())
    found = teacher(guarded, [*others, expert(alone, 99)])
    assert "weight" not in guarded.report().get("10", {})
    plain = teacher(METHODS.get(name).make_aggregator(), [*others, expert(alone, 99)])
    assert accuracy(found) >= accuracy(plain) - 0.01
    right, before = ((one.probabilities.argmax(1) == 0)[TRUTH == 0].double().mean() for one in (found, plain))
    assert float(right) >= float(before) > 0.7


@pytest.mark.parametrize("name", ["avg", "suwa", "uwa"])
def test_colluding_liars_lose_their_say_and_the_honest_keep_theirs(name: str) -> None:
    guarded = GuardedAggregator(METHODS.get(name).make_aggregator())
    teacher(guarded, [*HONEST, lie(), lie(), lie()])
    weights = {client: found["weight"] for client, found in guarded.report().items() if "weight" in found}
    assert weights == {"11": 0, "12": 0, "13": 0}


def test_a_client_that_hesitates_is_no_liar() -> None:
    shy = {**HONEST[0], "predictions": 0.3 * HONEST[0]["predictions"] + 0.7 / CLASSES}
    guarded = GuardedAggregator(METHODS.get("suwa").make_aggregator())
    teacher(guarded, [*HONEST[1:], shy])
    assert not any("weight" in found for found in guarded.report().values())


def test_a_million_added_to_all_scores_is_worth_no_more_than_a_thousand() -> None:
    said = torch.stack([upload["scores"] for upload in HONEST]).double()
    loud, louder = said.clone(), said.clone()
    loud[3] += 1e3
    louder[3] += 1e6
    clipped = clip_scores(louder)
    assert torch.equal(clipped, torch.cat([clipped[:3], clip_scores(loud)[3:4], clipped[4:]]))
    assert bool((clipped[3][said[3].argsort()].diff() >= 0).all())  # the order of its scores is the client's own
    np.testing.assert_allclose(clipped, plain_clipped(louder.numpy()), rtol=1e-12)
    np.testing.assert_allclose(clip_scores(said), plain_clipped(said.numpy()), rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.5, 0.99), st.sampled_from([0.25, 1.0, 4.0]))
def test_no_share_exceeds_the_cap_and_smaller_shares_keep_their_proportions(seed: int, cap: float, tau: float) -> None:
    scores = 20 * torch.randn(6, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weights = torch.tensor([1.0, 0.3, 0.0, 1.0, 0.05, 0.7], dtype=torch.float64)
    lowered = cap_share(scores, weights, tau, cap)
    before, after = (torch.softmax(tau * s + weights.log().unsqueeze(1), 0) for s in (scores, lowered))
    assert float(after.max()) <= cap + 1e-9
    fine = before.amax(0) <= cap
    assert torch.allclose(before[:, fine], after[:, fine], atol=1e-12)
    assert after.amax(0)[~fine].tolist() == pytest.approx([cap] * int((~fine).sum()))
    others = [share.scatter(0, before.argmax(0, keepdim=True), 0.0) for share in (before, after)]
    torch.testing.assert_close(others[0] / others[0].sum(0), others[1] / others[1].sum(0))


def test_the_cap_holds_among_those_who_are_left_when_others_are_silenced() -> None:
    """Nobody lifts the cap of a friend by speaking as loudly as it does and being silenced."""
    loud = [{**one, "scores": torch.where(TRUTH.eq(i), -5.0, -60.0)} for i, one in enumerate(HONEST[:CLASSES])]
    guarded = GuardedAggregator(Accumulator(tau=1.0))
    guarded.track(torch.arange(SAMPLES))
    teacher(guarded, [*loud, lie(scores=loud[0]["scores"])])
    assert guarded.report()[str(CLASSES)]["weight"] == 0
    weights = guarded.client_weights()
    assert weights is not None
    assert max(float(weight.max()) for weight in weights.values()) <= Guard().cap + 1e-9


def test_what_a_client_is_held_to_does_not_depend_on_the_cap() -> None:
    """Capping lowers an only expert's scores exactly where it knows best; it must not be judged by those."""
    found = []
    for cap in (0.5, 0.8, 1.0):
        guarded = GuardedAggregator(Accumulator(tau=1.0), Guard(cap))
        teacher(guarded, [*HONEST, lie()])
        found.append(guarded.report())
    assert found[0] == found[1] == found[2]


def test_under_the_rule_of_the_loudest_a_silenced_one_has_no_share() -> None:
    guarded = GuardedAggregator(METHODS.get("most-confident").make_aggregator())
    guarded.track(torch.arange(SAMPLES))
    teacher(guarded, [*HONEST, lie()])
    weights = guarded.client_weights()
    assert weights is not None
    assert float(weights["11"].max()) == 0
    assert torch.allclose(sum(weights.values(), torch.zeros(SAMPLES)), torch.ones(SAMPLES, dtype=torch.float64))


def test_a_rule_that_takes_no_weight_leaves_out_who_has_lost_more_than_half() -> None:
    class Mean(Accumulator):
        takes_weights = False

    honest = torch.tensor([[0.9, 0.1]] * 100)
    partly = torch.tensor([[0.0, 1.0]] * 60 + [[0.9, 0.1]] * 40)
    uploads = [{"predictions": said, "scores": torch.zeros(100)} for said in [*[honest] * 6, partly]]
    weighing, plain = GuardedAggregator(Accumulator(tau=0.0)), GuardedAggregator(Mean(tau=0.0))
    assert teacher(weighing, uploads).clients == 7
    assert 0 < weighing.report()["6"]["weight"] < 0.5
    assert teacher(plain, uploads).clients == 6


@pytest.mark.parametrize("cap", [0.3, 0.499, 1.001, float("nan")])
def test_a_cap_that_two_clients_could_exceed_is_refused(cap: float) -> None:
    with pytest.raises(TrustmixError, match=r"from 0\.5 to 1"):
        Guard(cap)
    assert (Guard(0.5).cap, Guard(1).cap, Guard().cap) == (0.5, 1, 0.8)


def test_five_clients_have_a_majority_to_measure_the_fifth_by() -> None:
    guarded = GuardedAggregator(Accumulator(tau=1.0))
    said = [{"predictions": torch.tensor([[0.9, 0.1]] * 20), "scores": torch.arange(20) / 10}] * 4
    wrong = {"predictions": torch.tensor([[0.0, 1.0]] * 20), "scores": torch.full((20,), 1e9)}
    found = teacher(guarded, [*said, wrong])
    assert guarded.report() == {"4": {"scores": 1.0, "regret": pytest.approx(0.889), "weight": 0.0}}
    assert found.probabilities[0].tolist() == pytest.approx([0.9, 0.1])
    assert found.clients == 4


def test_a_weight_below_a_hundredth_or_a_half_where_none_are_taken_counts_as_none() -> None:
    assert [effective_weight(w, takes_weights=True) for w in (0.0, 0.0099, 0.01, 0.3, 1.0)] == [
        0.0,
        0.0,
        0.01,
        0.3,
        1.0,
    ]
    assert [effective_weight(w, takes_weights=False) for w in (0.0, 0.3, 0.49, 0.5, 1.0)] == [0.0, 0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize(("loud", "reported"), [(5, True), (4, False)])
def test_a_client_is_reported_once_a_twentieth_of_its_scores_was_lowered(loud: int, reported: bool) -> None:
    guarded = GuardedAggregator(Accumulator(tau=1.0))
    ramp = torch.arange(100) / 10
    scores = [ramp + shift for shift in (0.0, 0.1, 0.2, 0.3, 0.4, 0.2)]
    scores[2] = scores[2] + 50.0 * (torch.arange(100) >= 100 - loud)
    teacher(guarded, [{"predictions": torch.full((100, 2), 0.5), "scores": score} for score in scores])
    assert guarded.report() == ({"2": {"scores": 0.05}} if reported else {})


def test_a_state_has_the_reputations_that_are_less_than_good_once_their_round_is_over() -> None:
    guarded = GuardedAggregator(Accumulator(tau=1.0))
    teacher(guarded, [doubtful(30), *HONEST[1:], lie()])
    report = guarded.report()
    assert not any(key.startswith("reputation/") for key in guarded.state_dict())  # it would count twice
    guarded.reset()
    found = {key: float(value) for key, value in guarded.state_dict().items()}
    assert found == pytest.approx({f"reputation/{i}": report[i]["weight"] for i in ("0", "11")}, abs=6e-4)


Array: TypeAlias = np.ndarray[Any, Any]


def plain_regrets(q: Array, voices: Array, held: Sequence[Array] | None = None) -> Array:
    """The regret of each client, written down sample by sample; with label sets, within those."""
    regrets = []
    for i in range(len(q)):
        missed = best = 0.0
        for x in range(q.shape[1]):
            others = [j for j in range(len(q)) if j != i]
            loud = sum(voices[j, x] for j in others)
            consensus = sum(voices[j, x] * q[j, x] for j in others) / loud
            said, heard = q[i, x], voices[i, x] * loud / (loud + voices[i, x])
            if held is not None:
                consensus, said, heard = consensus[held[i]], said[held[i]], loud
            # who gives none of its own classes any probability has not said anything
            word = max(said @ consensus / said.sum(), consensus[said.argmax()]) if said.any() else 0.0
            missed, best = missed + heard * (consensus.max() - word), best + heard * consensus.max()
        regrets.append(missed / best)
    return np.array(regrets)


def lower_median(values: Array) -> Any:
    return np.sort(values, 0)[(len(values) - 1) // 2]


def plain_weights(q: Array, scores: Array, before: Array, held: Sequence[Array] | None) -> tuple[Array, Array]:
    """Regrets and weights, with the numbers of the documentation in place of the constants of the code."""
    voices = ((rankdata(scores, axis=1) - 0.5) / scores.shape[1]) ** 3
    weights, median = before, 0.2 if held is None else 0.1
    for _ in range(4):
        regrets = plain_regrets(q, voices * np.maximum(weights, 0.001)[:, None], held)
        median = max(lower_median(regrets), median)
        weights = before * np.clip(3 - regrets / median, 0, 1)
    return regrets, weights


def plain_clipped(scores: Array) -> Array:
    """Scores, each client's k-th smallest bounded by the median client's k-th and three deviations, and by the bounds
    of all larger ones."""
    ordered = np.sort(scores, 1)
    middle = lower_median(ordered)
    bound = middle + 3 * lower_median(np.abs(ordered - middle))
    allowed = [bound[k:].min() for k in range(len(bound))]
    return np.stack([np.minimum(row, np.array(allowed)[rankdata(row, "ordinal").astype(int) - 1]) for row in scores])


def plain_teacher(q: Array, scores: Array, weights: Array, tau: float, cap: float) -> Array:
    """The weighted average in which the largest share of a sample is the cap where it would be more."""
    share = weights[:, None] * np.exp(tau * scores)
    share /= share.sum(0)
    for x, first in enumerate(share.argmax(0)):
        if share[first, x] > cap:
            share[:, x] *= (1 - cap) / (1 - share[first, x])
            share[first, x] = cap
    teacher: Array = np.einsum("mn,mnc->nc", share, q)
    return teacher


def doubtful(wrong: int, index: int = 0) -> dict[str, Any]:
    """An honest client whose first predictions are wrong."""
    predictions = HONEST[index]["predictions"].clone()
    predictions[:wrong] = lie()["predictions"][:wrong]
    return {**HONEST[index], "predictions": predictions}


@pytest.mark.parametrize("labels", [False, True])
def test_two_rounds_under_guard_are_those_of_the_formulas(labels: bool) -> None:
    liar = {**HONEST[3], "predictions": lie()["predictions"]}
    rounds = [
        [doubtful(40 + 10 * labels), doubtful(70, 1), *HONEST[2:], liar],
        [doubtful(15), doubtful(20, 1), *HONEST[2:], HONEST[3]],
    ]
    guarded = GuardedAggregator(Accumulator(tau=0.5), Guard(0.6))
    reputation = np.ones(len(rounds[0]))
    for uploads in rounds:
        given = uploads if labels else [{**upload, "class_counts": None} for upload in uploads]
        found = teacher(guarded, given)
        q, scores = (
            np.stack([upload[key].double().numpy() for upload in uploads]) for key in ("predictions", "scores")
        )
        held = [upload["class_counts"].numpy() > 0 for upload in uploads] if labels else None
        scores = plain_clipped(scores)
        regrets, reputation = plain_weights(q, scores, np.sqrt(np.maximum(reputation, 0.001)), held)
        lowered = {str(i): [r, w] for i, (r, w) in enumerate(zip(regrets, reputation, strict=True)) if w < 0.99}
        assert 2 <= len(lowered) <= 3
        report = {c: [done["regret"], done["weight"]] for c, done in guarded.report().items() if "weight" in done}
        assert report.keys() == lowered.keys()
        for client, numbers in lowered.items():
            assert report[client] == pytest.approx(numbers, abs=6e-4)
        kept = np.where(reputation > 0.99, 1, np.where(reputation < 0.01, 0, reputation))
        expected = plain_teacher(q, scores, kept, 0.5, 0.6)
        np.testing.assert_allclose(found.probabilities, expected, atol=1e-6)
        guarded.reset()


def test_regrets_are_those_of_the_formula() -> None:
    q = torch.stack([upload["predictions"] for upload in HONEST])
    scores = torch.stack([upload["scores"] for upload in HONEST])
    found, weights = regret_weights(list(q), scores, [None] * len(q), torch.ones(len(q)).double())
    assert found.tolist() == pytest.approx(plain_regrets(q.double().numpy(), rank_confidence(scores).numpy()), rel=1e-6)
    assert weights.tolist() == [1] * len(q)


@pytest.mark.parametrize("held", [None, [True, True, False, True]])
def test_forty_clients_without_scores_have_the_regrets_and_weights_of_the_formulas(held: list[bool] | None) -> None:
    q = torch.softmax(3 * torch.randn(40, 5, 4, generator=torch.Generator().manual_seed(0)), 2)
    classes = [None if held is None else torch.tensor(held).long()] * 40
    regrets, weights = regret_weights(list(q), None, classes, torch.ones(40, dtype=torch.float64))
    sets = None if held is None else [np.array(held)] * 40
    # equal scores have equal voices, whose size does not matter
    expected = plain_weights(q.double().numpy(), np.zeros((40, 5)), np.ones(40), sets)
    np.testing.assert_allclose(regrets, expected[0], rtol=1e-6)
    np.testing.assert_allclose(weights, expected[1], atol=1e-6)


def test_a_consensus_that_never_settles_is_left_after_four_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = [torch.tensor([0.1, 0.1, 0.1, 0.1, much], dtype=torch.float64) for much in (0.45, 0.5, 0.45, 0.55, 0.45)]
    left = iter(passes)
    monkeypatch.setattr("trustmix.aggregation.guard_bounds._regrets", lambda *_: next(left))
    regret, weights = regret_weights(
        [torch.full((3, 2), 0.5)] * 5, None, [None] * 5, torch.ones(5, dtype=torch.float64)
    )
    assert torch.equal(regret, passes[3])
    assert weights.tolist() == pytest.approx([1, 1, 1, 1, 3 - 0.55 / 0.2])


def test_a_say_is_lost_over_rounds_and_regained_slowly() -> None:
    memory: Any = {}
    says = []
    for upload in [doubtful(30), doubtful(30), doubtful(30), HONEST[0], HONEST[0], HONEST[0], HONEST[0]]:
        guarded = GuardedAggregator(METHODS.get("suwa").make_aggregator())
        guarded.load_state_dict(memory)
        teacher(guarded, [upload, *HONEST[1:]])
        says.append(guarded.report().get("0", {}).get("weight", 1.0))
        guarded.reset()
        memory = guarded.state_dict()
    assert 1 > says[0] > says[1] > says[2] > 0
    assert says[2] < says[3] < says[4] < says[5] <= says[6]
    assert says[6] > 0.7


def test_a_rule_that_remembers_still_does_under_guard() -> None:
    class Counting(Accumulator):
        rounds = 0

        def load_state_dict(self, state: StateDict) -> None:
            self.rounds = int(state.get("rounds", 0))

        def state_dict(self) -> dict[str, torch.Tensor]:
            return {"rounds": torch.tensor(self.rounds + 1)}

    memory: Any = {}
    for _ in range(3):
        guarded = GuardedAggregator(Counting(1.0))
        guarded.load_state_dict(memory)
        teacher(guarded, HONEST)
        guarded.reset()
        memory = guarded.state_dict()
    assert {key: int(value) for key, value in memory.items()} == {"rule/rounds": 3}


def test_a_rule_that_takes_no_weight_hears_a_doubtful_client_fully_or_not_at_all() -> None:
    for wrong, heard in ((55, True), (70, False)):
        plain = Median()
        teacher(GuardedAggregator(plain), [{**one, "class_counts": None} for one in [doubtful(wrong), *HONEST[1:]]])
        assert ("0" in [upload.client for upload in plain.uploads]) == heard


def test_few_clients_pass_as_they_are() -> None:
    few = [*HONEST[:3], lie()]
    assert torch.equal(
        teacher(GuardedAggregator(METHODS.get("uwa").make_aggregator()), few).probabilities,
        teacher(METHODS.get("uwa").make_aggregator(), few).probabilities,
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"predictions": torch.full((SAMPLES, CLASSES), 0.5)}, "sums to 3"),
        ({"predictions": torch.full((SAMPLES, CLASSES), torch.nan)}, "is nan"),
        ({"predictions": HONEST[0]["predictions"][:-1]}, "scores have the shape|predictions have the shape"),
        ({"scores": torch.full((SAMPLES,), torch.nan)}, "is nan"),
        ({"scores": torch.zeros(3)}, "scores have the shape"),
        ({"class_counts": torch.zeros(CLASSES)}, "class counts have the shape"),
        ({"client": "0"}, "one upload a round"),
    ],
)
def test_what_is_refused_leaves_the_round_as_it_was(change: dict[str, Any], reason: str) -> None:
    guarded = GuardedAggregator(METHODS.get("suwa").make_aggregator())
    for index, upload in enumerate(HONEST):
        guarded.update(Upload.from_arrays(str(index), **upload))
    with pytest.raises(TrustmixError, match=reason):
        guarded.update(Upload.from_arrays(**{"client": "late", **HONEST[0], **change}))
    assert torch.equal(
        guarded.compute().probabilities,
        teacher(GuardedAggregator(METHODS.get("suwa").make_aggregator()), HONEST).probabilities,
    )


@pytest.mark.parametrize(
    "name", ["avg", "fedmd", "ds-fl", "selective-fd", "suwa", "fedaux", "fedgo", "edgefd", "fed-et"]
)
def test_a_client_of_weight_two_counts_as_two(name: str) -> None:
    one, other = (upload["predictions"] for upload in HONEST[:2])
    double, twice = METHODS.get(name).make_aggregator(), METHODS.get(name).make_aggregator()
    double.update(replace(Upload.from_arrays("one", one, torch.zeros(SAMPLES)), weight=2.0))
    double.update(other, torch.zeros(SAMPLES))
    for q in (one, one, other):
        twice.update(q, torch.zeros(SAMPLES))
    assert torch.allclose(double.compute().probabilities, twice.compute().probabilities, atol=1e-6)


def test_clients_who_agree_more_once_others_are_lowered_are_no_reason_to_lower_still_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes = iter([[0.4, 0.4, 0.5, 0.5, 1.3], [0.1, 0.1, 0.1, 0.7, 1.3], [0.1, 0.1, 0.1, 0.7, 1.3]])
    monkeypatch.setattr(
        "trustmix.aggregation.guard_bounds._regrets", lambda *_: torch.tensor(next(passes), dtype=torch.float64)
    )
    some = [torch.full((3, 2), 0.5)] * 5
    _, weights = regret_weights(some, None, [None] * 5, torch.ones(5, dtype=torch.float64))
    assert weights.tolist() == pytest.approx([1, 1, 1, 1, 0.4])


def test_guards_with_other_bounds_do_not_merge() -> None:
    first, second = (GuardedAggregator(Accumulator(tau=0.25), Guard(cap=cap)) for cap in (0.8, 0.9))
    for rule in (first, second):
        rule.update(Upload.from_arrays("north", [[0.5, 0.5]], [0.0]))
    with pytest.raises(TrustmixError, match="different rules or bounds"):
        first.merge(second)

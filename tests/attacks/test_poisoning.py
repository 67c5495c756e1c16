"""Every attack produces the upload that it is named for, and the upload keeps its valid form on the wire."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from trustmix import TrustmixError
from trustmix.aggregation import RobustTrust, Trust, Upload
from trustmix.attacks import MALFORMED_MESSAGES, POISONING_ATTACKS, AttackContext
from trustmix.attacks.poisoning import scores_of
from trustmix.wire import MessageHeader, decode_upload, encode_upload

SAMPLES, CLASSES = 30, 5
HEADER = MessageHeader("7", 3, "f" * 16, SAMPLES, CLASSES)


def upload(seed: int) -> Upload:
    generator = torch.Generator().manual_seed(seed)
    held = torch.tensor([1, 1, 0, 0, 0]).roll(seed)
    scores = torch.randn(SAMPLES, generator=generator)
    predictions = torch.softmax(3 * torch.randn(SAMPLES, CLASSES, generator=generator), 1)
    return Upload(str(seed), predictions, scores, held)


HONEST = [upload(seed) for seed in range(1, 6)]
MEAN = torch.stack([one.predictions for one in HONEST]).mean(0)
OWN = upload(0)


def poison(kind: str, own: Upload = OWN) -> Upload:
    return POISONING_ATTACKS.get(kind)(AttackContext(own, HONEST, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("kind", POISONING_ATTACKS.names())
@pytest.mark.parametrize("own", [OWN, Upload("0", OWN.predictions, OWN.scores)], ids=["with labels", "without"])
def test_an_attack_keeps_the_form_of_an_upload(kind: str, own: Upload) -> None:
    found = decode_upload(encode_upload(poison(kind, own), HEADER, "float32"), HEADER)
    assert found.predictions.shape == (SAMPLES, CLASSES)
    assert (found.class_counts is None) == (own.class_counts is None)


@pytest.mark.parametrize("kind", MALFORMED_MESSAGES.names())
def test_a_malformed_message_is_refused(kind: str) -> None:
    honest = encode_upload(HONEST[0], MessageHeader("1", 3, "f" * 16, SAMPLES, CLASSES), "float32")
    with pytest.raises(TrustmixError):
        decode_upload(MALFORMED_MESSAGES.get(kind)(OWN, [honest], HEADER), HEADER)


def one_hot(row: torch.Tensor) -> int:
    assert sorted(row.tolist()) == [0.0] * (CLASSES - 1) + [1.0]
    return int(row.argmax())


def test_least_likely_and_dissimilar_read_the_honest_mean() -> None:
    covariance = torch.cov(MEAN.double().T)
    for x in range(SAMPLES):
        assert one_hot(poison("least-likely").predictions[x]) == int(MEAN[x].argmin())
        assert one_hot(poison("dissimilar").predictions[x]) == int(covariance[int(MEAN[x].argmax())].argmin())


def test_hide_sends_the_worst_of_the_honest_predictions() -> None:
    for x, row in enumerate(poison("hide").predictions):
        losses = [-float((MEAN[x] * one.predictions[x].log()).sum()) for one in HONEST]
        assert torch.equal(row, HONEST[losses.index(max(losses))].predictions[x])


def test_a_shuffle_keeps_the_confidences_and_gives_the_least_to_the_likeliest() -> None:
    found = poison("shuffle").predictions
    assert torch.equal(found.sort(1).values, OWN.predictions.sort(1).values)
    assert torch.equal(found.argmin(1), OWN.predictions.argmax(1))
    assert torch.equal(found.argmax(1), OWN.predictions.topk(2, 1).indices[:, 1])


@pytest.mark.parametrize(
    ("kind", "same"),
    [("inflate", "predictions"), ("labels", "predictions"), ("flip", "scores"), ("temperature", "scores")],
)
def test_an_attack_on_one_part_leaves_the_other_as_it_is(kind: str, same: str) -> None:
    found: Any = poison(kind)
    assert torch.equal(getattr(found, same), getattr(OWN, same))
    assert any(
        not torch.equal(getattr(found, part), getattr(OWN, part)) for part in ("predictions", "scores", "class_counts")
    )


def test_what_each_simple_attack_sends() -> None:
    assert bool((scores_of(poison("inflate")) > 9e5).all())
    assert torch.equal(poison("fixed").predictions.argmax(1), torch.zeros(SAMPLES, dtype=torch.int64))
    assert torch.equal(poison("flip").predictions.argmax(1), (OWN.predictions.argmax(1) + 1) % CLASSES)
    assert torch.equal(poison("temperature").predictions.argmax(1), OWN.predictions.argmax(1))
    assert float(poison("temperature").predictions.amax(1).mean()) > float(OWN.predictions.amax(1).mean())
    claimed, held = poison("labels").class_counts, OWN.class_counts
    assert claimed is not None
    assert held is not None
    assert torch.equal(claimed > 0, held == 0)
    best = torch.stack([scores_of(one) for one in HONEST]).amax(0)
    assert torch.equal(scores_of(poison("takeover")), best)


def test_concentrate_changes_few_samples_and_claims_trust_only_there() -> None:
    found = poison("concentrate")
    changed = (found.predictions != OWN.predictions).any(1)
    assert int(changed.sum()) == 1
    assert torch.equal(found.predictions[changed].argmax(1), MEAN[changed].argmin(1))
    assert torch.equal(scores_of(found)[~changed], scores_of(OWN)[~changed])


def test_margin_repeats_the_honest_teacher_but_where_it_is_least_sure() -> None:
    rule = Trust()
    for one in HONEST:
        rule.update(one)
    teacher = rule.compute().probabilities
    for name, part in (("margin", 1.0), ("margin-own", 0.4)):
        found = poison(name).predictions
        changed = found.amax(1) == 1
        assert int(changed.sum()) == SAMPLES // 5
        top = teacher.topk(2, 1).values
        if part == 1:
            assert float((top[:, 0] - top[:, 1])[changed].max()) <= float((top[:, 0] - top[:, 1])[~changed].min())
            assert torch.equal(found[changed].argmax(1), teacher.topk(2, 1).indices[changed, 1])
            torch.testing.assert_close(found[~changed], teacher[~changed], atol=1e-4, rtol=0)
        else:
            assert float(found[:, 2:].max()) == 0  # its own two classes


def liars_against(kind: str, honest: list[Upload], liars: int) -> tuple[torch.Tensor, RobustTrust]:
    """The labels of the guarded teacher of honest clients and of liars that know them."""
    rule = RobustTrust()
    for one in honest:
        rule.update(one)
    for index in range(liars):
        own = Upload(f"liar {index}", honest[index].predictions, honest[index].scores)
        found = POISONING_ATTACKS.get(kind)(AttackContext(own, honest, torch.Generator(), liars))
        rule.update(replace(found, client=own.client))
    return rule.estimate()[0].argmax(1), rule


def experts(holders: int) -> tuple[list[Upload], torch.Tensor]:
    """Clients with two classes each, so many of each class, who are right but unsure, and the true labels."""
    generator = torch.Generator().manual_seed(1)
    label = torch.arange(200) % CLASSES
    found = []
    for index in range(holders * CLASSES // 2):
        held = torch.tensor([2 * index % CLASSES, (2 * index + 1) % CLASSES])
        logits = 2.0 * torch.eye(CLASSES)[label] + torch.randn(200, CLASSES, generator=generator)
        q = torch.softmax(logits[:, held], 1) @ torch.eye(CLASSES)[held]
        familiar = torch.logsumexp(logits[:, held], 1) - torch.logsumexp(logits, 1)
        found.append(Upload(str(index), q, familiar.double()))
    return found, label


def test_stealth_moves_more_labels_than_lies_that_cost_precision_and_none_of_its_liars_is_noticed() -> None:
    honest, label = experts(8)
    clean = float((liars_against("shift", honest, 0)[0] == label).double().mean())
    right = {kind: liars_against(kind, honest, 4) for kind in ("stealth", "flip", "least-likely")}
    accuracy = {kind: float((found == label).double().mean()) for kind, (found, _) in right.items()}
    assert accuracy["stealth"] < min(accuracy["flip"], accuracy["least-likely"], clean) - 0.01
    assert not any("liar" in client for client in right["stealth"][1].report())


def test_capture_takes_a_class_with_one_honest_holder_from_few_clients_and_no_others() -> None:
    honest, label = experts(4)
    few = [one for one in honest if float(one.predictions[:, 0].max()) == 0][:8] + honest[:1]  # one holder of class 0
    found, _ = liars_against("capture", few, 3)
    recall = [float((found == c)[label == c].double().mean()) for c in range(CLASSES)]
    assert recall[0] < 0.3
    assert min(recall[1:]) > 0.5


def test_erase_contradicts_the_holders_of_the_rarest_class_alone() -> None:
    found = poison("erase")
    rule = Trust()
    for one in HONEST:
        rule.update(one)
    label = rule.compute().probabilities.argmax(1)
    changed = found.predictions.amax(1) == 1
    assert len(set(label[changed].tolist())) == 1
    victim = int(label[changed][0])
    assert bool((found.predictions[changed].argmax(1) != victim).all())
    assert found.class_counts is not None
    assert int(found.class_counts[victim]) > 0

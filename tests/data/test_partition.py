"""Splits: public and private samples never overlap, splits are reproducible, impossible ones are refused."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trustmix import TrustmixError
from trustmix.data import Partition, partition, stratified_holdout
from trustmix.data.partition import assign_classes

LABELS = torch.arange(2000) % 10


def split(**settings: Any) -> Partition:
    return partition(LABELS, 10, **{"clients": 8, "samples_per_client": 60, "public_samples": 200, **settings})


def everything(share: Any) -> list[int]:
    return torch.cat([share.train, share.calibration]).tolist()


@given(
    kind=st.sampled_from(["classes", "dirichlet", "homogeneous"]),
    clients=st.integers(5, 12),
    seed=st.integers(0, 1000),
    samples=st.integers(20, 150),
    alpha=st.sampled_from([0.05, 0.5, 10.0]),
)
@settings(deadline=None, max_examples=60)
def test_public_private_and_calibration_never_overlap_and_no_client_holds_a_sample_twice(
    kind: Any, clients: int, seed: int, samples: int, alpha: float
) -> None:
    result = split(kind=kind, clients=clients, seed=seed, samples_per_client=samples, alpha=alpha)
    public = set(result.public.tolist())
    assert len(public) == 200
    for share in result.clients:
        held = everything(share)
        assert len(held) == len(set(held)) == samples
        assert not public & set(held)
        assert set(LABELS[share.train].tolist()) == set(LABELS[share.calibration].tolist())


def test_every_client_holds_its_k_classes_in_equal_parts_and_a_fifth_is_held_out() -> None:
    for k in (2, 3, 10):
        for share in split(classes_per_client=k, samples_per_client=150).clients:
            counts = torch.bincount(LABELS[everything(share)], minlength=10)
            assert (counts > 0).sum() == k
            assert counts[counts > 0].tolist() == [150 // k] * k
            assert len(share.calibration) == 30


@given(
    classes=st.integers(2, 30), per_client=st.integers(1, 30), clients=st.integers(1, 40), seed=st.integers(0, 10**6)
)
def test_every_class_is_held_whenever_that_is_possible(classes: int, per_client: int, clients: int, seed: int) -> None:
    if per_client > classes or clients * per_client < classes:
        with pytest.raises(TrustmixError):
            assign_classes(clients, classes, per_client, seed)
        return
    held = assign_classes(clients, classes, per_client, seed)
    assert all(len(set(hand)) == per_client for hand in held)
    assert {cls for hand in held for cls in hand} == set(range(classes))


def test_the_public_set_looks_like_the_pool() -> None:
    assert torch.bincount(LABELS[split().public]).tolist() == [20] * 10
    uneven = torch.tensor([0] * 900 + [1] * 90 + [2] * 10)
    public = partition(uneven, 3, clients=2, samples_per_client=10, public_samples=100).public
    assert torch.bincount(uneven[public]).tolist() == [90, 9, 1]


@pytest.mark.parametrize("kind", ["classes", "dirichlet", "homogeneous"])
def test_the_seed_decides_and_one_more_client_does_not_change_the_samples_of_others(kind: Any) -> None:
    one, again, more, other = split(kind=kind), split(kind=kind), split(kind=kind, clients=9), split(kind=kind, seed=1)
    assert torch.equal(one.public, again.public)
    assert torch.equal(one.public, more.public)
    for a, b, c in zip(one.clients, again.clients, more.clients, strict=False):
        assert everything(a) == everything(b) == everything(c)
    assert not torch.equal(one.public, other.public)
    assert everything(one.clients[0]) != everything(other.clients[0])


def test_a_small_alpha_gives_clients_fewer_classes() -> None:
    def classes_held(alpha: float) -> float:
        shares = split(kind="dirichlet", alpha=alpha, clients=20).clients
        return sum(len(set(LABELS[everything(share)].tolist())) for share in shares) / 20

    assert classes_held(0.05) < classes_held(0.5) < classes_held(100) == 10


def test_without_public_samples_the_whole_pool_is_private() -> None:
    assert len(split(public_samples=None).public) == 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"classes_per_client": 11}, "classes_per_client is 11, but the data have 10 classes"),
        ({"clients": 3}, "3 clients x 2 classes = 6, and the data have 10.*raise clients to 5 or .* to 4"),
        ({"public_samples": 0}, "public.samples is 0"),
        ({"public_samples": 2000}, "public.samples is 2000, but the training data are 2000"),
        ({"samples_per_client": 400}, r"needs 200 samples of class \d, but only 180 are left beside the 200 public"),
        ({"samples_per_client": 3}, "a single sample of class"),
        ({"kind": "dirichlet", "samples_per_client": 1}, "no class with two samples"),
        ({"kind": "dirichlet", "samples_per_client": 1801}, "only 1800 private samples"),
    ],
)
def test_an_impossible_split_is_refused_with_its_numbers(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        split(**settings)


def test_a_column_deals_every_sample_that_is_not_public_to_the_client_it_names() -> None:
    owner = torch.arange(len(LABELS)) % 3
    found = split(kind="column", clients=3, groups=owner)
    assert [len(share.train) + len(share.calibration) for share in found.clients] == [
        int((owner == client).sum() - (owner[found.public] == client).sum()) for client in range(3)
    ]
    for client, share in enumerate(found.clients):
        assert set(owner[everything(share)].tolist()) == {client}
    dealt = [index for share in found.clients for index in everything(share)]
    assert sorted([*found.public.tolist(), *dealt]) == list(range(len(LABELS)))


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        (None, "needs data with groups: name the column of a table in data.group"),
        (torch.arange(len(LABELS)) % 4, "data.group has 4 values, one for each client; set clients = 4"),
        (torch.arange(len(LABELS)).clamp(max=2), "holds a single sample of class|has no samples beside the public set"),
    ],
)
def test_a_column_that_cannot_deal_is_refused(groups: torch.Tensor | None, sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        split(kind="column", clients=3, groups=groups)


def test_a_client_without_samples_cannot_hold_any_out() -> None:
    with pytest.raises(TrustmixError, match="holds no samples"):
        stratified_holdout(torch.zeros(0, dtype=torch.int64), 0.2, 0, "a")

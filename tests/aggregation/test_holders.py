"""Who holds which class: sums, rests and seats against tables of all clients and classes, and tiles that fit."""

from typing import Any

import numpy as np
import pytest
import torch

from trustmix.aggregation import holders
from trustmix.aggregation.holders import Holders

HELD = np.array([[1, 0, 1, 0], [0, 0, 1, 1], [1, 1, 1, 0], [0, 0, 1, 0], [1, 0, 0, 1]], dtype=bool)
"""Of five clients and four classes; class 1 has one holder."""


def make_holders(held: Any) -> Holders:
    client, class_ = np.nonzero(held)
    return Holders(torch.tensor(client), torch.tensor(class_), *held.shape)


def as_table(held: Any, numbers: torch.Tensor) -> Any:
    """Numbers of pairs as a table (M, C), 0 for pairs that are not there."""
    table = np.zeros(held.shape)
    table[held] = numbers.numpy()
    return table


def test_numbers_are_summed_and_compared_within_each_client() -> None:
    pairs, numbers = make_holders(HELD), torch.arange(1.0, 1 + HELD.sum())
    table = as_table(HELD, numbers)
    assert pairs.sum_over_classes(numbers).tolist() == table.sum(1).tolist()
    assert pairs.largest(numbers).tolist() == table.max(1).tolist()
    assert pairs.largest(numbers.flip(0)).tolist() == as_table(HELD, numbers.flip(0)).max(1).tolist()


def test_the_rest_is_what_the_estimates_of_a_client_leave_of_one() -> None:
    rows = torch.rand(7, int(HELD.sum()), generator=torch.Generator().manual_seed(0))
    expected = [[max(0.0, 1 - total) for total in as_table(HELD, row).sum(1)] for row in rows]
    assert 0 < np.mean(np.array(expected) == 0) < 1  # some clients say more than 1 in all, some less
    np.testing.assert_allclose(make_holders(HELD).rest(rows), expected, atol=1e-6)


@pytest.mark.parametrize("tile", [1, 6, 2**17])
def test_every_pair_has_one_seat_in_its_class_in_the_order_of_clients(
    tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "TILE", tile)
    monkeypatch.setattr(holders, "MIN_ROWS", 1)
    numbers, seen = torch.arange(1.0, 1 + HELD.sum()), 0
    table = as_table(HELD, numbers)
    for group in make_holders(HELD).groups:
        seated, read = group.seat(numbers), group.read(torch.stack([numbers, -numbers]))
        assert group.classes == slice(seen, seen + len(seated))
        for seats, taken, rows, class_ in zip(
            seated, group.taken, read.transpose(0, 1), table[:, group.classes].T, strict=True
        ):
            expected = class_[class_ > 0].tolist()
            assert seats.tolist() == expected + [0.0] * (len(seats) - len(expected))
            assert rows[0][taken].tolist() == expected
            assert (-rows[1][taken]).tolist() == expected
        seen += len(seated)
    assert seen == 4


def held_by(clients: int, classes: int) -> Holders:
    """Every client holds every class."""
    return make_holders(np.ones((clients, classes), dtype=bool))


@pytest.mark.parametrize(
    ("clients", "classes", "rows", "together"),
    [
        (32, 4, 1024, 4),  # 32 holders of 4 classes: 2**17 numbers are 1024 samples
        (2**11, 64, 1, 64),  # one sample of all is a tile
        (2**11, 65, 8, 8),  # one is more: eight samples, and as many classes as then fit
        (2**15, 5, 4, 1),  # a class has no part: less than eight samples
        (1, 1, 2**17, 1),
    ],
)
def test_samples_and_classes_that_are_looked_at_together_fill_a_tile(
    clients: int, classes: int, rows: int, together: int
) -> None:
    found = held_by(clients, classes)
    assert found.rows == rows
    assert [len(group.column) for group in found.groups[:-1]] == [together] * (len(found.groups) - 1)
    assert sum(len(group.column) for group in found.groups) == classes
    assert max(found.rows * group.column.numel() for group in found.groups) <= 2**17


def test_a_class_that_nobody_holds_has_an_empty_seat() -> None:
    pairs = Holders(torch.tensor([0, 1]), torch.tensor([2, 2]), 2, 4)
    (group,) = pairs.groups
    assert group.taken.sum(1).tolist() == [0, 0, 2, 0]
    assert pairs.counts.tolist() == [0, 0, 2, 0]

"""Items that are made on demand are those that a list would have, and none is made before."""

from hypothesis import given
from hypothesis import strategies as st

from trustmix.lazy import MANY, LazyMapping, LazySequence, lazily, numbered


@given(st.integers(0, 50), st.slices(50))
def test_a_lazy_sequence_is_the_list_of_its_items(length: int, part: slice) -> None:
    items = [3 * index for index in range(length)]
    lazy = LazySequence(length, lambda index: 3 * index)
    assert list(lazy) == items
    assert list(lazy[part]) == items[part]
    assert [lazy[-1 - index] for index in range(length)] == items[::-1]


def test_nothing_is_made_before_it_is_asked_for_and_only_of_many() -> None:
    made: list[int] = []
    lazy = lazily(MANY + 1, lambda index: made.append(index) or index)  # type: ignore[func-returns-value]
    assert made == []
    assert lazy[MANY] == MANY
    assert made == [MANY]
    assert lazily(MANY, str) == tuple(str(index) for index in range(MANY))


@given(st.text(max_size=6))
def test_a_lazy_mapping_knows_its_own_keys_alone(key: str) -> None:
    length = 2 * MANY
    lazy = LazyMapping(numbered(length), int)
    assert (key in lazy) == (key in {str(index) for index in range(length)})

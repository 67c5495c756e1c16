"""Sequences and mappings whose items are made when they are asked for, so that many clients take no memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar, overload

T = TypeVar("T")

MANY = 1000
"""More items than this are made when they are asked for."""


class LazySequence(Sequence[T]):
    """A sequence that makes an item each time it is asked for it, and keeps none.

    Parameters
    ----------
    length
        The number of items.
    make
        Makes the item of an index, the same one at every call.

    Examples
    --------
    >>> squares = LazySequence(10**9, lambda index: index**2)
    >>> len(squares), squares[-1], list(squares[3:5])
    (1000000000, 999999998000000001, [9, 16])
    """

    def __init__(self, length: int, make: Callable[[int], T]) -> None:
        self._length, self._make = length, make

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> "LazySequence[T]": ...
    def __getitem__(self, index: int | slice) -> "T | LazySequence[T]":
        places = range(self._length)[index]
        if isinstance(places, range):
            return LazySequence(len(places), lambda place: self._make(places[place]))
        return self._make(places)

    def __repr__(self) -> str:
        return f"<LazySequence of {self._length} items>"


class LazyMapping(Mapping[str, T]):
    """A mapping that makes a value each time it is asked for it, and keeps none.

    Parameters
    ----------
    keys
        The keys; their numbers in this sequence are what they are called.
    make
        Makes the value of a key, the same one at every call.

    Examples
    --------
    >>> found = LazyMapping(numbered(10**6), lambda key: 2 * int(key))
    >>> found["21"], "1000000" in found, found.get("north"), found.get("9" * 5000)
    (42, False, None, None)
    """

    def __init__(self, keys: Sequence[str], make: Callable[[str], T]) -> None:
        self._keys, self._make = keys, make

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __getitem__(self, key: str) -> T:
        count = len(self._keys)
        is_number = key.isascii() and key.isdigit() and len(key) <= len(str(count))  # longer texts cost int() too much
        if not is_number or int(key) >= count or str(int(key)) != key:
            raise KeyError(key)
        return self._make(key)


def numbered(length: int) -> Sequence[str]:
    """The ids of so many clients: their numbers, as texts.

    Parameters
    ----------
    length
        The number of clients.

    Returns
    -------
    sequence of str
        From "0" on.

    Examples
    --------
    >>> numbered(100_000)[99_999]
    '99999'
    """
    return lazily(length, str)


def lazily(length: int, make: Callable[[int], T]) -> Sequence[T]:
    """Make items now, or when they are asked for if they are more than `MANY`.

    Parameters
    ----------
    length
        The number of items.
    make
        Makes the item of an index, the same one at every call.

    Returns
    -------
    sequence
        A tuple, or a `LazySequence`.

    Examples
    --------
    >>> lazily(3, str), lazily(100_000, str)
    (('0', '1', '2'), <LazySequence of 100000 items>)
    """
    return LazySequence(length, make) if length > MANY else tuple(map(make, range(length)))

"""One idiom for everything that has a name in a recipe: data sets, models, rules, codecs, engines.

A name is registered once, and asking for a name that does not exist names the nearest and all the others.
"""

import difflib
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from trustmix.errors import TrustmixError

T = TypeVar("T")


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A hint ' Did you mean "suwa"?' where a choice is near, else nothing.

    >>> did_you_mean("swua", ["avg", "suwa"])
    ' Did you mean "suwa"?'
    """
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f' Did you mean "{found[0]}"?' if found else ""


class Registry(Generic[T]):
    """Names and what they stand for.

    >>> colours = Registry[int]("colour")
    >>> _ = colours.register("red")(0xFF0000)
    >>> colours.get("red") == 0xFF0000
    True
    >>> colours.get("rad")
    Traceback (most recent call last):
    ...
    trustmix.errors.TrustmixError: There is no colour "rad". Did you mean "red"? There are: red.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that gives a thing its name; a name that is taken is refused."""
        if name in self._things:
            raise TrustmixError(f'The {self.kind} "{name}" is registered already; choose another name.')

        def keep(thing: T) -> T:
            self._things[name] = thing
            return thing

        return keep

    def get(self, name: str) -> T:
        """The thing of that name."""
        if name not in self._things:
            hint = did_you_mean(name, self._things)
            raise TrustmixError(f'There is no {self.kind} "{name}".{hint} There are: {", ".join(self.names())}.')
        return self._things[name]

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._things)

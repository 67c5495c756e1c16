"""One idiom for everything that has a name in a recipe: data sets, models, rules, codecs, engines.

Built-in entries are imported at the first question. An unknown name is answered with the nearest and all the others.
"""

import difflib
import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from trustmix.errors import TrustmixError

T = TypeVar("T")


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a hint for a misspelt word.

    Parameters
    ----------
    word
        The word that was not found.
    choices
        The words that exist.

    Returns
    -------
    str
        The nearest choice as a sentence that starts with a space, or an empty string where no choice is near.

    Examples
    --------
    >>> did_you_mean("swua", ["avg", "suwa"])
    ' Did you mean "suwa"?'
    """
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f' Did you mean "{found[0]}"?' if found else ""


class Registry(Generic[T]):
    """A table of named entries of one kind.

    Parameters
    ----------
    kind
        What an entry is, in the words of an error text: "rule", "data set".
    provided_by
        The module that registers the built-in entries while it is imported. It is imported at the first `get`, `names`
        or `in`, so that the module of the registry does not depend on it. None where no module has to be imported.

    Examples
    --------
    >>> colours = Registry[int]("colour")
    >>> _ = colours.register("red")(0xFF0000)
    >>> colours.get("red") == 0xFF0000
    True
    >>> "blue" in colours
    False
    >>> colours.get("rad")
    Traceback (most recent call last):
    ...
    trustmix.errors.TrustmixError: There is no colour "rad". Did you mean "red"? There are: red.
    """

    def __init__(self, kind: str, provided_by: str | None = None) -> None:
        self.kind = kind
        self.provided_by = provided_by
        self._entries: dict[str, T] = {}
        self._modules: dict[str, str] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers an entry.

        A name that the calling module registered before is replaced, so that a notebook cell can be run again.

        Parameters
        ----------
        name
            The name of the entry in recipes.

        Returns
        -------
        Callable
            A function that registers its argument under the name and returns it unchanged.

        Raises
        ------
        TrustmixError
            If another module has registered the name.
        """
        module = sys._getframe(1).f_globals.get("__name__", "__main__")
        owner = self._modules.get(name, module)
        if owner != module:
            raise TrustmixError(
                f'The {self.kind} "{name}" of the module {module} is registered by the module {owner} already; '
                "choose another name."
            )

        def add(entry: T) -> T:
            self._entries[name] = entry
            self._modules[name] = module
            return entry

        return add

    def get(self, name: str) -> T:
        """Return the entry of that name.

        Parameters
        ----------
        name
            The name under which the entry is registered.

        Returns
        -------
        T
            The entry.

        Raises
        ------
        TrustmixError
            If no entry has the name; the text contains the nearest name and all others.
        """
        if name not in self:
            hint = did_you_mean(name, self._entries)
            raise TrustmixError(f'There is no {self.kind} "{name}".{hint} There are: {", ".join(self.names())}.')
        return self._entries[name]

    def names(self) -> list[str]:
        """Return all names, sorted.

        Returns
        -------
        list of str
            The names of the built-in entries and of those that were added.
        """
        self._import_provider()
        return sorted(self._entries)

    def __contains__(self, name: object) -> bool:
        self._import_provider()
        return name in self._entries

    def _import_provider(self) -> None:
        """Import the providing module; the import system answers at once when it is imported or being imported."""
        if self.provided_by is not None:
            importlib.import_module(self.provided_by)

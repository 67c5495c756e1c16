"""Names: one owner for each, and built-in entries that are imported when they are asked for."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from trustmix.errors import TrustmixError
from trustmix.registry import Registry

HOME = "registry_test_home"
PROVIDER = "registry_test_provider"


@pytest.fixture
def numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[int]:
    """A registry with a built-in "one"; its provider asks the registry while it is being imported."""
    home = ModuleType(HOME)
    registry = Registry[int]("number", provided_by=PROVIDER)
    vars(home)["NUMBERS"] = registry
    (tmp_path / f"{PROVIDER}.py").write_text(
        f"from {HOME} import NUMBERS\n"
        "NUMBERS.register('one')(1)\n"
        "during_import = (NUMBERS.get('one'), 'two' in NUMBERS, NUMBERS.names())\n"
    )
    monkeypatch.setitem(sys.modules, HOME, home)
    monkeypatch.delitem(sys.modules, PROVIDER, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return registry


def register_from(module: str, registry: Registry[int], name: str, number: int) -> None:
    """Register a number by code that runs in another module."""
    exec("registry.register(name)(number)", {"__name__": module, "registry": registry, "name": name, "number": number})


@pytest.mark.parametrize(
    "ask",
    [lambda numbers: numbers.get("one"), lambda numbers: numbers.names() == ["one"], lambda numbers: "one" in numbers],
    ids=["get", "names", "in"],
)
def test_the_first_question_imports_the_provider(numbers: Registry[int], ask: Callable[[Registry[int]], bool]) -> None:
    assert PROVIDER not in sys.modules
    assert ask(numbers)
    assert vars(sys.modules.pop(PROVIDER))["during_import"] == (1, False, ["one"])


def test_registering_imports_nothing(numbers: Registry[int]) -> None:
    numbers.register("two")(2)
    assert PROVIDER not in sys.modules
    assert numbers.names() == ["one", "two"]


def test_a_built_in_name_that_was_taken_before_the_import_is_refused_at_every_question(numbers: Registry[int]) -> None:
    numbers.register("one")(11)
    for _ in range(2):
        with pytest.raises(TrustmixError, match=f"of the module {PROVIDER} is registered by the module {__name__}"):
            numbers.names()


def test_a_module_replaces_its_own_entry_and_no_other_modules() -> None:
    numbers = Registry[int]("number")
    register_from("__main__", numbers, "one", 1)
    register_from("__main__", numbers, "one", 11)
    assert numbers.get("one") == 11
    with pytest.raises(TrustmixError, match=r"registered by the module __main__ already; choose another name\."):
        register_from("another", numbers, "one", 111)
    assert numbers.get("one") == 11


def test_an_unknown_name_is_answered_with_the_built_in_names(numbers: Registry[int]) -> None:
    with pytest.raises(TrustmixError, match=r'There is no number "on"\. Did you mean "one"\? There are: one\.'):
        numbers.get("on")

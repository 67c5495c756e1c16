"""Settings as TOML: what is written is read back the same."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trustmix.settings.builtin import builtin_recipes
from trustmix.settings.recipe import Recipe
from trustmix.settings.toml_settings import override, parse, parse_value, toml_value, write

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALAR = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(
    SCALAR, lambda inner: st.lists(inner.filter(lambda v: v is not None), max_size=3) | st.dictionaries(TEXT, inner)
)


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_none(entry) for key, entry in value.items() if entry is not None}
    return [without_none(entry) for entry in value] if isinstance(value, list) else value


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_what_is_written_is_read_back_without_its_nones(fields: dict[str, Any]) -> None:
    assert parse(write(fields), "the settings") == without_none(fields)


@pytest.mark.parametrize("name", sorted(builtin_recipes()))
def test_a_resolved_recipe_reads_back_as_the_same_recipe(name: str) -> None:
    recipe = Recipe.load(name, ["rule={ tau = inf }"])
    assert Recipe.load(parse(recipe.toml(), "recipe.toml")) == recipe


def test_tuples_become_arrays() -> None:
    assert tomllib.loads(write({"hidden": (64, 32), "model": ({"name": "mlp"},)})) == {
        "hidden": [64, 32],
        "model": [{"name": "mlp"}],
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("-inf"), "-inf"),
        ([1.5, float("inf")], "[1.5, inf]"),
        ([{"tau": 0.4}], "[{ tau = 0.4 }]"),
        ((64, 32), "[64, 32]"),
        ("\x7f", '"\\u007f"'),
    ],
)
def test_a_value_on_one_line_is_toml(value: Any, text: str) -> None:
    assert toml_value(value) == text
    assert parse_value(text) == (list(value) if isinstance(value, tuple) else value)


def test_what_is_no_toml_counts_as_a_string() -> None:
    fields: dict[str, Any] = {}
    for change in ("rule=suwa", "attack.kind=nan", "data.path=/tmp/a b", "rounds=3"):
        override(fields, change)
    assert fields == {"rule": "suwa", "attack": {"kind": "nan"}, "data": {"path": "/tmp/a b"}, "rounds": 3}

"""Errors of pydantic as one sentence with the name of the setting."""

from collections.abc import Sequence

from pydantic import ValidationError

from trustmix.registry import did_you_mean

MAX_SHOWN = 80
"""Characters of a value that are shown."""


def format_validation_error(error: ValidationError, settings: Sequence[str]) -> str:
    """Format an error of pydantic as one sentence.

    Parameters
    ----------
    error : pydantic.ValidationError
        The error; the most specific of its entries is formatted.
    settings : sequence of str
        All settings, each as section.key.

    Returns
    -------
    str
        The setting, what is wrong with it, and its value; for an unknown setting, a similar name.

    Examples
    --------
    >>> from trustmix.settings.config import GuardConfig
    >>> try:
    ...     GuardConfig(cap=2)
    ... except ValidationError as error:
    ...     print(format_validation_error(error, ["guard.on", "guard.cap"]))
    cap: input should be less than or equal to 1 (given: 2).
    """
    keys = {part for setting in settings for part in setting.split(".")} | {"tau"}
    first = max(error.errors(), key=lambda entry: len(entry["loc"]))  # of a union, the branch that fits best
    path = [
        str(part)
        for part in first["loc"]
        if isinstance(part, int) or part in keys or first["type"] == "extra_forbidden"
    ]
    key = ".".join(path) or "rule"  # settings that do not go together are so because of the rule
    if first["type"] == "extra_forbidden":
        parent = ".".join(path[:-1])
        siblings = [known.rpartition(".")[2] for known in settings if known.rpartition(".")[0] == parent]
        hint = did_you_mean(path[-1], siblings) or _same_key_hint(path[-1], settings)
        where = f"[{parent}]" if parent else "the top level"
        return f'there is no setting "{path[-1]}" in {where}.{hint} There are: {", ".join(siblings)}.'
    message = first["msg"].removeprefix("Value error, ")
    given = first.get("input")
    named = first["type"] == "value_error"
    shown = f" (given: {_shorten(given)})" if isinstance(given, (str, int, float, bool)) and not named else ""
    return f"{key}: {message[0].lower() + message[1:]}{shown}".rstrip(".") + "."


def _shorten(given: str | float) -> str:
    """A value as Python writes it, on one short line."""
    try:
        text = repr(given)
    except ValueError:  # Python writes no integer of more than a few thousand digits
        return "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _same_key_hint(key: str, settings: Sequence[str]) -> str:
    """A hint to a setting with the same key in another section."""
    found = [path for path in settings if path.rpartition(".")[2] == key]
    return f" Did you mean {found[0]}?" if found else ""

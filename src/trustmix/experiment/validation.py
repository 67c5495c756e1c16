"""What pydantic found wrong with settings, as one sentence with the setting's own name."""

from collections.abc import Sequence

from pydantic import ValidationError

from trustmix.registry import did_you_mean


def format_validation_error(error: ValidationError, settings: Sequence[str]) -> str:
    """The first complaint of pydantic; `settings` are all there are, each as section.key."""
    keys = {part for path in settings for part in path.split(".")} | {"tau"}
    first = max(error.errors(), key=lambda complaint: len(complaint["loc"]))  # of a union, the branch that was meant
    place = [
        str(part)
        for part in first["loc"]
        if isinstance(part, int) or part in keys or first["type"] == "extra_forbidden"
    ]
    key = ".".join(place) or "rule"  # settings that do not go together are so because of the rule
    if first["type"] == "extra_forbidden":
        parent = ".".join(place[:-1])
        siblings = [known.rpartition(".")[2] for known in settings if known.rpartition(".")[0] == parent]
        hint = did_you_mean(place[-1], siblings) or _elsewhere(place[-1], settings)
        where = f"[{parent}]" if parent else "the top level"
        return f'there is no setting "{place[-1]}" in {where}.{hint} There are: {", ".join(siblings)}.'
    message = first["msg"].removeprefix("Value error, ")
    given = first.get("input")
    named = first["type"] == "value_error"
    shown = f" (given: {given!r})" if isinstance(given, (str, int, float, bool)) and not named else ""
    return f"{key}: {message[0].lower() + message[1:]}{shown}".rstrip(".") + "."


def _elsewhere(key: str, settings: Sequence[str]) -> str:
    found = [path for path in settings if path.rpartition(".")[2] == key]
    return f" Did you mean {found[0]}?" if found else ""

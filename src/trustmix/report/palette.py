"""One colour a method, the same in every figure; they are told apart by colour-blind readers and on dark pages."""

from collections.abc import Sequence

from trustmix.report.load import Method

PALETTE = (
    ("#6b7280", "#9ca3af"),
    ("#111827", "#f3f4f6"),
    ("#2563eb", "#7aa7ff"),
    ("#c2700a", "#f5b04c"),
    ("#0b7a5f", "#3fcfa5"),
    ("#b91c5c", "#ff8ab8"),
    ("#6d3fd1", "#b79cff"),
    ("#0e7490", "#5fd0ea"),
    ("#8a5a2b", "#d9a878"),
    ("#4d7c0f", "#a9d65c"),
)
"""On light and on dark paper; first those of training alone and of the reference, then those of the paper's rules."""

FREE = 5
"""From here on places are given to methods without one, those first that no method of the study has for its own."""


def assign_colours(methods: Sequence[Method]) -> dict[Method, int]:
    """Each method's place in `study_palette`.

    >>> trust, mine = Method("trust", "Trust", 5), Method("mine", "mine")
    >>> assign_colours([mine, trust]) == {mine: 6, trust: 5}
    True
    >>> assign_colours([Method("my.rules:Own", "Own", "#123456")]).popitem()[1] == len(PALETTE)
    True
    """
    found: dict[Method, int] = {}
    own = _own_colours(methods)
    for method in methods:
        wanted = len(PALETTE) + own.index(method.colour) if isinstance(method.colour, str) else method.colour
        if wanted is None or (wanted in found.values() and wanted < len(PALETTE)):
            free = [place for place in (*range(FREE, len(PALETTE)), *range(2, FREE)) if place not in found.values()]
            taken = {other.colour for other in methods}
            first = [place for place in free if place not in taken] or free
            wanted = first[0] if first else FREE + len(found) % (len(PALETTE) - FREE)
        found[method] = wanted
    return found


def study_palette(methods: Sequence[Method]) -> tuple[tuple[str, str], ...]:
    """The palette, and behind it the colours that methods of the study brought themselves, on both kinds of paper."""
    return (*PALETTE, *((colour, colour) for colour in _own_colours(methods)))


def _own_colours(methods: Sequence[Method]) -> list[str]:
    return list(dict.fromkeys(method.colour for method in methods if isinstance(method.colour, str)))

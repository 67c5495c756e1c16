"""One colour a method, the same in every figure; they are told apart by colour-blind readers and on dark pages."""

from collections.abc import Sequence

from trustmix.federation import CENTRALIZED, LOCAL_ONLY
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

FIXED = {LOCAL_ONLY: 0, CENTRALIZED: 1, "avg": 2, "uwa": 3, "suwa": 4, "trust": 5, "coupling": 6}
FREE = 5
"""From here on colours are given to whoever comes, those first that no method of the study has for its own."""


def assign_colours(methods: Sequence[Method]) -> dict[Method, int]:
    """Each method's place in the palette.

    >>> trust, mine = Method("trust", "Trust"), Method("mine", "mine")
    >>> assign_colours([mine, trust]) == {mine: 6, trust: 5}
    True
    """
    found: dict[Method, int] = {}
    for method in methods:
        wanted = FIXED.get(method.rule)
        if wanted is None or wanted in found.values():
            free = [place for place in (*range(FREE, len(PALETTE)), *range(2, FREE)) if place not in found.values()]
            taken = {FIXED[other.rule] for other in methods if other.rule in FIXED}
            first = [place for place in free if place not in taken] or free
            wanted = first[0] if first else FREE + len(found) % (len(PALETTE) - FREE)
        found[method] = wanted
    return found

"""One colour per method, the same in every figure.

Colour-blind readers can distinguish the colours, and each has a variant for dark pages.
"""

from collections.abc import Sequence

from trustmix.report.study import MethodLabel

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
"""Each colour on light and on dark pages: of local training, of the reference, of the paper's rules, and free ones."""

FIRST_FREE = 5
"""The index of the first colour for methods without a fixed one; colours that no method has fixed are taken first."""


def assign_colours(methods: Sequence[MethodLabel]) -> dict[MethodLabel, int]:
    """Assign a colour to every method.

    Parameters
    ----------
    methods : sequence of MethodLabel
        All methods of a study.

    Returns
    -------
    dict of MethodLabel to int
        Each method's index in `study_palette`; no two are the same while the palette has enough colours.

    Examples
    --------
    >>> trust, mine = MethodLabel("trust", "Trust", 5), MethodLabel("mine", "mine")
    >>> assign_colours([mine, trust]) == {mine: 6, trust: 5}
    True
    >>> own = MethodLabel("my.rules:Own", "Own", "#123456")
    >>> assign_colours([own])[own] == len(PALETTE)
    True
    """
    found: dict[MethodLabel, int] = {}
    own = _own_colours(methods)
    for method in methods:
        if isinstance(method.colour, str):
            found[method] = len(PALETTE) + own.index(method.colour)
            continue
        wanted = method.colour
        if wanted is None or wanted not in range(len(PALETTE)) or wanted in found.values():
            indices = (*range(FIRST_FREE, len(PALETTE)), *range(2, FIRST_FREE))
            free = [index for index in indices if index not in found.values()]
            fixed = {other.colour for other in methods}
            first = [index for index in free if index not in fixed] or free
            wanted = first[0] if first else FIRST_FREE + len(found) % (len(PALETTE) - FIRST_FREE)
        found[method] = wanted
    return found


def study_palette(methods: Sequence[MethodLabel]) -> tuple[tuple[str, str], ...]:
    """Extend the palette by the colours that methods bring themselves, the same on light and on dark pages.

    Parameters
    ----------
    methods : sequence of MethodLabel
        All methods of a study.

    Returns
    -------
    tuple of pairs of str
        Colours on light and on dark pages.
    """
    return (*PALETTE, *((colour, colour) for colour in _own_colours(methods)))


def _own_colours(methods: Sequence[MethodLabel]) -> list[str]:
    return list(dict.fromkeys(method.colour for method in methods if isinstance(method.colour, str)))

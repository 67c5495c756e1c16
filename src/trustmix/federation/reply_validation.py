"""The door: who may answer, when, how often, and which of the figures beside an upload make sense.

What is inside an upload is checked where it is decoded (`wire`) and held (`trust.guard`).
"""

from collections.abc import Container
from dataclasses import replace

from trustmix.federation.messages import Reply

LONGEST_NAME = 60
"""Characters of an unknown sender's name that are written down."""
STAGES = ("distil", "evaluate", "train", "predict", "save")
"""What a client may tell the time of."""


def rejection_reason(reply: Reply, round_: int, asked: Container[str]) -> str | None:
    """Why an answer is not even looked at, or None.

    >>> rejection_reason(Reply("north", 3), 4, ["north"])
    'answered round 3 when asked for round 4'
    """
    if reply.client not in asked:
        return "was not asked"
    if reply.round != round_:
        return f"answered round {reply.round} when asked for round {round_}"
    return None


def sanitize_reply(reply: Reply) -> Reply:
    """The reply without figures that cannot be: an accuracy is from 0 to 1, a loss, time or epsilon not below 0.

    >>> kept = sanitize_reply(Reply("north", 1, accuracy=7.0, seconds={"train": 2.0, "save": float("nan"), "x": 1.0}))
    >>> kept.accuracy, kept.seconds
    (None, {'train': 2.0})
    """
    seconds = {
        stage: reply.seconds[stage] for stage in STAGES if _within(reply.seconds.get(stage), LARGEST) is not None
    }
    return replace(
        reply,
        accuracy=_within(reply.accuracy, 1),
        local_accuracy=_within(reply.local_accuracy, 1),
        nll=_within(reply.nll, LARGEST),
        ece=_within(reply.ece, 1),
        balanced_accuracy=_within(reply.balanced_accuracy, 1),
        macro_f1=_within(reply.macro_f1, 1),
        auroc=_within(reply.auroc, 1),
        agreement=_within(reply.agreement, 1),
        public_epochs=reply.public_epochs if _within(reply.public_epochs, LARGEST) else None,
        epsilon=_within(reply.epsilon, LARGEST),
        epsilon_round=_within(reply.epsilon_round, LARGEST),
        seconds=seconds,
    )


LARGEST = 1e9
"""Of any figure: thirty years in seconds."""


def to_valid_utf8(reason: str) -> str:
    r"""A reason, which may quote another party, as text that can be written and printed anywhere.

    >>> to_valid_utf8("kind = \ud800, \x1b[2J")
    'kind = ?, ?[2J'
    """
    text = reason.encode("utf-8", "replace").decode()
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def _within(figure: float | None, largest: float) -> float | None:
    return figure if figure is not None and 0 <= figure <= largest else None

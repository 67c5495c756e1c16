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


def turned_away(reply: Reply, round_: int, asked: Container[str]) -> str | None:
    """Why an answer is not even looked at, or None.

    >>> turned_away(Reply("north", 3), 4, ["north"])
    'answered round 3 when asked for round 4'
    """
    if reply.client not in asked:
        return "was not asked"
    if reply.round != round_:
        return f"answered round {reply.round} when asked for round {round_}"
    return None


def sound(reply: Reply) -> Reply:
    """The reply without figures that cannot be: an accuracy is from 0 to 1, and time does not run backwards.

    >>> sound(Reply("north", 1, accuracy=7.0, seconds={"train": 2.0, "save": float("nan"), "x": 1.0}))
    Reply(client='north', round=1, payload=None, accuracy=None, local_accuracy=None, seconds={'train': 2.0})
    """
    seconds = {stage: reply.seconds[stage] for stage in STAGES if 0 <= reply.seconds.get(stage, -1) < float("inf")}
    return replace(reply, accuracy=_part(reply.accuracy), local_accuracy=_part(reply.local_accuracy), seconds=seconds)


def _part(figure: float | None) -> float | None:
    return figure if figure is not None and 0 <= figure <= 1 else None

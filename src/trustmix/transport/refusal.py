"""Why a node does not do what the server asks: a sentence of a fixed list for the server, details for the node's log.

An error text may quote a cell of a table, a path or a user's code. None of that leaves the node.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from trustmix.errors import TrustmixError

UNKNOWN_RUN = "it does not know this run"
"""The failure of a client whose folder was lost; its node gets another handshake."""
MESSAGE = "it cannot read the server's message"
PUBLIC_SET = "the public set is not the announced one"
CLASSES = "it has a class that the server does not know"
INPUTS = "its inputs are of another shape or type than the public set"
DATA = "it cannot read its data as the server asks"
TOKENIZER = "its tokenizer is another one, or another version, than the server's"
MODEL = "its model cannot be built or does not take its data"
PRIVACY = "the promise of privacy cannot be kept with its data and model"
PATHS = "it follows no path and runs no code that the server names"
DISK = "its quota of disk space is used up"
STEP = "its step failed"
FAILED = "an error occurred"
REASONS = (
    UNKNOWN_RUN,
    MESSAGE,
    PUBLIC_SET,
    CLASSES,
    INPUTS,
    DATA,
    TOKENIZER,
    MODEL,
    PRIVACY,
    PATHS,
    DISK,
    STEP,
    FAILED,
)
"""All that a node tells the server about an error, besides the settings of the recipe that its file does not allow."""
POLICY_SETTINGS = ("privacy.epsilon", "privacy.delta", "wire.labels", "wire.form", "rule")
"""The settings of a recipe that a node's file can refuse."""


class NodeRefusal(TrustmixError):  # noqa: N818 - it is what happened
    """What a node refuses or fails to do.

    Parameters
    ----------
    reason : str
        For the server: one of REASONS, or the result of `not_allowed`.
    details : str
        For the node's own log: one sentence.

    Examples
    --------
    >>> refusal = NodeRefusal(DATA, 'row 61 of patients.csv: "n/a" is no number')
    >>> refusal.reason, str(refusal)
    ('it cannot read its data as the server asks', 'row 61 of patients.csv: "n/a" is no number')
    """

    def __init__(self, reason: str, details: str) -> None:
        super().__init__(details)
        self.reason = reason


def not_allowed(setting: str) -> str:
    """The reason for refusing a setting of the server's recipe.

    Parameters
    ----------
    setting : str
        One of POLICY_SETTINGS.

    Returns
    -------
    str

    Examples
    --------
    >>> not_allowed("wire.labels")
    "its file does not allow the recipe's wire.labels"
    """
    return f"its file does not allow the recipe's {setting}"


@contextmanager
def failing_as(reason: str) -> Iterator[None]:
    """Give errors of a block a reason; an error that has one keeps it.

    Parameters
    ----------
    reason : str
        One of REASONS.

    Raises
    ------
    NodeRefusal
        In place of any error of the block.
    """
    try:
        yield
    except NodeRefusal:
        raise
    except TrustmixError as error:
        raise NodeRefusal(reason, str(error)) from error
    except Exception as error:  # the node's own model may raise anything
        raise NodeRefusal(reason, f"{type(error).__name__}: {error}") from error
